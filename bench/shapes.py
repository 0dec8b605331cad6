"""``python -m bench.shapes SHAPE URI DATABASE COLLECTION ITEMS``: a pipeline of one part, in a process of its own.

It prints its start and the time of its last write, by the machine's clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo import MongoClient, WriteConcern

from bench.drain import begin
from bench.operations import payload
from bench.watched import Watched
from mongoq import Broker, Fork, Move, Pipeline, Record

__all__ = ["BACKWARDS", "INPUTS", "INSERTS", "OUTPUTS", "SHAPES"]

LEFT, RIGHT = SIDES = "bench.left", "bench.right"
INPUTS = {"move": ["bench.raw"], "fork": ["bench.raw"], "join": SIDES, "scattered": SIDES}
"""The queues that are filled before, by the shape."""
BACKWARDS = {"scattered": RIGHT}
"""A queue that is filled from the last to the first, by the shape: most items wait for their partners."""
OUTPUTS = ("bench.a", "bench.b")
CONCURRENCY = 8
BATCH = 100
INSERTED = 1_000
"""Records, or documents, at once."""


def writes(event: Any) -> bool:
    """Return whether a command moves items, or commits a transaction."""
    if event.command_name == "update":
        return "token" in event.command["updates"][0]["q"]
    return bool(event.command_name == "commitTransaction")


def move() -> Pipeline:
    """Move each item to one queue."""
    pipeline = Pipeline("bench", errors="bench.errors", outputs=OUTPUTS[0])
    pipeline.stage("bench.raw", to=OUTPUTS[0], concurrency=CONCURRENCY, batch=BATCH)(_same)
    return pipeline


def fork() -> Pipeline:
    """Fork each item into two."""
    pipeline = Pipeline("bench", errors="bench.errors", outputs=OUTPUTS)
    pipeline.stage("bench.raw", to=OUTPUTS, concurrency=CONCURRENCY, batch=BATCH)(_double)
    return pipeline


def join() -> Pipeline:
    """Join two items into one."""
    pipeline = Pipeline("bench", errors="bench.errors", outputs=OUTPUTS[0])
    pipeline.join(SIDES, to=OUTPUTS[0], on="order", concurrency=CONCURRENCY, batch=BATCH)(_firsts)
    return pipeline


def source(items: int) -> Pipeline:
    """Write records from a source."""
    pipeline = Pipeline("bench", outputs=OUTPUTS[0])

    @pipeline.source(to=OUTPUTS[0], batch=INSERTED)
    def records(position: int | None) -> Iterator[Record]:
        for number in range(position or 0, items):
            yield Record(payload(number), position=number + 1)

    return pipeline


def inserts(collection: Any, items: int) -> tuple[float, float]:
    """Insert as many with the bare driver; return the start and the end."""
    bare = collection.with_options(write_concern=WriteConcern(w="majority"))
    bare.insert_one({})
    began = begin()
    for start in range(0, items, INSERTED):
        now = datetime.now(UTC)
        bare.insert_many([_document(number, now) for number in range(start, min(items, start + INSERTED))])
    return began, time.monotonic()


def _document(number: int, now: datetime) -> dict[str, Any]:
    head = {"q": OUTPUTS[0], "payload": payload(number), "when": now, "priority": 0, "attempts": 0, "reserved": False}
    return {"_id": ObjectId(), **head}


def _same(payloads: list[Any]) -> list[Any]:
    return payloads


def _double(payloads: list[Any]) -> list[Fork]:
    return [Fork([Move(queue) for queue in OUTPUTS]) for _ in payloads]


def _firsts(pairs: list[Any]) -> list[Any]:
    return [left for left, _right in pairs]


SHAPES: dict[str, Callable[[int], Pipeline]] = {
    "move": lambda _: move(),
    "fork": lambda _: fork(),
    "join": lambda _: join(),
    "scattered": lambda _: join(),
    "source": source,
}
INSERTS = "inserts"


def main() -> None:
    shape, uri, database, collection, items = sys.argv[1:]
    written = Watched(writes)
    with MongoClient[Any](uri, event_listeners=[written]) as client:
        if shape == INSERTS:
            began, ended = inserts(client[database][collection], int(items))
            print(json.dumps({"began": began, "ended": ended}))
            return
        broker = Broker(client[database][collection])
        broker.ping()
        pipeline = SHAPES[shape](int(items))
        began = begin()
        pipeline.drain(broker)
        broker.close()
    print(json.dumps({"began": began, "ended": written.last}))


if __name__ == "__main__":
    main()
