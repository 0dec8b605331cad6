"""A worker beside another program's handlers of signals: these are called as well, or the worker leaves them alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongoq
from mongoq.worker.signals import stop_on_signals
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


HOSTS = ["server", "loop", "start_async", "worker", "start"]


@pytest.mark.parametrize("signals", [True, False])
@pytest.mark.parametrize("host", HOSTS)
def test_a_program_hears_its_signal_and_the_worker_ends_in_good_order(
    program: Any, uri: str, database: str, queue: mongoq.Queue[Any], *, host: str, signals: bool
) -> None:
    queue.push_many(["one", "two"])
    running = program(uri, database, host, signals)
    assert running.send_signal_in_a_run() == [f"received {int(signal.SIGTERM)}", "end one", "restored True"]
    assert running.process.returncode == 0
    assert [item.payload for item in queue.peek(5)] == ["two"]


@pytest.mark.parametrize(("signals", "ended"), [(True, ["end one"]), (False, ["end one", "begin two", "end two"])])
def test_a_drain_calls_the_handler_that_was_there_or_leaves_it_alone(
    program: Any, uri: str, database: str, queue: mongoq.Queue[Any], *, signals: bool, ended: list[str]
) -> None:
    queue.push_many(["one", "two"])
    handled = [f"received {int(signal.SIGTERM)}"]
    restored = [f"interrupted {signals}", "restored True"]
    assert program(uri, database, "drain", signals).send_signal_in_a_run() == handled + ended + restored


def test_what_the_handler_raises_that_was_there_is_raised_when_the_worker_has_ended(
    program: Any, uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push("one")
    running = program(uri, database, "exit", True)
    assert running.send_signal_in_a_run() == [f"received {int(signal.SIGTERM)}", "end one"]
    assert running.process.returncode == CODE
    assert queue.size() == 0


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The signals that the handlers of the test itself received."""
    numbers: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, _: numbers.append(number))
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_block_within_a_block_calls_the_handler_below_once(received: list[int]) -> None:
    calls: list[str] = []
    with stop_on_signals(lambda: calls.append("outer")), stop_on_signals(lambda: calls.append("inner")):
        os.kill(os.getpid(), signal.SIGTERM)
    assert sorted(calls) == ["inner", "outer"]
    assert received == [signal.SIGTERM]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
def test_what_would_only_end_the_process_is_not_called_and_put_back(received: list[int], handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
    calls: list[str] = []
    with stop_on_signals(lambda: calls.append("stop")):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
    assert calls == ["stop"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_is_not_of_python_stays(received: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    own = signal.getsignal(signal.SIGTERM)
    installed: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, _: installed.append(number))
    with stop_on_signals(lambda: None):
        pass
    monkeypatch.undo()
    assert installed == []
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_listener_that_is_put_back_after_its_end_swallows_nothing(received: list[int]) -> None:
    """A server that starts within the worker's block, and ends later, puts back what stood there at its start."""
    calls: list[str] = []
    with stop_on_signals(lambda: calls.append("stop")):
        stood = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server's
    signal.signal(signal.SIGTERM, stood)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (calls, received) == ([], [signal.SIGTERM])


def test_with_signals_false_nothing_is_installed(received: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(lambda: None, signals=False):
        assert signal.getsignal(signal.SIGTERM) is before


def test_signals_is_a_bool(broker: mongoq.Broker, uri: str, database: str) -> None:
    worker, pipeline = mongoq.Worker(broker), mongoq.Pipeline("hosted")
    worker.consumer("orders")(print)
    pipeline.sink("orders", name="load")(print)
    bad: Any = 0
    for call in (
        lambda: worker.run(signals=bad),
        lambda: pipeline.start(broker, signals=bad),
        lambda: pipeline.drain(broker, signals=bad),
        lambda: pipeline.run_on_spark(None, uri, signals=bad),  # type: ignore[arg-type]
        lambda: asyncio.run(_run_async(uri, database, "run")),
        lambda: asyncio.run(_run_async(uri, database, "start")),
        lambda: asyncio.run(_run_async(uri, database, "drain")),
    ):
        with pytest.raises(mongoq.ArgumentInvalid, match="signals"):
            call()


async def _run_async(uri: str, database: str, way: str) -> None:
    bad: Any = None
    pipeline = mongoq.Pipeline("hosted")
    pipeline.sink("orders", name="load")(print)
    async with mongoq.connect_async(uri, database=database) as broker:
        worker = mongoq.AsyncWorker(broker)
        worker.consumer("orders")(print)
        if way == "run":
            await worker.run(signals=bad)
        elif way == "start":
            await pipeline.start_async(broker, signals=bad)
        else:
            await pipeline.drain_async(broker, signals=bad)
