"""What processes do that are going to be killed: they work on the graph."""

from __future__ import annotations

import asyncio

import mongoq
from tests.pipeline.graphs import graph

__all__ = ["LEASE", "ROLES"]

LEASE, SECONDS = 0.6, 0.003


def work(*, uri: str, database: str, engine: str) -> None:
    """Work on the graph with one of the engines, until the end."""
    if engine == "asyncio":
        asyncio.run(_worked(uri, database))
        return
    with mongoq.connect(uri, database=database) as broker, graph(seconds=SECONDS, lease=LEASE).start(broker) as run:
        run.wait()


async def _worked(uri: str, database: str) -> None:
    pipeline = graph(seconds=SECONDS, lease=LEASE)
    async with mongoq.connect_async(uri, database=database) as broker, pipeline.start_async(broker) as run:
        await run.wait()


ROLES = {"work": work}
