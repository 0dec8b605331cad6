# Generated from mongoq/core/claim/pop.py by scripts/unasync.py. Do not edit.
"""Pop: remove the first eligible item from its queue without a reservation, by one findAndModify.

What one command cannot do is done by two: the item is reserved, judged and committed. The command refuses such items:
one with a remembered id, which leaves a stub; one with a place in a sequence, or a letter that has died with one, in
whose transaction the next item follows; one that has expired, or had all its runs.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import Any

from bson.errors import InvalidBSON

from mongoq.core.claim.judge import OnInvalid, check_on_invalid, misfit_reason, raises_invalid
from mongoq.core.claim.pop import M, Popped, _make_pop, _refusal, _ReserveFirst, _restore, _undo, _undo_settled
from mongoq.core.command import Command, Duplicate, Refused, ReplyLost, Unreadable
from mongoq.core.settle.settle import HISTORY_FIELDS, burial_update, history_update, unprocess_command
from mongoq.core.settle.settlement import Batch
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.queue_settings import ensure_ready, refresh_settings
from mongoq.core_threads.base.retry import retry_once
from mongoq.core_threads.claim.judge import bury_popped_unreadable, decode_items
from mongoq.core_threads.claim.reserve import claim_first, claim_one
from mongoq.core_threads.perform import perform
from mongoq.core_threads.settle.send import settle_item
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.envelope import Document, attempts_of, expiry, new_id
from mongoq.data.indexes import CLAIM_ORDER
from mongoq.data.item import Item
from mongoq.errors import PayloadInvalid, ReservationLost


def pop(context: QueueContext[M], *, on_invalid: OnInvalid) -> Item[M] | None:
    """Remove the first eligible item from the queue, and return it: at most once."""
    check_on_invalid(on_invalid)
    ensure_ready(context)
    state = context.state
    # Once a remembered id was met, more are likely: no delete, which the server would log as refused, is sent then.
    if not (state.ordered or context.broker.serverless or time.monotonic() < state.remembers_until):
        try:
            return _pop_at_once(context, on_invalid)
        except _ReserveFirst:
            refresh_settings(context)  # they say whether a letter is to hold its sequence
    return _reserve_and_commit(context, on_invalid)


def _reserve_and_commit(context: QueueContext[M], on_invalid: OnInvalid) -> Item[M] | None:
    """Claim the first item that may run, and settle it before the caller gets it.

    A crash before the settlement leaves it reserved until the lease ends.
    """
    lease = context.settings.lease
    while True:
        undo = partial(_undo_settled, context, context.broker.clock.now() + lease)
        item = claim_one(context, lease, undo)
        if item is None:
            return None
        if expiry(item.read_at, None, item.once) is not None:
            context.state.expect_remembered()
        is_raised = raises_invalid(context, on_invalid)  # then it leaves its queue all the same
        decoded = [item] if is_raised else decode_items(context, [item], on_invalid)
        if not decoded:
            continue
        try:
            settled_at: datetime = settle_item(context, item, _make_pop)
        except ReservationLost as lost:
            if not lost.certain:
                raise
            continue  # its lease was over
        fields = {**item._document, "reserved": False, "token": None, "processed": settled_at}  # noqa: SLF001
        popped: Item[Any] = context.raw_item(fields, settled_at, due=item.due)
        if not is_raised:
            return popped.with_payload(decoded[0].payload)
        try:
            return context.decode_payload(popped)
        except PayloadInvalid as invalid:
            misfit_reason(context, popped, invalid, on_invalid)


def _pop_at_once(context: QueueContext[M], on_invalid: OnInvalid) -> Item[M] | None:
    while popped := (claim_first(context, partial(_remove_head, context))):
        try:
            item = context.decode_payload(popped[1])
        except PayloadInvalid as invalid:
            # A crash before it is buried loses the item from a queue without history, as any crash after a pop does.
            _bury_popped(context, popped, misfit_reason(context, popped[1], invalid, on_invalid), invalid)
        else:
            context.count("get")
            return item
    return None


def _remove_head(context: QueueContext[Any]) -> Popped | None:
    """Settle the head of the queue in one command: it is deleted, or becomes history.

    A lost reply loses the item of a queue without history, as "at most once" allows. The reply stays undecoded bytes,
    so that a document that cannot be decoded is not lost.

    Raises:
        _ReserveFirst: the server has refused the item.
    """
    token, opened, by = new_id(), context.broker.encoding.read_reply, str(context.broker.identity)
    now, history = context.broker.clock.now(), context.settings.history
    start = context.state.claim_hints.start(context.name, now)
    where = {"q": context.name, "processed": now, "settled": token}
    arguments: dict[str, Any] = {"filter": {**start.filter, **_refusal(context, now)}, "sort": CLAIM_ORDER}
    if history is not None:
        marks = {"processed": now, "expires": now + history, "settled": token, "by": by}
        arguments["update"] = history_update(marks, attempts=1)

    method = "find_one_and_delete" if history is None else "find_one_and_update"
    command: Command[Any] = Command(method, arguments, opened, undo=partial(_undo, context, where), target="bytes")
    try:
        before = perform(command)
    except Refused as refusal:
        raise _ReserveFirst from refusal
    except ReplyLost:
        if history is None or (before := (_find_popped(context, where))) is None:
            raise
    if isinstance(before, UnreadableDocument):
        bury_popped_unreadable(context, before, where)
        raise Unreadable(InvalidBSON(before.problem))
    context.state.claim_hints.raise_bounds(start, before)
    if before is None:
        return None
    attempts = attempts_of(before) + 1
    popped = {**before, "reserved": False, "token": None, "attempts": attempts, "by": by, "processed": now}
    return before, context.raw_item(popped, now, due=before["when"]), token


def _find_popped(context: QueueContext[Any], where: Document) -> Document | None:
    """Search the history of a pop with a lost reply, as a claim is searched for; return its envelope as it was.

    It is an update that changes nothing, because an update waits for the majority and a read does not. The update of
    the pop has removed ``when``; the time of the pop is the best known value.
    """
    opened, now, token = context.broker.encoding.read_reply, where["processed"], where["settled"]
    find: Command[Any] = Command(
        "find_one_and_update",
        {"filter": where, "update": {"$set": {"reserved": False}}},
        opened,
        undo=lambda raw: None if raw is None else unprocess_command({**opened(raw), "when": now}, token),
        target="bytes",
    )
    after: Document | None = retry_once(find)
    if after is None or isinstance(after, UnreadableDocument):
        return after
    fields = {name: value for name, value in after.items() if name not in HISTORY_FIELDS}
    return {**fields, "when": now, "attempts": after["attempts"] - 1}


def _bury_popped(context: QueueContext[Any], popped: Popped, reason: str, error: PayloadInvalid) -> None:
    """Write a popped item to the dead queue, in place of what it left.

    If an item was pushed under its id meanwhile, that item stays, and the dead letter gets a new id.
    """
    before, item, token = popped
    batch = Batch(context.broker.clock)
    burial, marks = burial_update(context, item, batch, reason=reason, error=error, attempts=item.attempts)
    fields = {name: value for name, value in before.items() if name not in burial["$unset"]}
    letter = {**fields, **burial["$set"], **marks.in_document(before)}
    try:
        perform(_restore(letter, token))
    except Duplicate:
        letter["_id"] = new_id()
        perform(Command("insert_one", {"document": letter}))
    context.count("dead")
    context.broker.record_put(letter["q"], letter["when"], letter.get("priority"), id=letter["_id"])
