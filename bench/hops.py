"""``python -m bench.hops WAY URI DATABASE COLLECTION``: takes items through four queues in a process of its own.

It prints the number of hops, its start, and the time of the last hop, by the machine's clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pymongo import AsyncMongoClient, MongoClient, UpdateOne

from bench import bare_many
from bench.bare import Bare
from bench.drain import begin
from bench.shells import bare_collection
from bench.watched import Watched
from mongoq import AsyncBroker, Broker, Pipeline

__all__ = ["CONCURRENCY", "LINE", "WAYS"]

LINE = [f"bench.hop{place}" for place in range(5)]
"""The queues: four hops."""
CONCURRENCY = 8
BATCH = 100
"""Payloads that a stage of batches takes."""
CLAIM = 1_000
"""Items of a claim of the bare loop."""


def moves(event: Any) -> bool:
    """Return whether a command moves under a token."""
    if event.command_name != "update":
        return False
    first = event.command["updates"][0]
    return "token" in first["q"] and "q" in first["u"].get("$set", {})


class Way:
    """The place of the queues, and the listener to commands."""

    def __init__(self, uri: str, database: str, collection: str) -> None:
        self.moved = Watched(moves)
        self.uri, self.database, self.collection = uri, database, collection


def bare(way: Way) -> float:
    """Claim and move, queue by queue: the two commands and the read between them, nothing else."""
    with MongoClient[Any](way.uri, event_listeners=[way.moved]) as client:
        collection = bare_collection(client, way.database, way.collection)
        collection.find_one()
        began = begin()
        for source, target in itertools.pairwise(LINE):
            queue = Bare(collection, source, "", "bench")
            while documents := bare_many.reserve_many(queue, CLAIM):
                collection.bulk_write([_hop(document, target) for document in documents], ordered=False)
        return began


def _hop(document: dict[str, Any], target: str) -> UpdateOne:
    changes = {
        "q": target,
        "payload": document["payload"],
        "when": datetime.now(UTC),
        "reserved": False,
        "attempts": 0,
    }
    unset = dict.fromkeys(("token", "error", "batch", "key"), "")
    return UpdateOne({"_id": document["_id"], "token": document["token"]}, {"$set": changes, "$unset": unset})


def threads(way: Way, **options: Any) -> float:
    with MongoClient[Any](way.uri, event_listeners=[way.moved]) as client:
        broker = Broker(client[way.database][way.collection])
        broker.ping()
        pipeline = line(_same, **options)
        began = begin()
        pipeline.drain(broker)
        broker.close()
        return began


def batches(way: Way) -> float:
    return threads(way, batch=BATCH)


def trailed(way: Way) -> float:
    return threads(way, trail=True)


def aio(way: Way) -> float:
    async def run() -> float:
        async with AsyncMongoClient[Any](way.uri, event_listeners=[way.moved]) as client:
            broker = AsyncBroker(client[way.database][way.collection])
            await broker.ping()
            pipeline = line(_same_aio)
            began = begin()
            await pipeline.drain_async(broker)
            await broker.close()
            return began

    return asyncio.run(run())


def line(handler: Callable[[Any], Any], *, trail: bool = False, batch: int | None = None) -> Pipeline:
    pipeline = Pipeline("bench", errors="bench.errors", outputs=LINE[-1], trail=trail)
    for place, (source, target) in enumerate(itertools.pairwise(LINE)):
        stage = pipeline.stage(source, to=target, name=f"stage{place}", concurrency=CONCURRENCY, batch=batch)
        stage(handler)
    return pipeline


def _same(payload: Any) -> Any:
    return payload


async def _same_aio(payload: Any) -> Any:
    return payload


WAYS: dict[str, Callable[[Way], float]] = {
    "bare": bare,
    "threads": threads,
    "asyncio": aio,
    "batches": batches,
    "trail": trailed,
}
"""Each returns when it began."""


def main() -> None:
    name, *where = sys.argv[1:]
    way = Way(*where)
    began = WAYS[name](way)
    print(json.dumps({"items": way.moved.done, "began": began, "ended": way.moved.last}))


if __name__ == "__main__":
    main()
