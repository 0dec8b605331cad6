"""Documents of other programs that no claim can take: buried or postponed, so that they do not block a queue."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from bson.raw_bson import RawBSONDocument

from mongoq.model.encoding.ids import new_id
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.protocol.flow import Command, Duplicate, Flow, has_matched
from mongoq.protocol.settle.bury import dead_queue
from mongoq.protocol.settle.settle import HISTORY_FIELDS
from mongoq.protocol.state.context import QueueContext

__all__ = ["bury_popped_unreadable", "bury_uncountable", "bury_unreadable", "restore_command"]

logger = logging.getLogger("mongoq.foreign")

Change = tuple[dict[str, Any], tuple[str, ...]]
"""Fields to set, and names of fields to remove."""

UNREADABLE_REASON = "it holds BSON that cannot be read"
POSTPONEMENT = timedelta(hours=1)
"""Time for which a document without a dead queue is postponed."""
UNCOUNTABLE_FILTER = [
    {"attempts": {"$not": {"$type": "number"}}},
    # ``$type`` also matches the elements of an array, which may be numbers.
    {"attempts": {"$type": "array"}},
    {"attempts": {"$gt": 2**31}},
]
"""Conditions of attempts that ``$inc`` refuses."""


def bury_uncountable(context: QueueContext[Any]) -> Flow[bool]:
    """Bury the first eligible document with attempts that cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts are set to 0.
    """
    now = context.broker.clock.now()
    filter = {"q": context.name, "when": {"$lte": now}, "$or": UNCOUNTABLE_FILTER}
    if context.settings.dead is None:
        return (yield from Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, has_matched))
    return (yield from _bury(context, filter, "its attempts are no number that can be counted", now))


def bury_unreadable(context: QueueContext[Any], **marks: Any) -> Flow[None]:
    """Bury a claimed document that cannot be decoded, found by the marks of the claim (``findAndModify``).

    In a queue without a dead queue it is postponed for an hour: at the head, every claim would find it again.
    """
    now = context.broker.clock.now()
    if context.settings.dead is None:
        yield from _postpone(context, marks, now + POSTPONEMENT)
    else:
        yield from _bury(context, marks, UNREADABLE_REASON, now)


def bury_popped_unreadable(context: QueueContext[Any], document: UnreadableDocument, **marks: Any) -> Flow[None]:
    """Bury or postpone a popped document, in place of the history or stub that it left, if any (``update``).

    The server makes the document from its bytes in one command: a crash between two commands would leave it where it
    blocks the queue. If an item was pushed under its id or key meanwhile, that item stays, and the document gets a new
    id.
    """
    now = context.broker.clock.now()
    is_buried = context.settings.dead is not None
    fields, gone = _burial(context, UNREADABLE_REASON, now) if is_buried else _postponement(now + POSTPONEMENT)
    try:
        yield from restore_command(document, marks, fields, gone)
        id = document["_id"]
    except Duplicate:
        id = new_id()
        if is_buried:
            fields["origin"]["id"] = document["_id"]
        yield from restore_command(document, marks, {"_id": id, **fields}, {*gone, "key"})
    if is_buried:
        _record_buried(context, id, UNREADABLE_REASON, now)
    else:
        _log_postponed(context, id, now + POSTPONEMENT)


def restore_command(
    document: UnreadableDocument,
    marks: Mapping[str, Any],
    fields: Mapping[str, Any] = MappingProxyType({}),
    gone: Collection[str] = HISTORY_FIELDS,
) -> Command[Any]:
    """Return the command that stores a document as its bytes, in place of the document with the marks.

    Fields in ``fields`` are set, and fields in ``gone`` are removed.
    """
    made: list[dict[str, Any]] = [{"$replaceWith": {"$literal": RawBSONDocument(document.raw)}}]
    if fields:
        made.append({"$set": {name: {"$literal": value} for name, value in fields.items()}})
    made.append({"$unset": list(gone)})
    return Command("update_one", {"filter": marks, "update": made, "upsert": True})


def _postpone(context: QueueContext[Any], filter: Mapping[str, Any], when: datetime) -> Flow[None]:
    fields, gone = _postponement(when)
    update = {"$set": fields, "$unset": dict.fromkeys(gone, "")}
    arguments = {"filter": filter, "update": update, "projection": {"_id": 1}}
    found: Any = yield from Command("find_one_and_update", arguments)
    if found is not None:
        _log_postponed(context, found["_id"], when)


def _postponement(when: datetime) -> Change:
    return {"when": when, "reserved": False, "attempts": 0}, ("token", "batch", *HISTORY_FIELDS)


def _log_postponed(context: QueueContext[Any], id: Any, when: datetime) -> None:
    context.unfit += 1
    logger.warning(
        "put off document %s of queue %r until %s: it holds BSON that cannot be read; get(id) raises with its "
        "bytes, remove(id) deletes it",
        *(id, context.name, when),
    )


def _burial(context: QueueContext[Any], reason: str, now: datetime) -> Change:
    origin = {"queue": context.name, "reason": reason, "attempts": 0, "key": None, "at": now}
    if context.stage is not None:
        origin["stage"] = context.stage.name
    grave = {"q": dead_queue(context), "when": now, "reserved": False, "attempts": 0, "origin": origin}
    return grave, ("token", "key", *HISTORY_FIELDS)


def _bury(context: QueueContext[Any], filter: Mapping[str, Any], reason: str, now: datetime) -> Flow[bool]:
    grave, gone = _burial(context, reason, now)
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": filter,
            "update": {"$set": grave, "$unset": dict.fromkeys(gone, "")},
            "sort": CLAIM_ORDER,
            "projection": {"_id": 1},
        },
    )
    found = yield from command
    if found is not None:
        _record_buried(context, found["_id"], reason, now)
    return found is not None


def _record_buried(context: QueueContext[Any], id: Any, reason: str, now: datetime) -> None:
    context.count("dead")
    context.broker.record_put(dead_queue(context), now, id=id, is_new=False)
    context.unfit += 1
    logger.warning("buried document %s of queue %r: %s", id, context.name, reason)
