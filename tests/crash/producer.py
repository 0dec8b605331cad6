"""A producer: pushes, one by one and in batches, and writes down what was acknowledged."""

from __future__ import annotations

import itertools
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.crash.ledger import Ledger
from tests.crash.stations import FIRST, new_payload

__all__ = ["produce"]

PAUSE = (0.0, 0.1)
BATCH = 5
MAX_BACKLOG = 60
"""Items that wait before no more are pushed: so the processes come to an end soon when none is killed any more."""


def produce(uri: str, database: str, ledger: str, seed: int) -> None:
    """Push until the end of this process."""
    chance, acknowledged = random.Random(seed), Ledger(Path(ledger))
    client: MongoClient[Any] = MongoClient(uri)
    queue = mongoq.Broker(client[database]["mongoq"]).queue(FIRST)
    for number in itertools.count():
        with suppress(PyMongoError):
            while number % 10 == 0 and queue.size() > MAX_BACKLOG:
                time.sleep(PAUSE[1])
            acknowledged.write(_push(queue, chance, number))
        time.sleep(chance.uniform(*PAUSE))


def _push(queue: mongoq.Queue[Any], chance: random.Random, number: int) -> list[ObjectId]:
    """Push, and return the ids that were acknowledged. What an error leaves open is not pushed again."""
    payloads = [new_payload(chance, f"{ObjectId()}") for _ in range(BATCH)]
    if number % 10:
        delay = chance.uniform(0, 1) if chance.random() < 0.2 else None
        return [queue.push(payloads[0], delay=delay, priority=chance.randint(-1, 1))]
    try:
        return queue.push_many(payloads)
    except mongoq.BatchIncomplete as incomplete:
        return incomplete.done
