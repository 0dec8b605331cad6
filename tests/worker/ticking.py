"""A worker with schedules in a process of its own, whose clocks are wrong, and which kills itself now and then.

    python ticking.py URI DATABASE KIND CLOCK_SECONDS KILLS

``CLOCK_SECONDS`` is what its clock is ahead; ``KILLS`` is the share of pushes after which it kills itself, before the
schedule goes on to the next tick. It defines the schedules ``counted``, whose items stay, and ``handled``.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import CommandListener


def set_clock(seconds: float) -> None:
    """Put the clock of this process forward; before mongoq is imported, which reads it by name."""
    real = time.time
    time.time = lambda: real() + seconds


class KillAfterPushes(CommandListener):
    """Kills this process after a share of the inserts of items."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._pushes: set[int] = set()

    def started(self, event: Any) -> None:
        if event.command_name == "insert" and "q" in event.command["documents"][0]:
            self._pushes.add(event.request_id)

    def succeeded(self, event: Any) -> None:
        if event.request_id in self._pushes and random.random() < self._share:
            os.kill(os.getpid(), signal.SIGKILL)

    def failed(self, event: Any) -> None:
        pass


def main(uri: str, database: str, kind: str, clock: float, kills: float) -> None:
    set_clock(clock)
    import mongoq

    listeners = [KillAfterPushes(kills)]
    counted: dict[str, Any] = {"queue": "counted", "every": 1, "missed": "all"}

    def handled(tick: mongoq.Tick) -> None:
        print("handled", tick.at.isoformat(), flush=True)

    if kind == "threads":
        with (
            MongoClient[Any](uri, event_listeners=listeners) as client,
            mongoq.Broker(client[database]["mongoq"]) as broker,
        ):
            broker.schedule("counted", **counted)
            worker = mongoq.Worker(broker)
            worker.schedule("handled", every=1, missed="all")(handled)
            print("ready", flush=True)
            worker.run()
        return

    async def run() -> None:
        async with (
            AsyncMongoClient[Any](uri, event_listeners=listeners) as client,
            mongoq.AsyncBroker(client[database]["mongoq"]) as broker,
        ):
            await broker.schedule("counted", **counted)
            worker = mongoq.AsyncWorker(broker)
            worker.schedule("handled", every=1, missed="all")(handled)
            print("ready", flush=True)
            await worker.run()

    asyncio.run(run())


if __name__ == "__main__":
    uri, database, kind, clock, kills = sys.argv[1:]
    main(uri, database, kind, float(clock), float(kills))
