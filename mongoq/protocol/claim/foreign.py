"""Documents of other programs that no claim can take: buried or postponed, so that they do not block a queue."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from bson.raw_bson import RawBSONDocument

from mongoq.model.encoding.ids import new_id
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.log_fields import log_fields
from mongoq.protocol.base.queue_settings import refresh_settings
from mongoq.protocol.command import Command, Duplicate, has_matched
from mongoq.protocol.perform import perform
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.hold import Letter, hold
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.settle import HISTORY_FIELDS
from mongoq.protocol.state.context import QueueContext

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


async def bury_uncountable(context: QueueContext[Any]) -> bool:
    """Bury the first eligible document with attempts that cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts are set to 0.
    """
    filter = {"q": context.name, "when": {"$lte": context.broker.clock.now()}, "$or": UNCOUNTABLE_FILTER}
    if context.settings.dead is None:
        return await perform(
            Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, has_matched)
        )
    return await _remove_first(context, filter, "its attempts are no number that can be counted")


async def bury_unreadable(context: QueueContext[Any], **marks: Any) -> bool:
    """Bury a claimed document that cannot be decoded, found by the marks of the claim (``findAndModify``).

    Returns whether there is one. In a queue without a dead queue it is postponed for an hour: at the head, every claim
    would find it again.
    """
    return await _remove_first(context, marks, UNREADABLE_REASON)


async def bury_popped_unreadable(context: QueueContext[Any], document: UnreadableDocument, **marks: Any) -> None:
    """Bury or postpone a popped document, in place of the history or stub that it left, if any (``update``).

    The server makes the document from its bytes in one command: a crash between two commands would leave it where it
    blocks the queue. If an item was pushed under its id or key meanwhile, that item stays, and the document gets a new
    id.
    """
    fields, unset_fields = _removal(context, UNREADABLE_REASON)
    id = document["_id"]
    try:
        await perform(restore_command(document, marks, fields, unset_fields))
    except Duplicate:
        id = new_id()
        if "origin" in fields:
            fields["origin"]["id"] = document["_id"]
        await perform(restore_command(document, marks, {"_id": id, **fields}, {*unset_fields, "key"}))
    _record_removal(context, id, fields)


def restore_command(
    document: UnreadableDocument,
    marks: Mapping[str, Any],
    fields: Mapping[str, Any] = MappingProxyType({}),
    unset_fields: Collection[str] = HISTORY_FIELDS,
) -> Command[Any]:
    """Return the command that stores a document as its bytes, in place of the document with the marks.

    Fields in ``fields`` are set, and ``unset_fields`` are removed.
    """
    stages: list[dict[str, Any]] = [{"$replaceWith": {"$literal": RawBSONDocument(document.raw)}}]
    if fields:
        stages.append({"$set": {name: {"$literal": value} for name, value in fields.items()}})
    stages.append({"$unset": list(unset_fields)})
    return Command("update_one", {"filter": marks, "update": stages, "upsert": True})


async def _remove_first(context: QueueContext[Any], filter: Mapping[str, Any], reason: str) -> bool:
    """Bury or postpone the first document that matches, and return whether there is one (``findAndModify``)."""
    if not context.state.ordered:  # this process may not have heard yet of the queue's first sequence
        await refresh_settings(context)
    fields, unset_fields = _removal(context, reason)
    update = {"$set": fields, "$unset": dict.fromkeys(unset_fields, "")}
    projection = {"_id": 1, "sequence": 1, "place": 1} if context.state.ordered else {"_id": 1}
    arguments = {"filter": filter, "update": update, "sort": CLAIM_ORDER, "projection": projection}
    command: Command[Any] = Command("find_one_and_update", arguments)

    async def remove() -> tuple[Any, list[Promoted]]:
        """Bury the document, which then holds its sequence, or lets the next item follow; in a transaction."""
        removed: Any = await perform(command)
        return removed, ([] if removed is None else (await hold_or_leave(context, removed["_id"], removed)))

    if context.state.ordered and "q" in fields:
        removed, promoted = await run_atomic(context.broker, remove)
        record_promoted(context.broker, promoted)
    else:
        removed = await perform(command)
    if removed is None:
        return False
    _record_removal(context, removed["_id"], fields)
    return True


async def hold_or_leave(context: QueueContext[Any], id: Any, before: Mapping[str, Any]) -> list[Promoted]:
    """Let a document that was buried hold its sequence, or the next item follow, as the queue says.

    Called in a transaction, with the id of the letter and its former fields.
    """
    sequence, place = before.get("sequence"), before.get("place")
    if "place" not in before or not isinstance(sequence, str):
        return []
    dead = context.settings.dead
    if context.settings.holds_sequences and isinstance(place, int) and dead is not None:
        await hold(context.broker, context.name, [Letter(id, dead, sequence, place)])
        return []
    return await leave(context.broker, context.name, {sequence: 1})


def _removal(context: QueueContext[Any], reason: str) -> Change:
    """Return the change that moves a document to the dead queue, or postpones it in a queue without one."""
    now = context.broker.clock.now()
    if context.settings.dead is None:
        postponed = {"when": now + POSTPONEMENT, "reserved": False, "attempts": 0}
        return postponed, ("token", "batch", *HISTORY_FIELDS)
    origin = {"queue": context.name, "reason": reason, "attempts": 0, "key": None, "at": now}
    if context.stage is not None:
        origin["stage"] = context.stage.name
    buried = {"q": context.settings.dead, "when": now, "reserved": False, "attempts": 0, "origin": origin}
    place = ("place",) if context.state.ordered else ()
    return buried, ("token", "key", "start_by", *place, *HISTORY_FIELDS)


def _record_removal(context: QueueContext[Any], id: Any, fields: Mapping[str, Any]) -> None:
    context.unfit += 1
    if "origin" not in fields:
        logger.warning(
            "put off document %s of queue %r until %s: it holds BSON that cannot be read; get(id) raises with its "
            "bytes, remove(id) deletes it",
            *(id, context.name, fields["when"]),
            extra=log_fields(queue=context.name, id=id),
        )
        return
    context.count("dead")
    context.broker.record_put(fields["q"], fields["when"], id=id)
    words = id, context.name, fields["origin"]["reason"]
    logger.warning("buried document %s of queue %r: %s", *words, extra=log_fields(queue=context.name, id=id))
