"""Pop: remove the first eligible item from its queue without a reservation, by one findAndModify."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from bson import ObjectId
from bson.errors import InvalidBSON

from mongoq.errors import TransactionsUnavailable
from mongoq.model.encoding.ids import new_id
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.envelope import Document, attempts_of, expiry
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.item import Item
from mongoq.model.process import Event
from mongoq.model.sequence import held_target
from mongoq.protocol.base.queue_settings import ensure_ready, refresh_settings
from mongoq.protocol.base.retry import retry_once, retry_until_reply
from mongoq.protocol.claim import foreign
from mongoq.protocol.claim.expiry import settle_expired_head
from mongoq.protocol.claim.judge import OnInvalid, Unfit, check_on_invalid, judge, raise_or_log
from mongoq.protocol.claim.reserve import claim_first
from mongoq.protocol.command import Command, Duplicate, Refused, ReplyLost, Unreadable
from mongoq.protocol.perform import perform
from mongoq.protocol.push.push import DEFAULT_REMEMBER
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.hold import Letter, hold, release
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle import settle
from mongoq.protocol.settle.settlement import Batch
from mongoq.protocol.state.context import QueueContext

M = TypeVar("M")

ZERO_TIME = timedelta(0)
"""History of a queue without history."""
IS_REMEMBERED = {"$eq": [{"$type": "$once"}, "date"]}
"""Server expression: true when the item's id is to be remembered."""


class _Popped(NamedTuple):
    """A popped item.

    Attributes:
        before: its envelope as it was.
        item: the item made of it.
        token: ``settled`` of the history or stub that it left, if any.
        outcome: what becomes of it; ``None`` until that is found out.
        letter: what is stored of it in the dead queue, if it was buried with the pop; empty for other items.
    """

    before: Document
    item: Item[Any]
    token: ObjectId
    outcome: Item[Any] | Unfit | None = None
    letter: Document = MappingProxyType({})


async def pop(context: QueueContext[M], *, on_invalid: OnInvalid) -> Item[M] | None:
    """Remove the first eligible item from the queue, and return it: at most once."""
    check_on_invalid(on_invalid)
    await ensure_ready(context)
    while popped := (await claim_first(context, partial(_take_in_order, context, on_invalid))):
        outcome = popped.outcome or judge(context, popped.item, popped.before, popped.item.read_at)
        if isinstance(outcome, Item):
            context.count("get")
            return outcome
        await _settle_unfit(context, popped, outcome, on_invalid)
    return None


def _is_buried(context: QueueContext[Any], unfit: Unfit, on_invalid: OnInvalid) -> bool:
    """Return whether a popped item goes to the dead queue, if the queue has one."""
    if unfit.event == "expired":
        return context.settings.buries_expired
    return unfit.error is None or on_invalid == "bury"


async def _settle_unfit(context: QueueContext[Any], popped: _Popped, unfit: Unfit, on_invalid: OnInvalid) -> None:
    """Bury a popped item that its caller does not get, or raise with it; an expired one may be gone for good.

    The others at the head of the queue that have expired are settled with it.
    """
    raise_or_log(context, popped.item, unfit, on_invalid)
    if popped.letter:
        _record_burial(context, popped.letter, unfit.event)
    elif _is_buried(context, unfit, on_invalid):
        # A crash before it loses the item from a queue without history, as any crash after a pop does.
        _record_burial(context, (await _write_letter(context, popped, unfit)), unfit.event)
    else:
        context.count(unfit.event)
    if unfit.event == "expired":
        await settle_expired_head(context)


async def _take_in_order(context: QueueContext[Any], on_invalid: OnInvalid) -> _Popped | None:
    """Settle the head of the queue; one that others wait for in a transaction, in which the next item follows.

    A process that has not heard of such items sends one command without a transaction, which refuses them.
    """
    if not context.state.ordered and not context.broker.serverless:
        try:
            return await _take(context)
        except Refused as refused:
            await refresh_settings(context)  # they say whether a letter is to hold the sequence
            try:
                return await _take_in_transaction(context, on_invalid)
            except TransactionsUnavailable:  # so it was refused for another reason
                raise refused from None
    return await _take_in_transaction(context, on_invalid)


async def _take_in_transaction(context: QueueContext[Any], on_invalid: OnInvalid) -> _Popped | None:
    popped, promoted = await run_atomic(context.broker, partial(_take_and_promote, context, on_invalid))
    record_promoted(context.broker, promoted)
    if isinstance(popped, _UnreadableBuried):
        raise Unreadable(popped.cause)
    return popped


