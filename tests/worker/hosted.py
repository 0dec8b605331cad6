"""A worker in the process of another program, which has handlers of signals of its own.

``hosted.py URI DATABASE HOST SIGNALS`` prints ``begin`` and ``end`` for each run, ``received`` when the program's own
handler is called, and at the end whether that handler is still installed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import mongoq
from tests.worker.stoppable import say

CODE = 7
ready = threading.Event()
"""The program can stop what it runs."""
received = threading.Event()
healths: list[Callable[[], mongoq.Health]] = []
"""Tells whether what runs has heard that it is to stop."""


class Server:
    """A web server as far as signals go: it ends when it has received one, and then ends what runs in its process."""

    def __init__(self) -> None:
        self.should_exit = threading.Event()

    def handle_exit(self, number: int, frame: Any) -> None:
        say("received", number)
        received.set()
        self.should_exit.set()

    async def serve(self) -> None:
        while not self.should_exit.is_set():
            await asyncio.sleep(0.02)


def stops() -> bool:
    return received.is_set() and all(health().reasons == ("the worker stops",) for health in healths)


def plain(payload: Any) -> None:
    ready.wait()
    say("begin", payload)
    while not stops():
        time.sleep(0.01)
    time.sleep(0 if healths else 0.3)  # nobody can ask a drain whether it has heard
    say("end", payload)


async def task(payload: Any) -> None:
    say("begin", payload)
    while not stops():
        await asyncio.sleep(0.01)
    say("end", payload)


def pipeline_of(handler: Any) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("hosted")
    pipeline.sink("orders", max_retries=3)(handler)
    return pipeline


async def in_loop(uri: str, database: str, host: str, *, signals: bool) -> None:
    server = Server()
    if host == "loop":
        number = signal.SIGTERM
        asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
    else:
        signal.signal(signal.SIGTERM, server.handle_exit)
    before = signal.getsignal(signal.SIGTERM)
    async with mongoq.connect_async(uri, database=database) as broker:
        if host == "start_async":
            async with pipeline_of(task).start_async(broker, signals=signals) as run:
                healths.append(run.health)
                await server.serve()
                run.stop()
                await run.wait()
        else:
            worker = mongoq.AsyncWorker(broker)
            healths.append(worker.health)
            worker.consumer("orders")(task)
            running = asyncio.create_task(worker.run(signals=signals))
            await server.serve()
            worker.stop()
            await running
    say("restored", signal.getsignal(signal.SIGTERM) == before)


def in_threads(uri: str, database: str, host: str, *, signals: bool) -> None:
    server = Server()
    calls: list[Any] = []

    def handle(number: int, frame: Any) -> None:
        server.handle_exit(number, frame)
        if host == "exit":
            sys.exit(CODE)
        for stop in calls:
            stop()

    signal.signal(signal.SIGTERM, handle)
    with mongoq.connect(uri, database=database) as broker:
        if host == "start":
            with pipeline_of(plain).start(broker, signals=signals) as run:
                healths.append(run.health)
                calls.append(run.stop)
                ready.set()
                run.wait()
        elif host == "drain":  # nobody else can stop it
            ready.set()
            progress = pipeline_of(plain).drain(broker, signals=signals)
            say("interrupted", progress.interrupted)
        else:
            worker = mongoq.Worker(broker)
            healths.append(worker.health)
            worker.consumer("orders")(plain)
            calls.append(worker.stop)
            ready.set()
            worker.run(signals=signals)
    say("restored", signal.getsignal(signal.SIGTERM) is handle)


def main(uri: str, database: str, host: str, with_signals: str) -> None:
    signals = with_signals == "True"
    if host in ("server", "loop", "start_async"):
        asyncio.run(in_loop(uri, database, host, signals=signals))
    else:
        in_threads(uri, database, host, signals=signals)


if __name__ == "__main__":
    main(*sys.argv[1:])
