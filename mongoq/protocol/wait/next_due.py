"""Due time of the next item of a queue, or of many queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.first_due import first_due_command, first_due_pipeline
from mongoq.protocol.flow.commands import Command, Flow
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = ["find_next_due", "find_next_dues", "is_drained"]


def find_next_due(context: QueueContext[Any]) -> Flow[datetime | None]:
    """Find when the next item is, or was, due: one index lookup for each priority in use.

    ``aggregate`` with ``$sort`` and ``$first``, which the server answers by a DISTINCT_SCAN.
    """
    yield from ensure_broker_ready(context.broker, write=False)
    groups: Any = yield from first_due_command(context.name)
    return min((group["when"] for group in groups), default=None)


def is_at_work(context: QueueContext[Any], lease: timedelta) -> Flow[bool]:
    """Return whether any item is ready, or reserved for up to ``lease``; scheduled items do not count (``find``)."""
    yield from ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    filter = {
        "q": context.name,
        "when": {"$lte": now + lease},
        "$or": [{"when": {"$lte": now}}, {"reserved": True}],
    }
    return (yield from find_one(context.broker, filter, {"_id": 1})) is not None


def is_drained(context: QueueContext[Any], lease: timedelta, *, lingers: bool) -> Flow[bool]:
    """Return whether a queue is empty; with ``lingers`` scheduled items may be left in it."""
    if lingers:
        return not (yield from is_at_work(context, lease))
    return (yield from find_next_due(context)) is None


def find_next_dues(broker: BrokerContext, queues: Sequence[str]) -> Flow[dict[str, datetime]]:
    """Find the next due times of many queues in one ``aggregate``, by ``$unionWith``; empty queues are left out."""
    yield from ensure_broker_ready(broker, write=False)
    first, *rest = [[*first_due_pipeline(queue), {"$set": {"_id": {"$literal": queue}}}] for queue in queues]
    union = [{"$unionWith": {"coll": broker.collection, "pipeline": pipeline}} for pipeline in rest]
    groups: Any = yield from Command("aggregate", {"pipeline": [*first, *union]})
    whens: dict[str, datetime] = {}
    for group in groups:
        queue, when = group["_id"], group["when"]
        whens[queue] = min(when, whens[queue]) if queue in whens else when
    return whens
