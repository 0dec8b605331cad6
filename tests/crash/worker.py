"""A worker: takes items from both queues, in several threads or tasks, and settles them as their handler decides."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any, Literal

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.crash.handler import AsyncHandler, Handler
from tests.crash.stations import FIRST, HOPELESS, SECOND, Decision, backoff

__all__ = ["Engine", "work"]

Engine = Literal["threads", "asyncio"]
CONCURRENCY = 4


def work(uri: str, database: str, engine: Engine, seed: int) -> None:
    """Work until the end of this process."""
    if engine == "threads":
        _work(MongoClient(uri)[database], random.Random(seed))
    else:
        asyncio.run(_work_async(uri, database, random.Random(seed)))


def _work(database: Any, chance: random.Random) -> None:
    broker, handle = mongoq.Broker(database["mongoq"]), Handler(database, chance)
    queues = [broker.queue(name) for name in (FIRST, SECOND)]
    threads = [threading.Thread(target=_consume, args=(queue, handle)) for queue in queues for _ in range(CONCURRENCY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _consume(queue: mongoq.Queue[Any], handle: Handler) -> None:
    while True:
        try:
            item = queue.reserve(wait=5)
            if item is not None:
                _settle(queue, item, handle(item))
        except (mongoq.ReservationLost, PyMongoError):  # the item is handed out again when its lease is over
            continue


async def _work_async(uri: str, database: str, chance: random.Random) -> None:
    opened: Any = AsyncMongoClient(uri)[database]
    broker, handle = mongoq.AsyncBroker(opened["mongoq"]), AsyncHandler(opened, chance)
    queues = [broker.queue(name) for name in (FIRST, SECOND)]
    await asyncio.gather(*(_consume_async(queue, handle) for queue in queues for _ in range(CONCURRENCY)))


async def _consume_async(queue: mongoq.AsyncQueue[Any], handle: AsyncHandler) -> None:
    while True:
        try:
            item = await queue.reserve(wait=5)
            if item is not None:
                await _settle(queue, item, await handle(item))
        except (mongoq.ReservationLost, PyMongoError):
            continue


def _settle(queue: Any, item: mongoq.Item[Any], decision: Decision) -> Any:
    """Settle an item; of an asynchronous queue, return what is to be awaited.

    What is written names the token of this run: in the payload that moves on, in the error, in the reason.
    """
    match decision:
        case "done" if queue.name == FIRST:
            patch = {"$inc": {"hops": 1}, "$set": {"mover": item.token}}
            return queue.move(item, SECOND, patch=patch, delay=0.2 if item.payload["trouble"] == "patient" else None)
        case "done":
            return queue.commit(item)
        case "fail":
            return queue.rollback(item, error=f"failed {item.token}", delay=backoff(item.attempts))
        case "retry":
            return queue.rollback(item, delay=0.2)
        case "dead":
            return queue.bury(item, reason=f"{HOPELESS} {item.token}")
