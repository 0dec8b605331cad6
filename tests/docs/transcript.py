"""Transcripts of terminals in a page: their commands are run, and what they print is compared."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(?P<kind>\w+) title="(?P<title>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
ID = r"\b[0-9a-f]{24}\b"
ELLIPSIS = "…"
"""Text of a page that stands for any output."""
VARYING = (
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z",
    r"\[\d+\]",
    r"\(pid \d+\)",
    r"[\w.-]+:\d+:[0-9a-f]{8}\b",
)
"""Patterns of what differs each time: times, processes, workers."""


class Terminal:
    """Commands of one terminal; a command that ``runs_on`` goes on while later blocks are run."""

    def __init__(self, folder: Path, environment: dict[str, str], replacements: dict[str, str]) -> None:
        self.environment = dict(environment)
        self._folder = folder
        self.replacements = replacements
        self._running: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._printed: list[str] = []
        self._compared = 0

    def run(self, text: str) -> None:
        """Run the commands of a block, and compare what they print; a block without commands shows further output."""
        output, *commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
        if output:
            self._expect(output)
        for part in commands:
            command, _, output = part.partition("\n")
            if setting := re.fullmatch(r"export (\w+)=(.*)", command):
                self.environment[setting[1]] = self._replace(setting[2])
                continue
            self._start(self._replace(command))
            if not runs_on(command):
                self.wait()
            self._expect(output, whole=not runs_on(command))

    def interrupt(self) -> int:
        """End the command that runs by Ctrl-C, and return its exit code."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the command that runs, and return its exit code."""
        assert self._running is not None
        assert self._reader is not None
        code = self._running.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """Kill the command that runs."""
        if self._running is not None and self._running.poll() is None:
            self._running.kill()
            self.wait()

    def _start(self, command: str) -> None:
        self._printed, self._compared = [], 0
        self._running = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder,
            env=self.environment,
        )
        self._reader = threading.Thread(target=self._read, args=(self._running,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._printed.append(line)

    def _expect(self, output: str, *, whole: bool = False) -> None:
        """Wait until the text of the page has been printed, with any line breaks, and no other text before it."""
        pattern = self._pattern(output)
        compare = pattern.fullmatch if whole else pattern.match
        until(lambda: compare(self._text(), self._compared) or self._has_ended())
        match = compare(self._text(), self._compared)
        assert match is not None, f"the page shows\n{output}\nprinted is\n{''.join(self._printed)}"
        self._compared = match.end() + 1
        self.replacements |= {group.removeprefix("id_"): id for group, id in match.groupdict().items()}

    def _text(self) -> str:
        return flatten("".join(self._printed))

    def _has_ended(self) -> bool:
        assert self._reader is not None
        return not self._reader.is_alive()

    def _pattern(self, output: str) -> re.Pattern[str]:
        """Return the expression of a text of the page; an id is any id where it appears first, and then the same."""
        new: set[str] = set()

        def name(match: re.Match[str]) -> str:
            id = match[0]
            if id in new or id in self.replacements.values():
                return f"(?P=id_{id})" if id in new else id
            new.add(id)
            return f"(?P<id_{id}>{ID})"

        pattern = re.sub(ID, name, re.escape(flatten(self._replace(output))))
        return re.compile(pattern.replace(ELLIPSIS, ".*?"))

    def _replace(self, text: str) -> str:
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return text


def flatten(text: str) -> str:
    """Return a text in one line, without what differs each time."""
    for varying in VARYING:
        text = re.sub(varying, "<>", text)
    return " ".join(text.split())


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Return kind, title and text of each block with a title."""
    for match in BLOCK.finditer((ROOT / page).read_text()):
        yield match["kind"], match["title"], match["text"]


def apply_diff(path: Path, diff: str) -> None:
    """Replace the line of a file that a block of kind ``diff`` begins with ``-`` by the one with ``+``."""
    old, new = diff.splitlines()
    before = path.read_text()
    assert old.startswith("-")
    assert new.startswith("+")
    assert before.count(old[1:]) == 1
    path.write_text(before.replace(old[1:], new[1:]))


def runs_on(command: str) -> bool:
    """Return whether a command goes on until Ctrl-C."""
    return command.startswith("mongoq worker ")
