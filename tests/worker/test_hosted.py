"""A worker beside another program's handlers of signals: these are called as well, or the worker leaves them alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.waiting import PATIENCE
from tests.worker.hosted import CODE

ROOT = Path(__file__).parents[2]


class Program:
    """``hosted.py`` in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.worker.hosted", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def send_signal_in_a_run(self) -> list[str]:
        """Send SIGTERM when a run has begun; return what is printed from then on."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("begin")
        self.process.send_signal(signal.SIGTERM)
        text, _ = self.process.communicate(timeout=PATIENCE)
        return text.splitlines()


@pytest.fixture
def program() -> Iterator[Any]:
    started: list[Program] = []

    def start(*arguments: object) -> Program:
        started.append(Program(*arguments))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.communicate()


@pytest.mark.parametrize(
    ("host", "signals"), [("worker", True), ("start", False), ("server", False), ("loop", True), ("start_async", True)]
)
def test_a_program_hears_its_signal_and_the_worker_ends_in_good_order(
    program: Any, uri: str, database: str, queue: mongoq.Queue[Any], *, host: str, signals: bool
) -> None:
    queue.push_many(["one", "two"])
    running = program(uri, database, host, signals)
    assert running.send_signal_in_a_run() == [f"received {int(signal.SIGTERM)}", "end one", "restored True"]
    assert running.process.returncode == 0
    assert [item.payload for item in queue.peek(5)] == ["two"]


def test_a_drain_calls_the_handler_that_was_there(
    program: Any, uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many(["one", "two"])
    lines = [f"received {int(signal.SIGTERM)}", "end one", "interrupted True", "restored True"]
    assert program(uri, database, "drain", True).send_signal_in_a_run() == lines


def test_what_the_handler_raises_that_was_there_is_raised_when_the_worker_has_ended(
    program: Any, uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push("one")
    running = program(uri, database, "exit", True)
    assert running.send_signal_in_a_run() == [f"received {int(signal.SIGTERM)}", "end one"]
    assert running.process.returncode == CODE
    assert queue.size() == 0


def test_signals_is_a_bool(broker: mongoq.Broker) -> None:
    worker, pipeline = mongoq.Worker(broker), mongoq.Pipeline("hosted")
    worker.consumer("orders")(print)
    pipeline.sink("orders", name="load")(print)
    bad: Any = 0
    for call in (
        lambda: worker.run(signals=bad),
        lambda: pipeline.start(broker, signals=bad),
        lambda: pipeline.drain(broker, signals=bad),
    ):
        with pytest.raises(mongoq.ArgumentInvalid, match="signals"):
            call()