async def _take_and_promote(
    context: QueueContext[Any], on_invalid: OnInvalid
) -> tuple[_Popped | _UnreadableBuried | None, list[Promoted]]:
    """Settle the head of the queue, and let the next item follow; a letter that is popped holds nothing any more."""
    popped: _Popped | _UnreadableBuried | None
    promoted: list[Promoted] = []
    try:
        popped = await _take(context, joined=True)
    except _UnreadableBuried as unreadable:
        popped = unreadable
        if context.settings.dead is not None:
            promoted = await foreign.hold_or_leave(context, popped.before["_id"], popped.before)
    else:
        if popped is None:
            return None, []
        popped, promoted = await _let_follow(context, popped, on_invalid)
    if (target := held_target(popped.before)) is not None:
        promoted += await release(context.broker, [target])
    return popped, promoted


async def _let_follow(
    context: QueueContext[Any], popped: _Popped, on_invalid: OnInvalid
) -> tuple[_Popped, list[Promoted]]:
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
        return popped, (await leave(context.broker, context.name, {sequence: 1}))
    letter = await _write_letter(context, popped, outcome)
    await hold(context.broker, context.name, [Letter(letter["_id"], dead, sequence, place)])
    return popped._replace(letter=letter), []


class _UnreadableBuried(Unreadable):
    """The head of the queue could not be decoded, and was buried or postponed."""

    def __init__(self, before: UnreadableDocument) -> None:
        super().__init__(InvalidBSON(before.problem))
        self.before = before


async def _take(context: QueueContext[Any], *, joined: bool = False) -> _Popped | None:
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
            before = (
                (await perform(command)) if history is None else (await _take_into_history(context, command, marks))
            )
            break
        except Refused:
            # The head may have a remembered id; the update takes it.
            if updates:
                raise
            updates = True
            state.expect_remembered()
    if isinstance(before, UnreadableDocument):
        await foreign.bury_popped_unreadable(context, before, q=context.name, processed=now, settled=token)
        raise _UnreadableBuried(before)
    state.claim_hints.raise_bounds(start, before)
    if before is None:
        return None
    if updates:
        await _delete_stub(context, before, marks, history)
    attempts, by = attempts_of(before) + 1, str(context.broker.identity)
    popped = {**before, "reserved": False, "token": None, "attempts": attempts, "by": by, "processed": now}
    return _Popped(before, context.raw_item(popped, now, due=before["when"]), token)


def _pop_command(
    context: QueueContext[Any],
    filter: dict[str, Any],
    marks: dict[str, Any],
    history: timedelta | None,
    *,
    updates: bool,
    joined: bool,
) -> Command[Any]:
    """Return the command that removes the head from the queue.

    It ``updates`` the item, which leaves history or a stub for as long as its id is remembered. Otherwise it refuses an
    item with a remembered id. Outside a transaction it refuses one with a place in a sequence, and a letter that has
    died with one. A lost reply loses the item of a queue without history, as "at most once" allows. The reply stays
    undecoded bytes, so that a document that cannot be decoded is not lost.
    """
    token, now, opened = marks["settled"], marks["processed"], context.broker.encoding.read_reply
    refused: list[dict[str, Any]] = [] if updates else [{"$gt": ["$once", now]}]
    if not joined:
        refused += ({"$ne": [{"$type": field}, "missing"]} for field in ("$place", "$origin.place"))
    if refused:
        # True, or an error; a filter that is false would pass over the head and take a later item. It costs
        # about a tenth: 0.99 ms for a pop with it, 0.89 ms without (MongoDB 6.0.5).
        filter = {**filter, "$expr": {"$divide": [1, {"$cond": [{"$or": refused}, 0, 1]}]}}
    arguments: dict[str, Any] = {"filter": filter, "sort": CLAIM_ORDER}
    if history is not None:
        marks = {**marks, "by": str(context.broker.identity)}
        arguments["update"] = (
            _lasting_update(context, marks, keeps=True) if updates else settle.history_update(marks, attempts=1)
        )
        return Command(
            "find_one_and_update",
            arguments,
            opened,
            undo=lambda before: None if before is None else settle.unprocess_command(opened(before), token),
            target="bytes",
        )
    if updates:
        arguments["update"] = _lasting_update(context, marks, keeps=False)
    return Command(
        "find_one_and_update" if updates else "find_one_and_delete",
        arguments,
        opened,
        undo=lambda before: None if before is None else _undo_command(context, opened(before), now, token),
        target="bytes",
    )


