"""Processes that consume side by side: each gets ready, all begin at once, and each reports its result."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any

from bench import report

__all__ = ["ROOT", "ProcessFailed", "run_side_by_side"]

ROOT = Path(__file__).parents[1]
"""Where ``python -m bench`` finds what it runs."""
READY = "ready"
LONGEST = 900.0

Watch = Callable[[int], None]
"""Given the number of the first process, looks at it until it has ended."""


class ProcessFailed(Exception):
    """A process ended without a result."""


def run_side_by_side(
    commands: Sequence[Sequence[str]],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    seconds: float = LONGEST,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Run the commands side by side, and return the result of each: the line of JSON that it prints.

    A process writes ``ready`` when it is connected, and begins when it reads a line.

    Raises:
        ProcessFailed: a process failed, or took longer than ``seconds``; the message has its last line of stderr.
    """
    with ExitStack() as opened:
        processes = [_start(opened, command, environment, folder) for command in commands]
        for process, _ in processes:
            timer = Timer(seconds, process.kill)
            timer.start()
            opened.callback(timer.cancel)
        for process, errors in processes:
            if _line(process) != READY:
                raise _failure(process, errors)
        for process, _ in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        if watch is not None:
            watch(processes[0][0].pid)
        return [_read_result(process, errors) for process, errors in processes]


def _start(
    opened: ExitStack, command: Sequence[str], environment: Mapping[str, str] | None, folder: Path
) -> tuple[subprocess.Popen[str], IO[str]]:
    errors = opened.enter_context(TemporaryFile("w+"))  # noqa: SIM115  # it is entered here
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    opened.callback(_stop, process)
    return process, errors


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _read_result(process: subprocess.Popen[str], errors: IO[str]) -> dict[str, Any]:
    line = _line(process)
    if process.wait() or not line:
        raise _failure(process, errors)
    if last := _last(errors):
        report.progress(f"process {process.pid} wrote to stderr, last: {last}")
    result: dict[str, Any] = json.loads(line)
    return result


def _failure(process: subprocess.Popen[str], errors: IO[str]) -> ProcessFailed:
    code = process.wait()
    return ProcessFailed(f"{'took too long' if code == -9 else f'ended with {code}'}: {_last(errors) or 'no stderr'}")


def _last(errors: IO[str]) -> str | None:
    """Return the last line that was written."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return lines[-1][-300:] if lines else None
