"""One item, pushed by one process and picked up by a waiting one: with mongoq, and by hand in two ways."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.write_concern import WriteConcern

import mongoq
from bench import bare
from bench.bare import Bare, Held

__all__ = ["WAYS", "Producer", "Way"]

QUEUE = "line"
MARK = "mark:line"
PATIENCE = 30.0
MAJORITY = WriteConcern(w="majority")


class Way(Protocol):
    """A consumer; ``take`` waits for an item, settles it after the time was taken, and returns when that was."""

    def take(self) -> tuple[int, int]:
        """Return when the item was pushed and when it was there, in nanoseconds of the clock of all processes."""
        ...

    def close(self) -> None: ...


class _Bare:
    """The bare loop: an insert, the event of the change stream, and ``find_one_and_update``."""

    pipeline: tuple[Mapping[str, Any], ...] = ({"$match": {"operationType": "insert"}},)

    def __init__(self, uri: str, database: str, collection: str) -> None:
        self._client: MongoClient[Any] = MongoClient(uri, tz_aware=True)
        self._collection = self._client[database].get_collection(collection, write_concern=MAJORITY)
        self._queue = Bare(self._collection, QUEUE, "", "bench")
        self._stream = self._collection.watch(list(self.pipeline))

    def take(self) -> tuple[int, int]:
        self._stream.next()
        document = bare.reserve(self._queue, None)
        arrived = time.monotonic_ns()
        token = self._collection.find_one({"_id": document["_id"]})
        assert token is not None
        bare.commit(self._queue, Held(document["_id"], token["token"], document["when"]))
        return document["payload"], arrived

    def close(self) -> None:
        self._stream.close()
        self._client.close()


class _Marked(_Bare):
    """The same with a control document that is written after each insert, and a change stream on that document only."""

    pipeline = ({"$match": {"documentKey._id": MARK}},)


class _Threads:
    def __init__(self, uri: str, database: str, collection: str) -> None:
        self._client: MongoClient[Any] = MongoClient(uri)
        self._broker = mongoq.Broker(self._client[database][collection])
        self._queue = self._broker.queue(QUEUE)

    def take(self) -> tuple[int, int]:
        item = self._queue.reserve(wait=PATIENCE)
        arrived = time.monotonic_ns()
        assert item is not None
        self._queue.commit(item)
        return item.payload, arrived

    def close(self) -> None:
        self._broker.close()
        self._client.close()


class _Asyncio:
    def __init__(self, uri: str, database: str, collection: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        self._broker = mongoq.AsyncBroker(self._client[database][collection])
        self._queue = self._broker.queue(QUEUE)

    def take(self) -> tuple[int, int]:
        return self._loop.run_until_complete(self._take())

    async def _take(self) -> tuple[int, int]:
        item = await self._queue.reserve(wait=PATIENCE)
        arrived = time.monotonic_ns()
        assert item is not None
        await self._queue.commit(item)
        return item.payload, arrived

    def close(self) -> None:
        self._loop.run_until_complete(self._broker.close())
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


WAYS: Mapping[str, Callable[[str, str, str], Way]] = {
    "bare": _Bare,
    "bare, with a mark": _Marked,
    "sync": _Threads,
    "asyncio": _Asyncio,
}


class Producer:
    """Another process, which pushes one item on request, when the consumer is idle."""

    def __init__(self, uri: str, database: str, collections: Mapping[str, str]) -> None:
        here = multiprocessing.get_context("spawn")
        self._orders, theirs = here.Pipe()
        self._process = here.Process(target=_produce, args=(uri, database, dict(collections), theirs), daemon=True)
        self._process.start()

    def order(self, way: str, rest: float) -> None:
        """Request one item, pushed slightly more than the given seconds from now."""
        self._orders.send((way, rest * random.uniform(1.0, 1.5)))

    def close(self) -> None:
        self._orders.send(None)
        self._process.join()


def _produce(uri: str, database: str, collections: Mapping[str, str], orders: Any) -> None:
    with _pushes(uri, database, collections) as pushes:
        while (order := orders.recv()) is not None:
            way, rest = order
            time.sleep(rest)
            pushes[way](time.monotonic_ns())


@contextmanager
def _pushes(uri: str, database: str, collections: Mapping[str, str]) -> Iterator[Mapping[str, Callable[[int], Any]]]:
    with MongoClient[Any](uri) as client:
        handles = {
            way: client[database].get_collection(name, write_concern=MAJORITY) for way, name in collections.items()
        }
        queues = {way: mongoq.Broker(handle).queue(QUEUE) for way, handle in handles.items()}

        def by_hand(way: str, at: int) -> None:
            bare.push(Bare(handles[way], QUEUE, "", "bench"), at)
            if way != "bare":
                mark = {"$set": {"at": datetime.now(UTC), "n": ObjectId()}}
                handles[way].update_one({"_id": MARK}, mark, upsert=True)

        yield {way: partial(by_hand, way) if way.startswith("bare") else queues[way].push for way in collections}
