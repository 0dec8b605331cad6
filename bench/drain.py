"""``python -m bench.drain WAY URI DATABASE COLLECTION``: empties the queue of a burn-down in a process of its own.

It prints how many items were deleted, its start, and the time of the last delete, by the machine's clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from pymongo import AsyncMongoClient, MongoClient

from bench import bare_many
from bench.bare import Bare
from bench.shells import bare_collection
from bench.watched import Watched
from mongoq import AsyncBroker, AsyncWorker, Broker, Worker

__all__ = ["CONCURRENCY", "QUEUE", "WAYS"]

QUEUE = "bench.burn"
CONCURRENCY = 8
BATCH = 100
"""Payloads that a handler of batches takes."""
CLAIM = 1_000
"""Items of a claim of the bare loop."""


def deletes(event: Any) -> bool:
    """Return whether a command deletes under a token."""
    return event.command_name == "delete" and "token" in event.command["deletes"][0]["q"]


class Drain:
    """The queue, and the listener to commands."""

    def __init__(self, uri: str, database: str, collection: str) -> None:
        self.settled = Watched(deletes)
        self._uri, self._database, self._collection = uri, database, collection

    def client(self) -> MongoClient[Any]:
        return MongoClient(self._uri, event_listeners=[self.settled])

    def client_aio(self) -> AsyncMongoClient[Any]:
        return AsyncMongoClient(self._uri, event_listeners=[self.settled])

    def collection(self, client: Any) -> Any:
        return client[self._database][self._collection]

    def bare(self, client: Any) -> Bare:
        return Bare(bare_collection(client, self._database, self._collection), QUEUE, "", "bench")

    def told(self, began: float) -> dict[str, Any]:
        return {"items": self.settled.done, "began": began, "ended": self.settled.last}


def begin() -> float:
    """Print ``ready``, and wait for a line."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.monotonic()


def bare(drain: Drain) -> float:
    with drain.client() as client:
        queue = drain.bare(client)
        queue.collection.find_one()
        began = begin()
        while documents := bare_many.reserve_many(queue, CLAIM):
            queue.collection.delete_many(_fence(documents))
        return began


def bare_aio(drain: Drain) -> float:
    async def run() -> float:
        async with drain.client_aio() as client:
            queue = drain.bare(client)
            await queue.collection.find_one()
            began = begin()
            while documents := await bare_many.reserve_many(queue, CLAIM):
                await queue.collection.delete_many(_fence(documents))
            return began

    return asyncio.run(run())


def _fence(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {"_id": {"$in": [document["_id"] for document in documents]}, "token": documents[0]["token"]}


def threads(drain: Drain, **options: Any) -> float:
    with drain.client() as client, Broker(drain.collection(client)) as broker:
        worker = Worker(broker)
        worker.consumer(QUEUE, concurrency=CONCURRENCY, **options)(_nothing)
        broker.ping()
        began = begin()
        worker.run(drain=True)
        return began


def batches(drain: Drain) -> float:
    return threads(drain, batch=BATCH)


def aio(drain: Drain, handler: Callable[[Any], Any] | None = None, **options: Any) -> float:
    async def run() -> float:
        async with drain.client_aio() as client, AsyncBroker(drain.collection(client)) as broker:
            worker = AsyncWorker(broker)
            worker.consumer(QUEUE, concurrency=CONCURRENCY, **options)(handler or _nothing_aio)
            await broker.ping()
            began = begin()
            await worker.run(drain=True)
            return began

    return asyncio.run(run())


def plain(drain: Drain) -> float:
    return aio(drain, _nothing)


def _nothing(_: Any) -> None:
    pass


async def _nothing_aio(_: Any) -> None:
    pass


WAYS: dict[str, Callable[[Drain], float]] = {
    "bare": bare,
    "bare-asyncio": bare_aio,
    "threads": threads,
    "asyncio": aio,
    "batches": batches,
    "plain": plain,
}
"""Each returns when it began."""


def main() -> None:
    way, uri, database, collection = sys.argv[1:]
    drain = Drain(uri, database, collection)
    began = WAYS[way](drain)
    print(json.dumps(drain.told(began)))


if __name__ == "__main__":
    main()
