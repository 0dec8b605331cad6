"""A worker in a process of its own, to be sent signals: prints what it does, a line each.

    python stoppable.py URI DATABASE KIND SECONDS GRACE [MAX_RETRIES]

Its handler takes so many seconds; a payload ``"poison"`` kills the process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import mongoq

KILLED_NEVER = 10
"""The retries where nobody says otherwise: no process is killed."""


def say(*words: object) -> None:
    """Print a line; a handler of a signal may do so while the thread that it interrupts prints one."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def main(uri: str, database: str, kind: str, seconds: float, grace: float, max_retries: int = KILLED_NEVER) -> None:  # noqa: PLR0917
    def plain(payload: Any) -> None:
        say("begin", payload)
        if payload == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)
        say("end", payload)

    async def task(payload: Any) -> None:
        say("begin", payload)
        if payload == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(seconds)
        say("end", payload)

    # Where it kills itself, what it held comes back soon; else a busy machine loses no lease.
    lease = 5 if max_retries == KILLED_NEVER else 0.8
    options: dict[str, Any] = {"concurrency": 2, "prefetch": 4, "lease": lease, "max_retries": max_retries}

    async def asynchronous() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker, grace=grace)
            worker.consumer("orders", **options)(task if kind == "tasks" else plain)
            say("ready")
            await worker.run()

    if kind == "threads":
        with mongoq.connect(uri, database=database) as broker:
            worker = mongoq.Worker(broker, grace=grace)
            worker.consumer("orders", **options)(plain)
            say("ready")
            worker.run()
    else:
        asyncio.run(asynchronous())
    say("stopped")


if __name__ == "__main__":
    uri, database, kind, seconds, grace, *rest = sys.argv[1:]
    main(uri, database, kind, float(seconds), float(grace), *map(int, rest))
