"""Workers in processes of their own (``stoppable.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("stoppable.py")


class Process:
    """A worker in a process of its own, and what it has printed."""

    def __init__(self, *arguments: object, script: Path = SCRIPT) -> None:
        command = [sys.executable, str(script), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_environment())
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def said(self, word: str) -> list[str]:
        return [line.partition(" ")[2] for line in list(self.lines) if line.split(" ")[0] == word]

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
