"""What processes do in the proof: drain a graph, and die of it, or work on one until they are killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.pipeline.proof.catalogue import GRAPHS
from tests.pipeline.proof.death import Death, Side

__all__ = ["DATABASE", "ROLES"]

DATABASE = "proof"


def drain(
    *,
    uri: str,
    collection: str,
    graph: str,
    engine: str,
    place: int | None = None,
    side: Side = "before",
    report: str | None = None,
) -> None:
    """Drain a graph; die before or after the command in a place, or report the commands."""
    death = Death(place, side)
    pipeline = GRAPHS[graph].pipeline()
    if engine == "asyncio":
        asyncio.run(_drained(uri, collection, pipeline, death))
    else:
        with MongoClient[Any](uri, event_listeners=[death]) as client:
            pipeline.drain(mongoq.Broker(client[DATABASE][collection]))
    if report is not None:
        death.write(Path(report))


async def _drained(uri: str, collection: str, pipeline: mongoq.Pipeline, death: Death) -> None:
    async with AsyncMongoClient[Any](uri, event_listeners=[death]) as client:
        await pipeline.drain_async(mongoq.AsyncBroker(client[DATABASE][collection]))


def work(*, uri: str, collection: str, graph: str, engine: str) -> None:
    """Work on a graph for ever; a server that is away at the start is tried again."""
    pipeline = GRAPHS[graph].pipeline()
    if engine == "asyncio":
        asyncio.run(_worked(uri, collection, pipeline))
    with MongoClient[Any](uri) as client:
        while True:
            with suppress(PyMongoError), pipeline.start(mongoq.Broker(client[DATABASE][collection])) as run:
                run.wait()


async def _worked(uri: str, collection: str, pipeline: mongoq.Pipeline) -> None:
    async with AsyncMongoClient[Any](uri) as client:
        while True:
            with suppress(PyMongoError):
                async with pipeline.start_async(mongoq.AsyncBroker(client[DATABASE][collection])) as run:
                    await run.wait()


ROLES = {"drain": drain, "work": work}
