"""Programs of the examples, started as people start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import PATIENCE

__all__ = ["ON_SPARK", "Launch", "launching", "needs_spark", "output_of", "wait_for"]

ROOT = Path(__file__).parents[2]
MARK = "EXAMPLES_TEST_RUN"

Launch = Callable[..., subprocess.Popen[str]]


@contextmanager
def launching() -> Iterator[Launch]:
    """Give what starts ``python -m MODULE``; at the end of the block no process that comes from one may be left."""
    mark = uuid.uuid4().hex
    started: list[subprocess.Popen[str]] = []

    def launch(module: str, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "MONGOQ_URI"}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=inherited | {MARK: mark, "COLUMNS": "100"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    deadline = time.monotonic() + PATIENCE
    while processes := _descendants(mark):
        assert time.monotonic() < deadline, f"left behind: {processes}"
        time.sleep(0.1)


def _descendants(mark: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


ON_SPARK = (pytest.mark.slow, pytest.mark.spark)
"""Marks of a test whose program starts Spark: it is slow, and skipped where that cannot be."""


def needs_spark(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test whose program starts Spark."""
    for mark in ON_SPARK:
        test = mark(test)
    return test


def output_of(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for the end of a program, which has to be this one, and return what it has printed."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


def wait_for(process: subprocess.Popen[str], happened: Callable[[], object]) -> None:
    """Wait until a program that is at work has come so far."""
    deadline = time.monotonic() + 180
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process.poll() is None, "it has ended"
        time.sleep(0.02)
