"""Breaks mongoq on purpose, one line at a time: the tests must notice each time.

    python scripts/mutants.py [NAME ...] [--sample N] [--seed N] [--jobs N] [--list]

The mutants are in scripts/mutants.toml. Each is applied to a copy of the tree, and the tests it names
run there: they must fail. What counts is a test that failed; a test run that could not start, a fixture
that broke or a time limit is an error of the runner, never a kill. The unchanged copy must pass first,
all that is named of a file at once. A sample is drawn by chance; its seed is printed, and brings it back.

Exit status: 0 when all were killed, 1 when one survived, 2 when something could not be judged.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "scripts" / "mutants.toml"
COPIED = [
    "mongoq",
    "tests",
    "bench",
    "examples",
    "docs",
    "scripts",
    "mongoq_command.py",
    "pyspark_mongoq.py",
    "pytest_mongoq.py",
    "pyproject.toml",
]
COPIED += ["CHANGELOG.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "mkdocs.yml"]
GENERATED = ("mongoq/sync/", "mongoq/drivers/threads/", "mongoq/worker/threads/")
GENERATED_FROM = ("mongoq/aio/", "mongoq/drivers/aio/", "mongoq/worker/aio/")
TIME_LIMIT = 600.0

KILLED, SURVIVED, ERROR, PASSED = "killed", "SURVIVED", "ERROR", "passed"

Selection = tuple[str, ...]
"""Which tests to run: files, and perhaps ``-k`` and an expression."""


class Unusable(Exception):
    """The table, or a mutant in it, does not fit the tree."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change to the product, and the tests that must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: Selection
    count: int = 1

    def apply(self, root: Path) -> None:
        path = root / self.file
        if self.file.startswith(GENERATED):
            raise Unusable(f"{self.name}: {self.file} is generated; break what it is made of")
        if not path.is_file():
            raise Unusable(f"{self.name}: there is no file {self.file}")
        text = path.read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != self.count:
            raise Unusable(f"{self.name}: {self.file} holds the old text {found} times, not {self.count}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        forget(path)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of tests on a copy came to."""

    name: str
    verdict: str
    seconds: float
    detail: str

    def __str__(self) -> str:
        return f"{self.name:<44} {self.verdict:<9} {self.seconds:6.1f} s  {self.detail}"


def load(table: Path = TABLE) -> list[Mutant]:
    """The mutants of the table, in its order."""
    entries = tomllib.loads(table.read_text(encoding="utf-8")).get("mutant", [])
    mutants: list[Mutant] = []
    for entry in entries:
        try:
            mutant = Mutant(**{**entry, "tests": tuple(entry["tests"])})
        except (KeyError, TypeError) as problem:
            raise Unusable(f"{table.name}: {entry.get('name', entry)}: {problem}") from None
        if not mutant.old or mutant.old == mutant.new or not mutant.tests:
            raise Unusable(f"{mutant.name}: a mutant has an old text, another new one, and tests")
        if mutant.name in {other.name for other in mutants}:
            raise Unusable(f"{mutant.name}: the name is taken twice")
        mutants.append(mutant)
    return mutants


def select(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    unknown = set(names) - {mutant.name for mutant in mutants}
    if unknown:
        raise Unusable(f"no such mutant: {', '.join(sorted(unknown))}")
    return [mutant for mutant in mutants if not names or mutant.name in names]


def sampled(mutants: Sequence[Mutant], number: int, seed: int) -> list[Mutant]:
    """So many of them by chance, in the order of the table."""
    chosen = set(random.Random(seed).sample(range(len(mutants)), min(number, len(mutants))))
    print(f"a sample of {len(chosen)} of {len(mutants)} mutants: --sample {number} --seed {seed}", flush=True)
    return [mutant for place, mutant in enumerate(mutants) if place in chosen]


def together(selections: Sequence[Selection]) -> dict[Selection, list[Selection]]:
    """Selections of the same files by one that selects all that they do, and nothing else."""
    by_files: dict[Selection, list[Selection]] = {}
    for tests in selections:
        by_files.setdefault(_split(tests)[0], []).append(tests)
    return {_joined(files, [_split(tests)[1] for tests in parts]): parts for files, parts in by_files.items()}


def _split(tests: Selection) -> tuple[Selection, str]:
    if "-k" not in tests:
        return tests, ""
    place = tests.index("-k")
    if place != len(tests) - 2:
        raise Unusable(f"{' '.join(tests)}: -k and an expression come last")
    return tests[:place], tests[-1]


def _joined(files: Selection, expressions: Sequence[str]) -> Selection:
    return (*files, "-k", " or ".join(f"({each})" for each in expressions)) if all(expressions) else files


# --- copies ------------------------------------------------------------------------------------


@contextmanager
def copy_of(root: Path, *, cached: bool = True) -> Iterator[Path]:
    """A temporary copy of what the tests need, with its bytecode or without; its mongoq is the one imported there."""
    ignored = None if cached else shutil.ignore_patterns("__pycache__")
    with tempfile.TemporaryDirectory(prefix="mongoq-mutant-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder).resolve()
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, copy / name)
        yield copy


def forget(path: Path) -> None:
    """Remove the bytecode of a file, which might still seem to be that of what the file holds now."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()


class Runner:
    """Runs tests in copies of a tree, and can end what it started."""

    def __init__(self, root: Path, *, time_limit: float = TIME_LIMIT) -> None:
        self._root = root
        self._time_limit = time_limit
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def compile(self, files: Sequence[str]) -> None:
        """Leave bytecode in the tree, of tests and of what they import: most of a run would go into that otherwise."""
        options = ["-q", "-p", "no:cacheprovider", "--collect-only"]
        code, output = self._python(self._root, "-m", "pytest", *options, *files, writes=True)
        if code:
            raise Unusable(f"the tests cannot be collected: {_last_line(output)}")

    def check(self, tests: Selection) -> Outcome:
        """Whether the tests pass on the unchanged tree, with the mongoq that is in the copy."""
        started = time.monotonic()
        with copy_of(self._root) as copy:
            code, output = self._python(copy, "-c", "import mongoq; print(mongoq.__file__)")
            if code or not Path(output.strip()).resolve().is_relative_to(copy):
                verdict, detail = ERROR, f"mongoq is not imported from the copy: {_last_line(output)}"
            else:
                verdict, detail = self._test(copy, tests)
        name = f"unchanged: {' '.join(_split(tests)[0])}"
        if verdict != PASSED:
            return Outcome(name, ERROR, time.monotonic() - started, f"fails without a mutant: {detail}")
        return Outcome(name, verdict, time.monotonic() - started, detail)

    def judge(self, mutant: Mutant) -> Outcome:
        """Whether the tests of the mutant notice it."""
        started = time.monotonic()
        try:
            with copy_of(self._root) as copy:
                mutant.apply(copy)
                if mutant.file.startswith(GENERATED_FROM):
                    self._regenerate(copy)
                verdict, detail = self._test(copy, mutant.tests)
                verdict = SURVIVED if verdict == PASSED else verdict
        except Unusable as problem:
            verdict, detail = ERROR, str(problem)
        return Outcome(mutant.name, verdict, time.monotonic() - started, detail)

    def stop(self) -> None:
        """Ends what is running, and lets nothing more start."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _end(process)

    def _regenerate(self, copy: Path) -> None:
        code, output = self._python(copy, "scripts/unasync.py")
        if code:
            raise Unusable(f"the sync shell could not be generated: {_last_line(output)}")
        for folder in GENERATED:
            for path in (copy / folder).rglob("*.py"):
                forget(path)

    def _test(self, copy: Path, tests: Selection) -> tuple[str, str]:
        report = copy / "report.xml"
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        code, output = self._python(copy, "-m", "pytest", *options, *tests)
        return _verdict(code, output, report)

    def _python(self, copy: Path, *arguments: str, writes: bool = False) -> tuple[int | None, str]:
        """Runs the environment's Python in the copy: its exit status (None: time limit) and output."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "" if writes else "1",
            "PYTHONPYCACHEPREFIX": "",
            "PYSPARK_PYTHON": sys.executable,
        }
        # A file, not a pipe: a server left behind would keep a pipe open.
        log = copy / "output.log"
        with log.open("wb") as output, self._lock:
            if self._stopped:
                return None, "stopped"
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            code = process.wait(self._time_limit)
        except subprocess.TimeoutExpired:
            return None, f"the time limit of {self._time_limit:.0f} s"
        else:
            return code, log.read_text(encoding="utf-8", errors="replace")
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)


def _verdict(code: int | None, output: str, report: Path) -> tuple[str, str]:
    """What pytest's exit status and report say. Only a test that failed by itself is a kill."""
    if code == 0:
        return PASSED, _last_line(output)
    if code is None:
        return ERROR, output
    if code != 1 or not report.exists():
        return ERROR, f"pytest ended with {code}: {_last_line(output)}"
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        if failure is None:
            continue
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        if "from pytest-timeout" in (failure.get("message") or ""):
            return ERROR, f"a time limit ended {name}"
        return KILLED, name
    return ERROR, f"no test failed, a fixture did: {_last_line(output)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it left behind in its session, gently first."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # pytest takes down its fixtures
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _gone(process, within=5.0):
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    _gone(process, within=10.0)


def _gone(process: subprocess.Popen[bytes], *, within: float) -> bool:
    """Waits until nothing of the session is left."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "no output"


# --- the command -------------------------------------------------------------------------------


def run(mutants: Sequence[Mutant], *, root: Path = ROOT, jobs: int = 2) -> list[Outcome]:
    """Judges every mutant, and prints a line for each as it is done."""
    groups = together(list(dict.fromkeys(mutant.tests for mutant in mutants)))
    with copy_of(root, cached=False) as model, ThreadPoolExecutor(jobs) as pool:
        runner = Runner(model)
        try:
            runner.compile(sorted({file for group in groups for file in _split(group)[0]}))
            outcomes: list[Outcome] = []
            sound: set[Selection] = set()
            for group, outcome in zip(groups, pool.map(runner.check, groups), strict=True):
                print(outcome, flush=True)
                if outcome.verdict == PASSED:
                    sound.update(groups[group])
                else:
                    outcomes.append(outcome)
            ready = [mutant for mutant in mutants if mutant.tests in sound]
            for future in as_completed([pool.submit(runner.judge, mutant) for mutant in ready]):
                outcome = future.result()
                print(outcome, flush=True)
                outcomes.append(outcome)
        except BaseException:
            runner.stop()
            raise
    return outcomes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Breaks mongoq on purpose: the tests must notice.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="run so many of them, drawn by chance")
    parser.add_argument("--seed", type=int, metavar="N", help="what the sample is drawn by (default: chance)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="copies at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="show the mutants and their tests")
    options = parser.parse_args(arguments)
    if options.sample is not None and options.sample < 1:
        parser.error("--sample: at least 1")
    try:
        mutants = select(load(), options.names)
        if options.sample is not None:
            seed = random.randrange(2**32) if options.seed is None else options.seed
            mutants = sampled(mutants, options.sample, seed)
        return listed(mutants) if options.list else report(mutants, options.jobs)
    except Unusable as problem:
        print(f"mutants: {problem}", file=sys.stderr)
        return 2


def listed(mutants: Sequence[Mutant]) -> int:
    """Prints the mutants, and returns the exit status."""
    for mutant in mutants:
        print(f"{mutant.name:<44} {mutant.file}: {' '.join(mutant.tests)}")
    return 0


def report(mutants: Sequence[Mutant], jobs: int) -> int:
    """Runs the mutants, prints the sum, and returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    outcomes = run(mutants, jobs=jobs)
    survived = [outcome.name for outcome in outcomes if outcome.verdict == SURVIVED]
    errors = [outcome.name for outcome in outcomes if outcome.verdict == ERROR]
    killed = sum(outcome.verdict == KILLED for outcome in outcomes)
    seconds = time.monotonic() - started
    for name in survived:
        print(f"survived: {name}")
    print(f"{len(mutants)} mutants: {killed} killed, {len(survived)} survived, {len(errors)} errors in {seconds:.0f} s")
    return 2 if errors else 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
