"""A worker: consumes both queues, in threads or on asyncio."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import Any, Literal

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.crash.handler import AsyncHandler, Handler
from tests.crash.stations import FIRST, LEASE, SECOND

__all__ = ["Engine", "work"]

Engine = Literal["threads", "asyncio"]
RETRY = mongoq.Exponential(base=0.05, cap=1, jitter=0.1)


def work(uri: str, database: str, engine: Engine, seed: int) -> None:
    """Work until the end of this process."""
    logging.getLogger("mongoq.worker").addFilter(_shorten)
    chance = random.Random(seed)
    if engine == "threads":
        _work(MongoClient(uri)[database], chance)
    else:
        asyncio.run(_work_async(uri, database, chance))


def _shorten(record: logging.LogRecord) -> bool:
    """Leave out the tracebacks of handlers, which fail on purpose, and with the server; others are faults of mongoq."""
    if " has failed in run " in record.getMessage():
        record.exc_info = None
    return True


def _work(database: Any, chance: random.Random) -> None:
    worker, handler = mongoq.Worker(mongoq.Broker(database["mongoq"])), Handler(database, chance)
    for queue in (FIRST, SECOND):
        worker.consumer(queue, **_options(chance))(handler)
    while not handler.at_work:
        with suppress(PyMongoError):  # the server was away at the start; a worker that has been at work bears with that
            worker.run()


async def _work_async(uri: str, name: str, chance: random.Random) -> None:
    database: Any = AsyncMongoClient(uri)[name]
    worker, handler = mongoq.AsyncWorker(mongoq.AsyncBroker(database["mongoq"])), AsyncHandler(database, chance)
    for queue in (FIRST, SECOND):
        worker.consumer(queue, **_options(chance))(handler)
    while not handler.at_work:
        with suppress(PyMongoError):
            await worker.run()


def _options(chance: random.Random) -> dict[str, Any]:
    """Return how a queue is consumed. What a killed worker had reserved ahead runs alone later, so not all do that."""
    return {"concurrency": 8, "lease": LEASE, "retry": RETRY, "prefetch": chance.choice((None, 0))}
