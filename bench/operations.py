"""The single operations: what a user of mongoq calls, and the state each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import bson
from bson import ObjectId
from pymongo.collection import Collection

from bench.bare import LEASE
from mongoq.model.envelope import new_envelope
from mongoq.model.item import Item

__all__ = ["CALLS", "OPERATIONS", "PAYLOAD_BYTES", "WORKER", "Operation", "Seed", "payload"]

PAYLOAD_BYTES = 200
WORKER = "benchmark:12345:0123abcd"
MINUTE_AGO = timedelta(minutes=1)


def payload() -> dict[str, Any]:
    """Return a small order that takes 200 bytes as BSON."""
    order: dict[str, Any] = {
        "order": 10_000_017,
        "customer": "c-48151623",
        "express": True,
        "total": 129.9,
        "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}],
        "note": "",
    }
    order["note"] = "x" * (PAYLOAD_BYTES - len(bson.encode(order)))
    return order


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: its name in ``CALLS`` of both ways.
        state: what the queue holds before a block: nothing, ready items, or reservations to be settled.
        history: the queue keeps what is processed.
    """

    name: str
    state: Literal["empty", "ready", "reserved"]
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
        self._collection.delete_many({"q": {"$exists": True}})
        if operation.state == "empty":
            return []
        now = datetime.now(UTC)
        documents = [_envelope(queue, now - MINUTE_AGO) for _ in range(n)]
        if operation.state == "reserved":
            lease = {"reserved": True, "by": WORKER, "attempts": 1, "when": now + LEASE}
            documents = [{**document, **lease, "token": ObjectId()} for document in documents]
        self._collection.insert_many(documents)
        return documents

    def items(self, documents: list[dict[str, Any]]) -> list[Item[Any]]:
        """Return the items that ``reserve`` would have returned for the envelopes."""
        now = datetime.now(UTC)
        namespace = self._collection.full_name
        return [Item(each, each["payload"], now, namespace, now - MINUTE_AGO) for each in documents]


def _envelope(queue: str, when: datetime) -> dict[str, Any]:
    return new_envelope(queue, payload(), id=ObjectId(), when=when, priority=0, headers=None, once=None)
