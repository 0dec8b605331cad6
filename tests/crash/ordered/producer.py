"""A producer of items in sequences: one by one, in batches, and in transactions of its own; each is noted."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.crash.ordered.line import MAX_BACKLOG, QUEUE, SEQUENCES, choose_expiry, new_payload
from tests.crash.ordered.notes import Notes

__all__ = ["produce"]

BATCH = 60
HOT = 5
"""Sequences that get a third of all items, so that their last item often leaves while the next one comes."""


def produce(uri: str, database: str, ledger: str, seed: int, sequences: int) -> None:
    """Push into so many sequences until the end of this process."""
    chance, notes = random.Random(seed), Notes(Path(ledger), seed)
    client: MongoClient[Any] = MongoClient(uri)
    broker = mongoq.Broker(client[database]["mongoq"])
    queue = broker.queue(QUEUE)
    for number in itertools.count():
        try:
            while number % 5 == 0 and queue.counts().total > MAX_BACKLOG:
                time.sleep(0.1)
            chosen = [_choose(chance, sequences) for _ in range(BATCH if number % 5 == 0 else 1)]
            _push(broker, chance, notes, f"{seed}-{number}", chosen)
        except (PyMongoError, mongoq.BatchIncomplete):
            time.sleep(0.05)  # what it leaves open is not pushed again


def _push(broker: mongoq.Broker, chance: random.Random, notes: Notes, name: str, sequences: list[str]) -> None:
    queue = broker.queue(QUEUE)
    payloads = [new_payload(chance, f"{name}-{place}") for place in range(len(sequences))]
    expires = [choose_expiry(chance) for _ in payloads]
    serials = [payload["serial"] for payload in payloads]
    for serial, sequence, within in zip(serials, sequences, expires, strict=True):
        notes.write("push", [serial], sequence, expires=within is not None)
    if len(sequences) > 1:
        queue.push_many(payloads, sequences=sequences, expires=expires)
    elif chance.random() < 0.25:
        with broker.transaction() as tx:
            queue.push(payloads[0], sequence=sequences[0], expires=expires[0], session=tx.session)
    else:
        queue.push(payloads[0], sequence=sequences[0], expires=expires[0], priority=chance.randint(-1, 1))
    notes.write("pushed", serials)


def _choose(chance: random.Random, most: int) -> str:
    return SEQUENCES[chance.randrange(min(HOT, most) if chance.random() < 0.33 else most)]
