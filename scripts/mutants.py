"""Breaks the core of mongoq by chance, one place at a time, and lists what no test has noticed.

    python scripts/mutants.py [--sample N] [--seed N] [--jobs N] [--files GLOB ...]

cosmic-ray finds the places and makes the mutants. Each is applied to a copy of the tree, where the threads' version
is generated again and the tests of the core run until one fails. Places are drawn by the size of modules; the seed is
printed, and brings the same draw back. scripts/equivalents.toml names mutants that change nothing that a user sees.

Exit status: 0 when all have been judged, 1 when the tests fail without a mutant. A survivor is no error: it is a
question to whoever reads the list.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import psutil
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENTS = ROOT / "scripts" / "equivalents.toml"
CORE = (
    "mongoq/aio/*.py",
    "mongoq/drivers/aio/*.py",
    "mongoq/data/**/*.py",
    "mongoq/pipeline/**/*.py",
    "mongoq/core/**/*.py",
    "mongoq/worker/*.py",
    "mongoq/worker/aio/*.py",
)
TESTS = ("tests/conformance", "tests/testing", "tests/worker", "tests/integration", "tests/pipeline")
# Annotations hold `X | None`, and are not evaluated; a class without its decorator cannot even be imported.
LEFT_OUT = ("core/ReplaceBinaryOperator_BitOr", "core/RemoveDecorator", "core/ReplaceComparisonOperator_Is")
SECONDS = 600.0


def find_modules(patterns: Sequence[str]) -> list[Path]:
    """Return the modules that are mutated, as paths in the tree."""
    return sorted({path for pattern in patterns for path in Path().glob(pattern) if path.stat().st_size})


@cache
def find_mutations(module: Path) -> list[MutationSpec]:
    """Return all mutations of a module that cosmic-ray knows."""
    with tempfile.TemporaryDirectory() as folder, use_db(str(Path(folder, "session.sqlite"))) as session:
        init([module], session, {})
        mutations = [mutation for item in session.work_items for mutation in item.mutations]
    return [mutation for mutation in mutations if not mutation.operator_name.startswith(LEFT_OUT)]


def draw(modules: Sequence[Path], number: int, seed: int) -> list[MutationSpec]:
    """Draw places, larger modules more often, and for each one of its mutations."""
    chance = random.Random(seed)
    drawn: list[MutationSpec] = []
    while len(drawn) < number:
        mutations = find_mutations(chance.choices(modules, [module.stat().st_size for module in modules])[0])
        if not mutations:
            continue
        place = chance.choice(sorted({(mutation.start_pos, mutation.end_pos) for mutation in mutations}))
        mutation = chance.choice([each for each in mutations if (each.start_pos, each.end_pos) == place])
        if mutation not in drawn:
            drawn.append(mutation)
    return drawn


def copy_tree(folder: Path) -> None:
    """Copy what git knows of the tree, changes included: mutants are never made in a user's checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def test_command(jobs: int) -> str:
    """Return the command that a mutant must make fail: it generates the twins and runs the tests of the core."""
    python = shlex.quote(sys.executable)
    options = f"-x -q -p no:cacheprovider -m 'not prove and not spark' -n {jobs} --dist loadgroup"
    # cosmic-ray forbids bytecode; without it each of the processes would compile all tests again.
    commands = f"{python} scripts/unasync.py && PYTHONDONTWRITEBYTECODE= {python} -m pytest {options} {' '.join(TESTS)}"
    return f"sh -c {shlex.quote(commands)}"


def is_equivalent(mutation: MutationSpec, result: WorkResult) -> bool:
    """Tell whether a survivor is one of the mutants that are known to change nothing."""
    known = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8")).get("equivalent", [])
    lines = {line[1:].strip() for line in (result.diff or "").splitlines() if line.startswith("+")}
    return any(each["file"] == str(mutation.module_path) and each["line"] in lines for each in known)


def judge(mutation: MutationSpec, result: WorkResult) -> str:
    """Return one word for what became of a mutant."""
    if result.worker_outcome != WorkerOutcome.NORMAL or result.test_outcome == TestOutcome.INCOMPETENT:
        return "UNJUDGED"
    if result.test_outcome == TestOutcome.KILLED:
        return "killed"
    return "equivalent" if is_equivalent(mutation, result) else "SURVIVED"


def run(mutations: Sequence[MutationSpec], jobs: int) -> int:
    """Test the tree as it is, then each mutant; print a line for each, and what survived in full."""
    command, survivors = test_command(jobs), []
    counts = dict.fromkeys(("killed", "SURVIVED", "equivalent", "UNJUDGED"), 0)
    whole = subprocess.run(shlex.split(command), check=False, capture_output=True, text=True)
    if whole.returncode:
        print(whole.stdout[-3000:], whole.stderr[-1000:], "the tests fail without a mutant", sep="\n", file=sys.stderr)
        return 1
    for mutation in mutations:
        started = time.monotonic()
        result = mutate_and_test([mutation], command, SECONDS)
        verdict = judge(mutation, result)
        counts[verdict] += 1
        place = f"{mutation.module_path}:{mutation.start_pos[0]}"
        print(f"{verdict:<10} {time.monotonic() - started:6.1f} s  {place}  {mutation.operator_name}", flush=True)
        if verdict in ("SURVIVED", "UNJUDGED"):
            survivors.append(result.diff or result.output)
    for text in survivors:
        print(f"\n{text}")
    print(f"\n{len(mutations)} mutants: {', '.join(f'{number} {word}' for word, number in counts.items())}")
    return 0


def end_children() -> None:
    """End what cosmic-ray has started: it leaves its tests running when it is interrupted."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        child.terminate()
    for child in psutil.wait_procs(children, timeout=10)[1]:
        child.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=15, metavar="N", help="mutants to draw (default: 15)")
    parser.add_argument("--seed", type=int, metavar="N", help="what they are drawn by (default: chance)")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="processes of tests (default: 4)")
    parser.add_argument("--files", nargs="+", default=CORE, metavar="GLOB", help="modules (default: the core)")
    options = parser.parse_args(arguments)
    if options.sample < 1:
        parser.error("--sample: at least 1")
    seed = random.randrange(2**32) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="mongoq-mutants-", ignore_cleanup_errors=True) as folder:
        copy_tree(Path(folder))
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": folder, "PYSPARK_PYTHON": sys.executable}  # before an installed mongoq
        modules = find_modules(options.files)
        if not modules:
            parser.error("--files: no such module")
        print(f"{options.sample} mutants, drawn with --seed {seed}", flush=True)
        try:
            return run(draw(modules, options.sample, seed), options.jobs)
        finally:
            end_children()
            os.chdir(ROOT)


if __name__ == "__main__":
    sys.exit(main())
