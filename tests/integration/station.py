"""What processes do that are going to be killed.

Each appends a line to its log for each operation that was acknowledged to it, and goes on until it dies.
"""

from __future__ import annotations

import math
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pymongo.errors import ConnectionFailure

import mongoq

__all__ = ["ROLES"]

LEASE = 0.5


def produce(broker: mongoq.Broker, log: int, chance: random.Random) -> None:
    queue = broker.queue("a")
    while True:
        id = queue.push({"hops": 0}, priority=chance.randint(-2, 2))
        os.write(log, f"{id}\n".encode())


def hop(broker: mongoq.Broker, log: int, chance: random.Random) -> None:
    queue = broker.queue("a", lease=LEASE, max_retries=None)
    while True:
        item = queue.reserve(wait=math.inf)
        assert item is not None
        if chance.random() < 0.1:
            queue.rollback(item, error="again")
            continue
        try:
            queue.move(item, "b", patch={"$inc": {"hops": 1}})
        except mongoq.ReservationLost:
            continue
        os.write(log, f"{item.id}\n".encode())


def finish(broker: mongoq.Broker, log: int, chance: random.Random) -> None:
    queue = broker.queue("b", lease=LEASE, history=3600, max_retries=None)
    while True:
        if chance.random() < 0.2:
            item = queue.pop()
            if item is None:
                continue
        else:
            item = queue.reserve(wait=math.inf)
            assert item is not None
            try:
                queue.commit(item)
            except mongoq.ReservationLost:
                continue
        os.write(log, f"{item.id}\n".encode())


def work(
    role: Callable[[mongoq.Broker, int, random.Random], None], *, uri: str, database: str, log: str, seed: float
) -> None:
    """Play a role until the end, which comes soon when the server has gone."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with suppress(ConnectionFailure), mongoq.connect(uri, database=database) as broker:
        role(broker, file, random.Random(seed))
    signal.pause()


ROLES = {role.__name__: partial(work, role) for role in (produce, hop, finish)}
