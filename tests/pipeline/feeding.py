"""What processes do that are going to be killed: they run the pipeline of a source."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import mongoq
from tests.waiting import PATIENCE

__all__ = ["LEASE", "NAME", "ROLES", "feeding"]

NAME, LEASE = "counting", 0.6


def feeding(
    records: int, *, every: float | None = None, pause: float = 0.01, halfway: threading.Event | None = None
) -> mongoq.Pipeline:
    """Return a pipeline whose source counts, and stumbles now and then; ``halfway`` it waits for the event."""
    pipeline = mongoq.Pipeline("feeding", outputs="raw")

    @pipeline.source(to="raw", name=NAME, batch=20, every=every, lease=LEASE)
    def count(position: int | None) -> Iterator[Any]:
        for n in range(position or 0, records):
            if n % 10 == 0:
                time.sleep(pause)
            if n == records // 2 and halfway is not None:
                assert halfway.wait(PATIENCE)
            yield mongoq.Record({"n": n}, position=n + 1)

    return pipeline


def work(*, uri: str, database: str, engine: str, records: int) -> None:
    """Run it with one of the engines, until the end."""
    pipeline = feeding(records, every=0.05)
    if engine == "asyncio":
        asyncio.run(_worked(uri, database, pipeline))
        return
    with mongoq.connect(uri, database=database) as broker, pipeline.start(broker) as run:
        run.wait()


async def _worked(uri: str, database: str, pipeline: mongoq.Pipeline) -> None:
    async with mongoq.connect_async(uri, database=database) as broker, pipeline.start_async(broker) as run:
        await run.wait()


ROLES = {"work": work}
