"""A consumer of items in sequences, in one of five ways; whatever it does is noted."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.crash.ordered.line import LEASE, QUEUE, decide
from tests.crash.ordered.notes import Notes

__all__ = ["WAYS", "WORKERS", "consume"]

WORK = (0.0, 0.02)
RETRY = mongoq.Exponential(base=0.05, cap=0.3, jitter=0.1)
ERRORS = (PyMongoError, mongoq.ReservationLost, mongoq.BatchIncomplete)


def consume(uri: str, database: str, ledger: str, way: str, seed: int) -> None:
    """Consume until the end of this process."""
    faulthandler.register(signal.SIGUSR1)  # tells in the log where it stands
    logging.getLogger("mongoq.worker").addFilter(_shorten)
    chance, notes = random.Random(seed), Notes(Path(ledger), seed)
    if way == "asyncio":
        asyncio.run(_work_on_asyncio(uri, database, chance, notes))
        return
    broker = mongoq.Broker(MongoClient[Any](uri)[database]["mongoq"])
    while True:
        with suppress(*ERRORS):
            WAYS[way](broker, chance, notes)


def _shorten(record: logging.LogRecord) -> bool:
    """Leave out the tracebacks of handlers, which fail on purpose; others are faults of mongoq."""
    if " has failed in run " in record.getMessage():
        record.exc_info = None
    return True


def _begin(item: mongoq.Item[Any], notes: Notes) -> None:
    assert item.lease_until is not None
    rest = (item.lease_until - datetime.now(UTC)).total_seconds()
    more = {"until": time.monotonic() + rest, "handed": item.due == item.read_at}
    notes.write("began", [item.payload["serial"]], item.sequence, **more)


def _handle(item: mongoq.Item[Any], chance: random.Random, notes: Notes) -> str:
    _begin(item, notes)
    time.sleep(chance.uniform(*WORK))
    outcome = decide(item)
    notes.write("ended", [item.payload["serial"]], outcome=outcome)
    return outcome


def _consume_singly(broker: mongoq.Broker, chance: random.Random, notes: Notes) -> None:
    queue = broker.queue(QUEUE)
    item = queue.reserve(wait=1)
    if item is None:
        return
    if _handle(item, chance, notes) == "fail":
        if item.attempts > 1 and chance.random() < 0.3:
            queue.bury(item, reason="given up")
        else:
            queue.rollback(item, error="failed", delay=0.05)
    else:
        queue.commit(item)
        notes.write("settled", [item.payload["serial"]])


def _consume_batch(broker: mongoq.Broker, chance: random.Random, notes: Notes) -> None:
    queue = broker.queue(QUEUE)
    items = queue.reserve_many(chance.randint(1, 60), wait=1)
    outcomes = [_handle(item, chance, notes) for item in items]
    done = [item for item, outcome in zip(items, outcomes, strict=True) if outcome == "done"]
    failed = [item for item, outcome in zip(items, outcomes, strict=True) if outcome == "fail"]
    if failed:
        queue.rollback_many(failed, error="failed", delay=0.05)
    if done:
        queue.commit_many(done)
        notes.write("settled", [item.payload["serial"] for item in done])


def _pop(broker: mongoq.Broker, chance: random.Random, notes: Notes) -> None:
    notes.write("pop")
    try:
        item = broker.queue(QUEUE).pop()
    except PyMongoError:
        notes.write("broken")
        raise
    if item is None:
        notes.write("popped")
        time.sleep(chance.uniform(*WORK))
    else:
        notes.write("popped", [item.payload["serial"]], item.sequence)


def _work_in_threads(broker: mongoq.Broker, chance: random.Random, notes: Notes) -> None:
    worker = mongoq.Worker(broker)

    @worker.consumer(QUEUE, concurrency=8, lease=LEASE, retry=RETRY, prefetch=chance.choice((None, 0)))
    def handle(payload: Any, job: mongoq.Job) -> None:
        if _handle(job.item, chance, notes) == "fail":
            raise RuntimeError("failed")

    worker.run()


async def _work_on_asyncio(uri: str, name: str, chance: random.Random, notes: Notes) -> None:
    database: Any = AsyncMongoClient(uri)[name]
    worker = mongoq.AsyncWorker(mongoq.AsyncBroker(database["mongoq"]))

    @worker.consumer(QUEUE, concurrency=16, lease=LEASE, retry=RETRY, prefetch=chance.choice((None, 0)))
    async def handle(payload: Any, job: mongoq.AsyncJob) -> None:
        _begin(job.item, notes)
        await asyncio.sleep(chance.uniform(*WORK))
        outcome = decide(job.item)
        notes.write("ended", [payload["serial"]], outcome=outcome)
        if outcome == "fail":
            raise RuntimeError("failed")

    while True:
        with suppress(PyMongoError):  # the server was away at the start
            await worker.run()


WORKERS = ("threads", "asyncio")
WAYS: dict[str, Callable[[mongoq.Broker, random.Random, Notes], None]] = {
    "singly": _consume_singly,
    "batches": _consume_batch,
    "pops": _pop,
    "threads": _work_in_threads,
}
