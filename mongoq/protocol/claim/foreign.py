"""Documents that some other program has put into a queue, and that no claim can take: they must not block it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from bson.raw_bson import RawBSONDocument

from mongoq.model.encoding.ids import new_id
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.protocol.flow.commands import Command, Duplicate, Flow, matched
from mongoq.protocol.settle.move import dead_queue
from mongoq.protocol.settle.settle import SETTLED
from mongoq.protocol.state.context import QueueContext

__all__ = ["bury_uncountable", "bury_unreadable", "put_aside", "remade"]

logger = logging.getLogger("mongoq.foreign")

Change = tuple[dict[str, Any], tuple[str, ...]]
"""What is set, and what is taken away."""

UNREADABLE = "it holds BSON that cannot be read"
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
    """Bury what a claim took and nobody can decode, by the marks that it left (``findAndModify``).

    In a queue without a dead queue it is put off for an hour: at the head it would be met by every claim.
    """
    now = context.broker.clock.now()
    if context.settings.dead is None:
        yield from _put_off(context, marks, now + PUT_OFF)
    else:
        yield from _bury(context, marks, UNREADABLE, now)


def put_aside(context: QueueContext[Any], document: UnreadableDocument, **marks: Any) -> Flow[None]:
    """Bury, or put off likewise, what a pop took, in place of the history or stub that it left, if any (``update``).

    The server makes the document of its bytes, in one command: a crash between two would leave it where it holds up
    the queue. An item that was pushed under its id or key meanwhile stays, and the document gets an id of its own.
    """
    now = context.broker.clock.now()
    is_buried = context.settings.dead is not None
    fields, gone = _burial(context, UNREADABLE, now) if is_buried else _delay(now + PUT_OFF)
    try:
        yield from remade(document, marks, fields, gone)
        id = document["_id"]
    except Duplicate:
        id = new_id()
        if is_buried:
            fields["origin"]["id"] = document["_id"]
        yield from remade(document, marks, {"_id": id, **fields}, {*gone, "key"})
    if is_buried:
        _tell_buried(context, id, UNREADABLE)
    else:
        _tell_put_off(context, id, now + PUT_OFF)


def remade(
    document: UnreadableDocument,
    marks: Mapping[str, Any],
    fields: Mapping[str, Any] = MappingProxyType({}),
    gone: Collection[str] = SETTLED,
) -> Command[Any]:
    """Return the command that stores a document as its bytes, but for some fields, in place of what has the marks."""
    made: list[dict[str, Any]] = [{"$replaceWith": {"$literal": RawBSONDocument(document.raw)}}]
    if fields:
        made.append({"$set": {name: {"$literal": value} for name, value in fields.items()}})
    made.append({"$unset": list(gone)})
    return Command("update_one", {"filter": marks, "update": made, "upsert": True})


def _put_off(context: QueueContext[Any], filter: Mapping[str, Any], when: datetime) -> Flow[None]:
    fields, gone = _delay(when)
    update = {"$set": fields, "$unset": dict.fromkeys(gone, "")}
    arguments = {"filter": filter, "update": update, "projection": {"_id": 1}}
    found: Any = yield from Command("find_one_and_update", arguments)
    if found is not None:
        _tell_put_off(context, found["_id"], when)


def _delay(when: datetime) -> Change:
    return {"when": when, "reserved": False, "attempts": 0}, ("token", "batch", *SETTLED)


def _tell_put_off(context: QueueContext[Any], id: Any, when: datetime) -> None:
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
    return grave, ("token", "key", *SETTLED)


def _bury(context: QueueContext[Any], filter: Mapping[str, Any], reason: str, now: datetime) -> Flow[bool]:
    grave, gone = _burial(context, reason, now)
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": filter,
            "update": {"$set": grave, "$unset": dict.fromkeys(gone, "")},
            "sort": [("priority", 1), ("when", 1), ("_id", 1)],
            "projection": {"_id": 1},
        },
    )
    found = yield from command
    if found is not None:
        _tell_buried(context, found["_id"], reason)
    return found is not None


def _tell_buried(context: QueueContext[Any], id: Any, reason: str) -> None:
    context.count("dead")
    context.unfit += 1
    logger.warning("buried document %s of queue %r: %s", id, context.name, reason)
