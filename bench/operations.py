"""The single operations: the calls of a user, and the state that each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import bson
from bson import ObjectId
from pymongo.collection import Collection

from bench.bare import HISTORY, LEASE
from mongoq.data.envelope import new_envelope
from mongoq.data.item import Item

__all__ = ["CALLS", "MINUTE_AGO", "OPERATIONS", "PAYLOAD_BYTES", "WORKER", "Operation", "Seed", "State", "payload"]

PAYLOAD_BYTES = 200
WORKER = "benchmark:12345:0123abcd"
MINUTE_AGO = timedelta(minutes=1)

State = Literal["empty", "ready", "reserved"]


def payload(number: int = 0) -> dict[str, Any]:
    """Return a small order that takes 200 bytes as BSON; orders of other numbers are other orders."""
    return {**_order(number), "note": PADDING}


def _order(number: int) -> dict[str, Any]:
    return {
        "order": 10_000_017 + number,
        "customer": "c-48151623",
        "express": True,
        "total": 129.9,
        "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}],
        "note": "",
    }


PADDING = "x" * (PAYLOAD_BYTES - len(bson.encode(_order(0))))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: its name in ``CALLS`` of both ways.
        state: what the queue holds before a block: nothing, ready items, or reservations to be settled.
        history: the queue keeps what is processed.
    """

    name: str
    state: State
    history: bool = False


OPERATIONS = (
    Operation("push", "empty"),
    Operation("pop", "ready"),
    Operation("pop with history", "ready", history=True),
    Operation("reserve", "ready"),
    Operation("commit", "reserved"),
    Operation("commit with history", "reserved", history=True),
    Operation("rollback", "reserved"),
    Operation("release", "reserved"),
    Operation("extend", "reserved"),
    Operation("move", "reserved"),
    Operation("bury", "reserved"),
    Operation("get", "ready"),
    Operation("peek(10)", "ready"),
)

CALLS: Mapping[str, Callable[[Any, Any], Any]] = {
    "push": lambda queue, value: queue.push(value),
    "pop": lambda queue, _: queue.pop(),
    "pop with history": lambda queue, _: queue.pop(),
    "reserve": lambda queue, _: queue.reserve(),
    "commit": lambda queue, item: queue.commit(item),
    "commit with history": lambda queue, item: queue.commit(item),
    "rollback": lambda queue, item: queue.rollback(item, error="bench"),
    "release": lambda queue, item: queue.release(item),
    "extend": lambda queue, item: queue.extend(item),
    "move": lambda queue, item: queue.move(item, "bench.elsewhere"),
    "bury": lambda queue, item: queue.bury(item, reason="bench"),
    "get": lambda queue, item: queue.get(item.id),
    "peek(10)": lambda queue, _: queue.peek(10),
}
"""By the name of the operation: the call, given a queue (of either shell) and an item or a payload."""


class Seed:
    """Brings the queues of a collection into a state; both ways start from the very same documents."""

    def __init__(self, collection: Collection[Any]) -> None:
        self._collection = collection

    def state(self, operation: Operation, queue: str, n: int) -> list[dict[str, Any]]:
        """Empty the collection but for its control documents, fill a queue, and return its envelopes."""
        self.clear({"$exists": True})
        if operation.state == "empty":
            return []
        now = datetime.now(UTC)
        documents = [_envelope(queue, now - MINUTE_AGO) for _ in range(n)]
        if operation.state == "reserved":
            documents = [{**document, **_lease(now), "token": ObjectId()} for document in documents]
        self._collection.insert_many(documents)
        return documents

    def batches(self, state: State, queue: str, n: int, size: int) -> list[list[dict[str, Any]]]:
        """Do the same for ``n`` batches, each reserved under one token."""
        self.clear({"$exists": True})
        if state == "empty":
            return [[] for _ in range(n)]
        now = datetime.now(UTC)
        batches = []
        for token in [ObjectId() for _ in range(n)]:
            lease = {**_lease(now), "token": token, "batch": token} if state == "reserved" else {}
            batches.append([{**_envelope(queue, now - MINUTE_AGO), **lease} for _ in range(size)])
        self._collection.insert_many([document for batch in batches for document in batch])
        return batches

    def history(self, queue: str, n: int) -> None:
        """Do the same for a queue that has processed ``n`` items, one every millisecond."""
        self.clear({"$exists": True})
        now = datetime.now(UTC)
        documents = []
        for number in range(n):
            at, token = now - MINUTE_AGO + timedelta(milliseconds=number), ObjectId()
            marks = {"processed": at, "expires": now + HISTORY, "settled": token, "by": WORKER, "attempts": 1}
            document = {**_envelope(queue, at), **marks}
            del document["when"]
            documents.append(document)
        self._collection.insert_many(documents)

    def clear(self, queue: Any) -> None:
        """Remove the items of a queue that match the condition."""
        self._collection.delete_many({"q": queue})

    def items(self, documents: list[dict[str, Any]], *, apart: timedelta = timedelta(0)) -> list[Item[Any]]:
        """Return the items that ``reserve`` would have returned; their due times are ``apart`` from each other."""
        now = datetime.now(UTC)
        namespace, first = self._collection.full_name, now - MINUTE_AGO
        return [
            Item(each, each["payload"], now, namespace, first + place * apart) for place, each in enumerate(documents)
        ]


def _lease(now: datetime) -> dict[str, Any]:
    return {"reserved": True, "by": WORKER, "attempts": 1, "when": now + LEASE}


def _envelope(queue: str, when: datetime) -> dict[str, Any]:
    return new_envelope(queue, payload(), id=ObjectId(), when=when, priority=0, headers=None, once=None)