def _lasting_update(context: QueueContext[Any], marks: dict[str, Any], *, keeps: bool) -> Any:
    """Return the update that keeps an item until the later of ``expires`` and its ``once``, which is not known yet.

    As history it ``keeps`` the payload.
    """
    drops = ("place", *(() if keeps else settle.STUB_DROPPED_FIELDS))
    if context.broker.serverless:
        # mongomock runs no pipelines; ``_delete_stub`` corrects the date.
        longest = {**marks, "expires": marks["expires"] + DEFAULT_REMEMBER}
        return settle.history_update(longest, attempts=int(keeps), unset=drops)
    fields: dict[str, Any] = {name: {"$literal": value} for name, value in {**marks, "reserved": False}.items()}
    fields["expires"] = {"$max": [marks["expires"], {"$cond": [IS_REMEMBERED, "$once", None]}]}
    if keeps:
        fields["attempts"] = {"$add": [{"$ifNull": ["$attempts", 0]}, 1]}
    return [{"$set": fields}, {"$unset": ["when", "token", *drops]}]


def _undo_command(context: QueueContext[Any], before: Document, now: datetime, token: ObjectId) -> Command[Any]:
    if isinstance(before, UnreadableDocument):
        return foreign.restore_command(before, {"q": context.name, "processed": now, "settled": token})
    return _restore_command(before, token)


def _restore_command(document: Document, token: ObjectId) -> Command[Any]:
    """Return the command that undoes a pop, in place of its stub if any; it leaves an item that was pushed since."""
    filter = {"_id": document["_id"], "settled": token}
    return Command("replace_one", {"filter": filter, "replacement": document, "upsert": True})


async def _take_into_history(
    context: QueueContext[Any], command: Command[Any], marks: dict[str, Any]
) -> Document | None:
    """Turn the head into history, and return its former envelope; search for it when the reply was lost."""
    try:
        before: Document | None = await perform(command)
        return before
    except ReplyLost:
        after = await retry_once(_find_popped_command(context, marks["settled"], marks["processed"]))
        if after is None:
            raise
        if isinstance(after, UnreadableDocument):
            return after
        fields = {name: value for name, value in after.items() if name not in settle.HISTORY_FIELDS}
        # The update has removed ``when``; the time of the pop is the best known value.
        return {**fields, "when": marks["processed"], "attempts": after["attempts"] - 1}


def _find_popped_command(context: QueueContext[Any], token: ObjectId, now: datetime) -> Command[dict[str, Any] | None]:
    """Return the search for the item of a pop with a lost reply, as ``_find_claimed_command`` does for a claim."""
    filter, opened = {"q": context.name, "processed": now, "settled": token}, context.broker.encoding.read_reply
    return Command(
        "find_one_and_update",
        {"filter": filter, "update": {"$set": {"reserved": False}}},
        opened,
        undo=lambda raw: None if raw is None else settle.unprocess_command({**opened(raw), "when": now}, token),
        target="bytes",
    )


async def _delete_stub(
    context: QueueContext[Any], before: Document, marks: dict[str, Any], history: timedelta | None
) -> None:
    """Delete the stub of an item without a remembered id (``delete``); after a crash the TTL index deletes it."""
    now = marks["processed"]
    if expiry(now, None, before.get("once")) is not None:
        context.state.expect_remembered()
    expires = expiry(now, history, before.get("once"))
    stub = {"_id": before["_id"], "settled": marks["settled"]}
    if expires is None:
        await retry_until_reply(Command("delete_one", {"filter": stub}, resolved=True))
    elif context.broker.serverless:
        await perform(Command("update_one", {"filter": stub, "update": {"$set": {"expires": expires}}}))


async def _write_letter(context: QueueContext[Any], popped: _Popped, unfit: Unfit) -> Document:
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
        await perform(_restore_command(dead, popped.token))
    except Duplicate:
        dead["_id"] = new_id()
        await perform(Command("insert_one", {"document": dead}))
    return dead


def _record_burial(context: QueueContext[Any], letter: Document, event: Event) -> None:
    context.count(event)
    context.broker.record_put(letter["q"], letter["when"], letter.get("priority"), id=letter["_id"])
