"""``python feeding.py URI DATABASE ENGINE RECORDS``: runs the pipeline of a source until it is killed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

import mongoq

__all__ = ["LEASE", "NAME", "feeding"]

NAME, LEASE = "counting", 0.6


def feeding(records: int, *, every: float | None = None, pause: float = 0.01) -> mongoq.Pipeline:
    """Return a pipeline whose source counts, and stumbles now and then."""
    pipeline = mongoq.Pipeline("feeding", outputs="raw")

    @pipeline.source(to="raw", name=NAME, batch=20, every=every, lease=LEASE)
    def count(position: int | None) -> Iterator[Any]:
        for n in range(position or 0, records):
            if n % 10 == 0:
                time.sleep(pause)
            yield mongoq.Record({"n": n}, position=n + 1)

    return pipeline


async def _work(uri: str, database: str, pipeline: mongoq.Pipeline) -> None:
    async with mongoq.connect_async(uri, database=database) as broker, pipeline.start_async(broker) as run:
        await run.wait()


def main() -> None:
    uri, database, engine, records = sys.argv[1:]
    pipeline = feeding(int(records), every=0.05)
    if engine == "asyncio":
        asyncio.run(_work(uri, database, pipeline))
        return
    with mongoq.connect(uri, database=database) as broker, pipeline.start(broker) as run:
        run.wait()


if __name__ == "__main__":
    main()
