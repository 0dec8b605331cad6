# Generated from mongoq/protocol/claim/foreign.py by scripts/unasync.py. Do not edit.
"""Documents of other programs that no claim can take: buried or postponed, so that they do not block a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mongoq.model.encoding.ids import new_id
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.protocol.claim.foreign import UNCOUNTABLE_FILTER, UNREADABLE_REASON, _record_removal, _removal
from mongoq.protocol.claim.foreign import restore_command as restore_command
from mongoq.protocol.command import Command, Duplicate, has_matched
from mongoq.protocol.sequence.hold import Letter
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.queue_settings import refresh_settings
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.control import run_atomic
from mongoq.protocol_threads.sequence.hold import hold
from mongoq.protocol_threads.sequence.leave import leave


def bury_uncountable(context: QueueContext[Any]) -> bool:
    """Bury the first eligible document with attempts that cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts are set to 0.
    """
    filter = {"q": context.name, "when": {"$lte": context.broker.clock.now()}, "$or": UNCOUNTABLE_FILTER}
    if context.settings.dead is None:
        return perform(Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, has_matched))
    return _remove_first(context, filter, "its attempts are no number that can be counted")


def bury_unreadable(context: QueueContext[Any], **marks: Any) -> bool:
    """Bury a claimed document that cannot be decoded, found by the marks of the claim (``findAndModify``).

    Returns whether there is one. In a queue without a dead queue it is postponed for an hour: at the head, every claim
    would find it again.
    """
    return _remove_first(context, marks, UNREADABLE_REASON)


def bury_popped_unreadable(context: QueueContext[Any], document: UnreadableDocument, **marks: Any) -> None:
    """Bury or postpone a popped document, in place of the history or stub that it left, if any (``update``).

    The server makes the document from its bytes in one command: a crash between two commands would leave it where it
    blocks the queue. If an item was pushed under its id or key meanwhile, that item stays, and the document gets a new
    id.
    """
    fields, unset_fields = _removal(context, UNREADABLE_REASON)
    id = document["_id"]
    try:
        perform(restore_command(document, marks, fields, unset_fields))
    except Duplicate:
        id = new_id()
        if "origin" in fields:
            fields["origin"]["id"] = document["_id"]
        perform(restore_command(document, marks, {"_id": id, **fields}, {*unset_fields, "key"}))
    _record_removal(context, id, fields)


def _remove_first(context: QueueContext[Any], filter: Mapping[str, Any], reason: str) -> bool:
    """Bury or postpone the first document that matches, and return whether there is one (``findAndModify``)."""
    if not context.state.ordered:  # this process may not have heard yet of the queue's first sequence
        refresh_settings(context)
    fields, unset_fields = _removal(context, reason)
    update = {"$set": fields, "$unset": dict.fromkeys(unset_fields, "")}
    projection = {"_id": 1, "sequence": 1, "place": 1} if context.state.ordered else {"_id": 1}
    arguments = {"filter": filter, "update": update, "sort": CLAIM_ORDER, "projection": projection}
    command: Command[Any] = Command("find_one_and_update", arguments)

    def remove() -> tuple[Any, list[Promoted]]:
        """Bury the document, which then holds its sequence, or lets the next item follow; in a transaction."""
        removed: Any = perform(command)
        return removed, ([] if removed is None else (hold_or_leave(context, removed["_id"], removed)))

    if context.state.ordered and "q" in fields:
        removed, promoted = run_atomic(context.broker, remove)
        record_promoted(context.broker, promoted)
    else:
        removed = perform(command)
    if removed is None:
        return False
    _record_removal(context, removed["_id"], fields)
    return True


def hold_or_leave(context: QueueContext[Any], id: Any, before: Mapping[str, Any]) -> list[Promoted]:
    """Let a document that was buried hold its sequence, or the next item follow, as the queue says.

    Called in a transaction, with the id of the letter and its former fields.
    """
    sequence, place = before.get("sequence"), before.get("place")
    if "place" not in before or not isinstance(sequence, str):
        return []
    dead = context.settings.dead
    if context.settings.holds_sequences and isinstance(place, int) and dead is not None:
        hold(context.broker, context.name, [Letter(id, dead, sequence, place)])
        return []
    return leave(context.broker, context.name, {sequence: 1})
