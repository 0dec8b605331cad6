"""Threads that share a broker, with group commit and without: the callers of ``bench.group_commit`` in sync Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pymongo import MongoClient

from bench.operations import payload
from bench.place import Place
from mongoq import Broker, Queue

__all__ = ["threads_rate"]

MOST = 10_000
"""Items that threads may come to in a second."""


def threads_rate(here: Place, operation: str, callers: int, seconds: float, *, shared: bool) -> float:
    """Return how many items a second the threads push, or reserve and commit."""
    with (
        MongoClient[Any](here.uri, maxPoolSize=None) as client,
        Broker(client[here.database][here.collection], group_commit=shared) as broker,
        ThreadPoolExecutor(callers) as threads,
    ):
        queue = broker.queue("bench.group", lease=600)
        queue.purge()
        if operation != "push":
            for _ in range(max(round(seconds), 1)):
                queue.push_many([payload()] * MOST)
        step = _push if operation == "push" else _reserve_and_commit
        step(queue)
        began = time.perf_counter()
        done = sum(threads.map(_loop_count, [step] * callers, [queue] * callers, [began + seconds] * callers))
        return done / (time.perf_counter() - began)


def _loop_count(step: Callable[[Queue[Any]], None], queue: Queue[Any], until: float) -> int:
    done = 0
    while time.perf_counter() < until:
        step(queue)
        done += 1
    return done


def _push(queue: Queue[Any]) -> None:
    queue.push(payload())


def _reserve_and_commit(queue: Queue[Any]) -> None:
    item = queue.reserve()
    if item is None:
        raise RuntimeError("the queue ran empty; give fewer --seconds")
    queue.commit(item)
