"""A process that is going to be killed: ``python station.py ROLE URI DATABASE LOG SEED``.

It appends a line to its log for each operation that was acknowledged to it, and goes on until it dies.
"""

from __future__ import annotations

import math
import os
import random
import sys

import mongoq

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


ROLES = {"produce": produce, "hop": hop, "finish": finish}


def main(role: str, uri: str, database: str, path: str, seed: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with mongoq.connect(uri, database=database) as broker:
        ROLES[role](broker, log, random.Random(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
