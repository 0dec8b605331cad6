"""Plain queues in a process of its own, so that another checkout of mongoq can be measured: prints items per second.

Usage: ``plain_loop.py URI DATABASE COLLECTION SECONDS``, with the checkout in ``PYTHONPATH``.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

from pymongo import MongoClient

import mongoq

BATCH = 500


def measure_singly(queue: mongoq.Queue[Any], seconds: float) -> float:
    number, began = 0, perf_counter()
    while perf_counter() < began + seconds:
        queue.push("x" * 200)
        item = queue.reserve()
        assert item is not None
        queue.commit(item)
        number += 1
    return number / (perf_counter() - began)


def measure_batches(queue: mongoq.Queue[Any], seconds: float) -> float:
    number, began = 0, perf_counter()
    while perf_counter() < began + seconds:
        queue.push_many(["x" * 200] * BATCH)
        items = queue.reserve_many(BATCH)
        queue.commit_many(items)
        number += len(items)
    return number / (perf_counter() - began)


def main(uri: str, database: str, collection: str, seconds: float) -> None:
    with MongoClient[Any](uri) as client, mongoq.Broker(client[database][collection]) as broker:
        queue = broker.queue("plain")
        measure_singly(queue, 0.2)
        rates = {"singly": measure_singly(queue, seconds), "batches": measure_batches(queue, seconds)}
    print(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
