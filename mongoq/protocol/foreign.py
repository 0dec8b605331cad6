"""Documents that some other program has put into a queue, and that no claim can take: they must not block it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from mongoq.protocol.context import QueueContext
from mongoq.protocol.move import dead_queue
from mongoq.protocol.request import Command, Flow, matched
from mongoq.protocol.settle import SETTLED

__all__ = ["bury_uncountable", "bury_unreadable"]

logger = logging.getLogger("mongoq.foreign")

PUT_OFF = timedelta(hours=1)
UNCOUNTABLE = [
    {"attempts": {"$not": {"$type": "number"}}},
    {"attempts": {"$type": "array"}},  # whose elements may be numbers
    {"attempts": {"$gt": 2**31}},
]
"""What ``$inc`` refuses."""


def bury_uncountable(context: QueueContext[Any]) -> Flow[bool]:
    """Bury the first eligible document whose attempts cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts begin anew.
    """
    now = context.broker.clock.now()
    filter = {"q": context.name, "when": {"$lte": now}, "$or": UNCOUNTABLE}
    if context.settings.dead is None:
        return (yield from Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, matched))
    return (yield from _bury(context, filter, "its attempts are no number that can be counted", now))


def bury_unreadable(context: QueueContext[Any], **marks: Any) -> Flow[None]:
    """Bury what a claim or a pop took and nobody can decode, by the marks that it left (``findAndModify``).

    In a queue without a dead queue it is put off for an hour: at the head it would be met by every claim.
    """
    now = context.broker.clock.now()
    if context.settings.dead is None:
        yield from _put_off(context, marks, now + PUT_OFF)
    else:
        yield from _bury(context, marks, "it holds BSON that cannot be read", now)


def _put_off(context: QueueContext[Any], filter: Mapping[str, Any], when: datetime) -> Flow[None]:
    update = {
        "$set": {"when": when, "reserved": False, "attempts": 0},
        "$unset": dict.fromkeys(("token", "batch", *SETTLED), ""),
    }
    arguments = {"filter": filter, "update": update, "projection": {"_id": 1}}
    found: Any = yield from Command("find_one_and_update", arguments)
    if found is not None:
        context.unfit += 1
        logger.warning(
            "put off document %s of queue %r until %s: it holds BSON that cannot be read; get(id) raises with its "
            "bytes, remove(id) deletes it",
            *(found["_id"], context.name, when),
        )


def _bury(context: QueueContext[Any], filter: Mapping[str, Any], reason: str, now: datetime) -> Flow[bool]:
    origin = {"queue": context.name, "reason": reason, "attempts": 0, "key": None, "at": now}
    if context.stage is not None:
        origin["stage"] = context.stage.name
    grave = {"q": dead_queue(context), "when": now, "reserved": False, "attempts": 0, "origin": origin}
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": filter,
            "update": {"$set": grave, "$unset": dict.fromkeys(("token", "key", *SETTLED), "")},
            "sort": [("priority", 1), ("when", 1), ("_id", 1)],
            "projection": {"_id": 1},
        },
    )
    found = yield from command
    if found is not None:
        context.count("dead")
        context.unfit += 1
        logger.warning("buried document %s of queue %r: %s", found["_id"], context.name, reason)
    return found is not None
