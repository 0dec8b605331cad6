# Generated from mongoq/protocol/claim/pop.py by scripts/unasync.py. Do not edit.
"""Pop: remove the first eligible item from its queue without a reservation, by one findAndModify."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from typing import Any

from mongoq.errors import TransactionsUnavailable
from mongoq.model.encoding.ids import new_id
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.envelope import Document, attempts_of, expiry
from mongoq.model.item import Item
from mongoq.model.sequence import held_target
from mongoq.protocol.claim.judge import OnInvalid, Unfit, check_on_invalid, judge, raise_or_log
from mongoq.protocol.claim.pop import (
    ZERO_TIME,
    M,
    _find_popped_command,
    _is_buried,
    _pop_command,
    _Popped,
    _record_burial,
    _restore_command,
    _UnreadableBuried,
)
from mongoq.protocol.command import Command, Duplicate, Refused, ReplyLost, Unreadable
from mongoq.protocol.sequence.hold import Letter
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.settlement import Batch
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.queue_settings import ensure_ready, refresh_settings
from mongoq.protocol_threads.base.retry import retry_once, retry_until_reply
from mongoq.protocol_threads.claim import foreign
from mongoq.protocol_threads.claim.expiry import settle_expired_head
from mongoq.protocol_threads.claim.reserve import claim_first
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.control import run_atomic
from mongoq.protocol_threads.sequence.hold import hold, release
from mongoq.protocol_threads.sequence.leave import leave
from mongoq.protocol_threads.settle import settle


def pop(context: QueueContext[M], *, on_invalid: OnInvalid) -> Item[M] | None:
    """Remove the first eligible item from the queue, and return it: at most once."""
    check_on_invalid(on_invalid)
    ensure_ready(context)
    while popped := (claim_first(context, partial(_take_in_order, context, on_invalid))):
        outcome = popped.outcome or judge(context, popped.item, popped.before, popped.item.read_at)
        if isinstance(outcome, Item):
            context.count("get")
            return outcome
        _settle_unfit(context, popped, outcome, on_invalid)
    return None


def _settle_unfit(context: QueueContext[Any], popped: _Popped, unfit: Unfit, on_invalid: OnInvalid) -> None:
    """Bury a popped item that its caller does not get, or raise with it; an expired one may be gone for good.

    The others at the head of the queue that have expired are settled with it.
    """
    raise_or_log(context, popped.item, unfit, on_invalid)
    if popped.letter:
        _record_burial(context, popped.letter, unfit.event)
    elif _is_buried(context, unfit, on_invalid):
        # A crash before it loses the item from a queue without history, as any crash after a pop does.
        _record_burial(context, (_write_letter(context, popped, unfit)), unfit.event)
    else:
        context.count(unfit.event)
    if unfit.event == "expired":
        settle_expired_head(context)


def _take_in_order(context: QueueContext[Any], on_invalid: OnInvalid) -> _Popped | None:
    """Settle the head of the queue; one that others wait for in a transaction, in which the next item follows.

    A process that has not heard of such items sends one command without a transaction, which refuses them.
    """
    if not context.state.ordered and not context.broker.serverless:
        try:
            return _take(context)
        except Refused as refused:
            refresh_settings(context)  # they say whether a letter is to hold the sequence
            try:
                return _take_in_transaction(context, on_invalid)
            except TransactionsUnavailable:  # so it was refused for another reason
                raise refused from None
    return _take_in_transaction(context, on_invalid)


def _take_in_transaction(context: QueueContext[Any], on_invalid: OnInvalid) -> _Popped | None:
    popped, promoted = run_atomic(context.broker, partial(_take_and_promote, context, on_invalid))
    record_promoted(context.broker, promoted)
    if isinstance(popped, _UnreadableBuried):
        raise Unreadable(popped.cause)
    return popped


def _take_and_promote(
    context: QueueContext[Any], on_invalid: OnInvalid
) -> tuple[_Popped | _UnreadableBuried | None, list[Promoted]]:
    """Settle the head of the queue, and let the next item follow; a letter that is popped holds nothing any more."""
    popped: _Popped | _UnreadableBuried | None
    promoted: list[Promoted] = []
    try:
        popped = _take(context, joined=True)
    except _UnreadableBuried as unreadable:
        popped = unreadable
        if context.settings.dead is not None:
            promoted = foreign.hold_or_leave(context, popped.before["_id"], popped.before)
    else:
        if popped is None:
            return None, []
        popped, promoted = _let_follow(context, popped, on_invalid)
    if (target := held_target(popped.before)) is not None:
        promoted += release(context.broker, [target])
    return popped, promoted


def _let_follow(context: QueueContext[Any], popped: _Popped, on_invalid: OnInvalid) -> tuple[_Popped, list[Promoted]]:
    """Let the next item follow, or bury the popped one as a letter that holds its sequence; in a transaction."""
    before = popped.before
    sequence, place, dead = before.get("sequence"), before.get("place"), context.settings.dead
    if place is None or not isinstance(sequence, str):
        return popped, []
    outcome = None
    if context.settings.holds_sequences and dead is not None:
        outcome = judge(context, popped.item, before, popped.item.read_at)
    popped = popped._replace(outcome=outcome)
    if dead is None or not isinstance(outcome, Unfit) or not _is_buried(context, outcome, on_invalid):
        return popped, (leave(context.broker, context.name, {sequence: 1}))
    letter = _write_letter(context, popped, outcome)
    hold(context.broker, context.name, [Letter(letter["_id"], dead, sequence, place)])
    return popped._replace(letter=letter), []


def _take(context: QueueContext[Any], *, joined: bool = False) -> _Popped | None:
    """Settle the head of the queue in one command, with or without a remembered id.

    Outside a transaction (``joined``) it raises ``Refused`` for an item that others may wait for.

    An item with a remembered id must never be gone without its stub: a push of the same id would create it again. One
    command cannot delete some items and update others, so the delete refuses items with remembered ids, and an update
    takes them.
    """
    state, token = context.state, new_id()
    now, history = context.broker.clock.now(), context.settings.history
    start = state.claim_hints.start(context.name, now)
    marks = {"processed": now, "expires": now + (history or ZERO_TIME), "settled": token}
    # Once a remembered id was met, more are likely: the update is then sent first for a while.
    # In a transaction it is always the update: a refused delete would end the transaction.
    updates = joined or time.monotonic() < state.remembers_until
    while True:
        command = _pop_command(context, start.filter, marks, history, updates=updates, joined=joined)
        try:
            before = (perform(command)) if history is None else (_take_into_history(context, command, marks))
            break
        except Refused:
            # The head may have a remembered id; the update takes it.
            if updates:
                raise
            updates = True
            state.expect_remembered()
    if isinstance(before, UnreadableDocument):
        foreign.bury_popped_unreadable(context, before, q=context.name, processed=now, settled=token)
        raise _UnreadableBuried(before)
    state.claim_hints.raise_bounds(start, before)
    if before is None:
        return None
    if updates:
        _delete_stub(context, before, marks, history)
    attempts, by = attempts_of(before) + 1, str(context.broker.identity)
    popped = {**before, "reserved": False, "token": None, "attempts": attempts, "by": by, "processed": now}
    return _Popped(before, context.raw_item(popped, now, due=before["when"]), token)


def _take_into_history(context: QueueContext[Any], command: Command[Any], marks: dict[str, Any]) -> Document | None:
    """Turn the head into history, and return its former envelope; search for it when the reply was lost."""
    try:
        before: Document | None = perform(command)
        return before
    except ReplyLost:
        after = retry_once(_find_popped_command(context, marks["settled"], marks["processed"]))
        if after is None:
            raise
        if isinstance(after, UnreadableDocument):
            return after
        fields = {name: value for name, value in after.items() if name not in settle.HISTORY_FIELDS}
        # The update has removed ``when``; the time of the pop is the best known value.
        return {**fields, "when": marks["processed"], "attempts": after["attempts"] - 1}


def _delete_stub(
    context: QueueContext[Any], before: Document, marks: dict[str, Any], history: timedelta | None
) -> None:
    """Delete the stub of an item without a remembered id (``delete``); after a crash the TTL index deletes it."""
    now = marks["processed"]
    if expiry(now, None, before.get("once")) is not None:
        context.state.expect_remembered()
    expires = expiry(now, history, before.get("once"))
    stub = {"_id": before["_id"], "settled": marks["settled"]}
    if expires is None:
        retry_until_reply(Command("delete_one", {"filter": stub}, resolved=True))
    elif context.broker.serverless:
        perform(Command("update_one", {"filter": stub, "update": {"$set": {"expires": expires}}}))


def _write_letter(context: QueueContext[Any], popped: _Popped, unfit: Unfit) -> Document:
    """Write a popped item to the dead queue, in place of what it left; return it as it is stored there.

    If an item was pushed under its id meanwhile, that item stays, and the dead letter gets a new id.
    """
    before = popped.before
    burial, marks = settle.burial_update(
        context,
        popped.item,
        Batch(context.broker.clock),
        reason=unfit.reason,
        error=unfit.error,
        attempts=unfit.attempts,
    )
    fields = {name: value for name, value in before.items() if name not in burial["$unset"] and name != "place"}
    dead = {**fields, **burial["$set"], **marks.in_document(before)}
    try:
        perform(_restore_command(dead, popped.token))
    except Duplicate:
        dead["_id"] = new_id()
        perform(Command("insert_one", {"document": dead}))
    return dead
