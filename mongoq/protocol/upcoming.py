"""When the next item of a queue is due."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mongoq.model.indexes import BEGINNING
from mongoq.protocol.context import QueueContext
from mongoq.protocol.control import ready
from mongoq.protocol.request import Command, Flow

__all__ = ["next_when"]


def next_when(context: QueueContext[Any]) -> Flow[datetime | None]:
    """Find when the next item is, or was, due: one look into the index for each priority in use.

    ``aggregate`` with ``$sort`` and ``$first``, which the server answers by a DISTINCT_SCAN.
    """
    yield from ready(context.broker, write=False)
    pipeline = [
        {"$match": {"q": context.name, "when": {"$gte": BEGINNING}}},
        {"$sort": {"q": 1, "priority": 1, "when": 1}},
        {"$group": {"_id": "$priority", "when": {"$first": "$when"}}},
    ]
    groups: Any = yield from Command("aggregate", {"pipeline": pipeline})
    return min((group["when"] for group in groups), default=None)
