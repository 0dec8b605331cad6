"""``python working.py URI DATABASE ENGINE``: works on the graph until it is killed."""

from __future__ import annotations

import asyncio
import sys

import mongoq
from tests.pipeline.graphs import graph

LEASE, SECONDS = 0.6, 0.003


async def _work(uri: str, database: str) -> None:
    pipeline = graph(seconds=SECONDS, lease=LEASE)
    async with mongoq.connect_async(uri, database=database) as broker, pipeline.start_async(broker) as run:
        await run.wait()


def main() -> None:
    uri, database, engine = sys.argv[1:]
    if engine == "asyncio":
        asyncio.run(_work(uri, database))
        return
    with mongoq.connect(uri, database=database) as broker, graph(seconds=SECONDS, lease=LEASE).start(broker) as run:
        run.wait()


if __name__ == "__main__":
    main()
