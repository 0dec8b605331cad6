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


def set_clock(seconds: float) -> None:
    """Put the clock of this process forward; before mongoq is imported, which reads it by name."""
    real = time.time
    time.time = lambda: real() + seconds


def kill_after_pushes(share: float) -> None:
    from mongoq.protocol.coordination import ticks

    push = ticks.push

    def push_and_die(*args: Any, **options: Any) -> Any:
        id = yield from push(*args, **options)
        if random.random() < share:
            os.kill(os.getpid(), signal.SIGKILL)
        return id

    ticks.push = push_and_die


def main(uri: str, database: str, kind: str, clock: float, kills: float) -> None:
    set_clock(clock)
    import mongoq

    kill_after_pushes(kills)
    counted: dict[str, Any] = {"queue": "counted", "every": 1, "missed": "all"}

    def handled(tick: mongoq.Tick) -> None:
        print("handled", tick.at.isoformat(), flush=True)

    if kind == "threads":
        with mongoq.connect(uri, database=database) as broker:
            broker.schedule("counted", **counted)
            worker = mongoq.Worker(broker)
            worker.schedule("handled", every=1, missed="all")(handled)
            print("ready", flush=True)
            worker.run()
        return

    async def run() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            await broker.schedule("counted", **counted)
            worker = mongoq.AsyncWorker(broker)
            worker.schedule("handled", every=1, missed="all")(handled)
            print("ready", flush=True)
            await worker.run()

    asyncio.run(run())


if __name__ == "__main__":
    uri, database, kind, clock, kills = sys.argv[1:]
    main(uri, database, kind, float(clock), float(kills))
