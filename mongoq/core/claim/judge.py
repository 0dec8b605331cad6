"""Judgement of claimed items: which of them may not run, and what becomes of those. Every claim goes by it.

| a claimed item | is |
|---|---|
| had all its runs | buried; not one whose neighbour in a batch may have killed the holder (``is_suspect``) |
| was not started in time | settled as expired, with the others at the head of the queue (``start_or_expire``) |
| does not fit the model | buried, or raised to the caller (``on_invalid``) |
| does not match the filter of a consumer | settled as the filter defines (``settle_unmatched``) |
| cannot be decoded, or counted | buried or put off, since another program wrote it (``bury_foreign``) |

A crash leaves the item reserved to the end of its lease; the next claim of it decides again. The date by which it must
start is in ``start_by``. It decides once, under the token of the claim: either the item starts, and the date is removed
before the caller gets it, or the item has expired. So an item that was handed out never expires, neither after a
rollback nor when its lease ends.

Nothing but claims looks for expired items. A claim that meets one settles the others at the head of the queue with it,
so that a queue full of them is emptied in few commands. An item of a sequence is met when it is the first one, or when
an expired one before it is; it leaves in a transaction, in which the next one follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NoReturn

from bson import ObjectId

from mongoq.core.base.find import find_few
from mongoq.core.base.queue_settings import refresh_settings
from mongoq.core.base.retry import retry_once, retry_until_reply
from mongoq.core.base.statements import Statement
from mongoq.core.base.transaction import run_atomic
from mongoq.core.command import (
    Command,
    PartlyRefused,
    Refused,
    Unreadable,
    has_matched,
)
from mongoq.core.perform import perform
from mongoq.core.sequence.hold import Letter, hold
from mongoq.core.sequence.places import Promoted, leave, record_promoted
from mongoq.core.settle.by_token import update_many_command
from mongoq.core.settle.send import settle_all, settle_within
from mongoq.core.settle.settle import (
    bury,
    make_burial,
    reason_exhausted,
    release_command,
    release_update,
    retention_update,
)
from mongoq.core.settle.settlement import Batch, Settlement, Wanted, make_statement
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import REASON_BYTES
from mongoq.data.encoding.error_text import one_line
from mongoq.data.envelope import Document, attempts_of, expiry, new_id, shorten
from mongoq.data.indexes import CLAIM_ORDER
from mongoq.data.item import Item, has_place, id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.sequence import HAS_PLACE, blocked_filter
from mongoq.errors import ArgumentInvalid, PayloadInvalid, ReservationLost

logger = logging.getLogger("mongoq.claim")
foreign_logger = logging.getLogger("mongoq.foreign")

OnInvalid = Literal["bury", "raise"]
"""Treatment of a claimed item with a payload that does not fit the model."""
EXPIRED_REASON = "expired"
"""Reason in the origin of a dead letter that was not started in time."""
MAX_SWEEP = 1_000
"""Items at the head of a queue that are checked for their expiry at once, at most."""
MAX_SEQUENCES = 100
"""Sequences whose expired items are settled in one transaction, at most."""
UNREAD = {"payload": 0, "headers": 0, "error": 0, "trail": 0}
"""Projection of items that are settled unread."""
UNREADABLE_REASON = "it holds BSON that cannot be read"
POSTPONEMENT = timedelta(hours=1)
"""Time for which a document of another program is postponed in a queue without a dead queue."""
UNCOUNTABLE_FILTER = [
    {"attempts": {"$not": {"$type": "number"}}},
    # ``$type`` also matches the elements of an array, which may be numbers.
    {"attempts": {"$type": "array"}},
    {"attempts": {"$gt": 2**31}},
]
"""Conditions of attempts that ``$inc`` refuses."""


# --- runs ----------------------------------------------------------------------------------------


def is_exhausted(context: QueueContext[Any], before: Document) -> bool:
    """Return whether an item had all its runs, and no other item can have killed its last holder."""
    return context.settings.is_spent(attempts_of(before)) and not is_suspect(before)


def is_suspect(before: Document) -> bool:
    """Return whether the last reservation was in a batch, and the item was not held alone since.

    Then another item of the batch may have killed the holder, and the item gets one more run, alone. A claim of one
    item sets a token and leaves ``batch`` as it is; an item given back unused has no token.
    """
    batch = before.get("batch")
    return batch is not None and before.get("token") in (None, batch)


async def bury_exhausted(context: QueueContext[Any], item: Item[Any]) -> None:
    """Bury a reserved item that had all its runs; the claim that found it is none, nor is one that died in this."""
    runs = context.settings.most_attempts
    assert runs is not None
    await _bury(context, item, reason_exhausted(runs), None, runs)


async def _bury(
    context: QueueContext[Any], item: Item[Any], reason: str, error: PayloadInvalid | None, attempts: int
) -> None:
    """Bury a reserved item. If its lease has ended meanwhile, the next claim of the item makes the same decision."""
    try:
        await bury(context, item, reason=reason, error=error, attempts=attempts)
        context.unfit += 1
    except ReservationLost as lost:
        words = item.id, item.queue, lost
        logger.warning("item %s of queue %r was not buried here: %s", *words, extra=log_fields(item))


# --- the model -----------------------------------------------------------------------------------


def check_on_invalid(value: Any) -> None:
    if value not in ("bury", "raise"):
        raise ArgumentInvalid("on_invalid", f"'bury' or 'raise', not {value!r}")


def raises_invalid(context: QueueContext[Any], on_invalid: OnInvalid) -> bool:
    """Return whether an item that does not fit the model is raised; in a queue without a dead queue it always is."""
    return on_invalid == "raise" or context.settings.dead is None


def raise_misfit(item: Item[Any], invalid: PayloadInvalid) -> NoReturn:
    """Raise with an item that does not fit the model: it is handed to the caller."""
    raise PayloadInvalid(invalid.path, invalid.problem, item=item) from invalid


async def decode_items(context: QueueContext[Any], items: list[Item[Any]], on_invalid: OnInvalid) -> list[Item[Any]]:
    """Return claimed items decoded; those that do not fit the model are buried.

    Or raise at the first one of them: then only that item stays reserved.
    """
    if context.codec.untyped:
        return items
    decoded: list[Item[Any]] = []
    for item in items:
        try:
            decoded.append(context.decode_payload(item))
        except PayloadInvalid as invalid:
            if raises_invalid(context, on_invalid):
                if others := [other for other in items if other is not item]:
                    await retry_once(give_back_items(context, others))
                raise_misfit(item, invalid)
            words = item.id, item.queue, one_line(str(invalid))
            logger.warning("burying item %s of queue %r: %s", *words, extra=log_fields(item))
            # The reason is the invalid field, so that dead letters can be counted by it: the text of ``bury(error=)``.
            await _bury(context, item, shorten(str(invalid), REASON_BYTES), invalid, item.attempts)
    return decoded


# --- the time by which an item must start --------------------------------------------------------


def is_expired(item: Item[Any], now: datetime) -> bool:
    """Return whether an item that was not started can no longer start; a date of another type never expires."""
    start_by = item.start_by
    return isinstance(start_by, datetime) and start_by <= now


async def start_or_expire(context: QueueContext[Any], items: list[Item[Any]]) -> list[Item[Any]]:
    """Return the reserved items that start now; items whose time is over are settled (``update`` or ``delete``).

    All items are under one token. Items without a date cost no command.
    """
    if all(item.start_by is None for item in items):
        return items
    broker, now = context.broker, context.broker.clock.now()
    expired = [item for item in items if is_expired(item, now)]
    late = {id_key(item.id) for item in expired}
    starting = [item for item in items if id_key(item.id) not in late]
    if expired:
        try:
            if any(item.stored("q") is None for item in expired):  # the claim of a stream reads few fields
                fence = {"_id": {"$in": [item.id for item in expired]}, "token": expired[0].token}
                documents = await find_few(broker, fence, [("_id", 1)], len(expired), projection=UNREAD)
                expired = [context.raw_item(document, now) for document in documents]
            batch = Batch(broker.clock)
            wanted: list[Wanted] = [(item, _make_expiry(context, item, batch, claimed=True)) for item in expired]
            for error in (await settle_all(wanted)).failed.values():
                if not isinstance(error, ReservationLost):  # another caller has it by now
                    raise error
            await settle_expired_head(context)
        except Exception:
            # They were claimed for a caller that gets this error in their place.
            with suppress(Exception):
                await retry_once(give_back_items(context, items))
            raise
    dated = [item for item in starting if item.stored("start_by") is not None]
    if dated:
        held = await update_held(context, dated, {"$unset": {"start_by": ""}})
        lost = {id_key(item.id) for item in dated} - {id_key(item.id) for item in held}
        starting = [item for item in starting if id_key(item.id) not in lost]
    return starting


def _make_expiry(context: QueueContext[Any], item: Item[Any], batch: Batch, *, claimed: bool) -> Settlement:
    """Return the settlement of an item that was not started in time; the attempt of a claim that found it is none.

    It goes to the dead queue, if the queue says so, or to history, or is deleted.
    """
    if context.settings.buries_expired:
        attempts = item.attempts - claimed
        burial = make_burial(context, item, batch, reason=EXPIRED_REASON, error=None, attempts=attempts)
        return replace(burial, event="expired")
    expires = expiry(batch.now, context.settings.history, item.once)
    key = "expired", id_key(item.token), expires, claimed
    if key not in batch.alike:
        update = retention_update(context, item, batch.now, expires)
        if update is not None and claimed:
            update["$inc"] = {"attempts": -1}
        batch.alike[key] = Settlement(context, update, "expired")
    return batch.alike[key]


async def settle_expired_head(context: QueueContext[Any]) -> None:
    """Settle the expired items among the first 1,000 of the queue (``find``, ``bulkWrite``).

    They are not reserved for it: as long as ``start_by`` is there, the item was handed out to nobody. Those in
    sequences leave in transactions, with the expired ones behind them, and the next ones follow; then the head is read
    again. What cannot be settled here, such as a document of another program, is settled by the claim that takes it. A
    crash leaves them where they are.
    """
    broker = context.broker
    placed: Sequence[Item[Any]] | None = None
    while placed is None or placed:
        now = broker.clock.now()
        start = context.state.claim_hints.start(context.name, now)
        try:
            documents = await find_few(broker, start.filter, CLAIM_ORDER, MAX_SWEEP, projection=UNREAD)
            expired = _select_expired(context, documents, now, new_id())
            placed = [item for item in expired if has_place(item)]
            fence = {**eligible(context.name, now), "start_by": {"$lte": now}}
            await settle_all(_make_unclaimed(context, [item for item in expired if not has_place(item)], fence))
            for begin in range(0, len(placed), MAX_SEQUENCES):
                heads = placed[begin : begin + MAX_SEQUENCES]
                record = await run_atomic(broker, partial(_settle_placed, context, heads, fence))
                record()
        except (Unreadable, Refused, PartlyRefused):
            return


def _select_expired(
    context: QueueContext[Any], documents: Iterable[Document], now: datetime, token: ObjectId | None
) -> list[Item[Any]]:
    """Return the expired items among documents, under one token, so that they share a settlement."""
    items: list[Item[Any]] = [context.raw_item({**document, "token": token}, now) for document in documents]
    return [item for item in items if is_expired(item, now)]


def _make_unclaimed(
    context: QueueContext[Any], items: Iterable[Item[Any]], fence: Mapping[str, Any]
) -> Sequence[Wanted]:
    """Return the settlements of expired items that no caller holds."""
    batch = Batch(context.broker.clock)
    return unclaimed(context, [(item, _make_expiry(context, item, batch, claimed=False)) for item in items], fence)


def unclaimed(context: QueueContext[Any], wanted: Iterable[Wanted], fence: Mapping[str, Any]) -> list[Wanted]:
    """Return settlements that find their items by a condition instead of a token: no caller holds them.

    ``by`` tells other processes that have read an item ahead that it was taken. A stub loses it.
    """
    by, alike = str(context.broker.identity), dict[Settlement, Settlement]()
    for _, settlement in (wanted := list(wanted)):
        update = settlement.update
        if update is not None and "by" not in update["$unset"]:
            update = {**update, "$set": {**update["$set"], "by": by}}
        if settlement not in alike:
            alike[settlement] = replace(settlement, update=update, fence=fence)
    return [(item, alike[settlement]) for item, settlement in wanted]


async def _settle_placed(
    context: QueueContext[Any], heads: Sequence[Item[Any]], fence: Mapping[str, Any]
) -> Callable[[], None]:
    """Settle expired heads of sequences and the expired items behind them, inside a transaction.

    Heads that were settled or started meanwhile are left out. Returns the function that records the rest.
    """
    now, ids = heads[0].read_at, [item.id for item in heads]
    # Read in this transaction, they are as they were: another writer of one makes it try again.
    still = {"_id": {"$in": ids}, **fence, "place": HAS_PLACE}
    found = await find_few(context.broker, still, [("_id", 1)], len(ids), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in found}
    leaving = [item for item in heads if id_key(item.id) in keys]
    sequences = {str(item.sequence) for item in leaving}
    if not (context.settings.holds_sequences and context.settings.buries_expired):
        for sequence in sequences:  # behind a letter that holds its sequence, none leaves
            blocked, most = {**blocked_filter(context.name), "sequence": sequence}, MAX_SWEEP // len(sequences)
            documents = await find_few(context.broker, blocked, [("place", 1)], most, projection=UNREAD)
            leaving += _select_expired(context, documents, now, heads[0].token)
    return await settle_within(_make_unclaimed(context, leaving, {"q": context.name, "start_by": {"$lte": now}}))


# --- documents of other programs -----------------------------------------------------------------


async def bury_uncountable(context: QueueContext[Any]) -> bool:
    """Bury the first eligible document with attempts that cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts are set to 0.
    """
    filter = {"q": context.name, "when": {"$lte": context.broker.clock.now()}, "$or": UNCOUNTABLE_FILTER}
    if context.settings.dead is None:
        return await perform(
            Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, has_matched)
        )
    return await bury_foreign(context, filter, "its attempts are no number that can be counted")


async def bury_foreign(context: QueueContext[Any], filter: Mapping[str, Any], reason: str = UNREADABLE_REASON) -> bool:
    """Bury the first document that matches, and return whether there is one (``findAndModify``).

    In a queue without a dead queue it is postponed for an hour: at the head, every claim would find it again.
    """
    if not context.state.ordered:  # this process may not have heard yet of the queue's first sequence
        await refresh_settings(context)
    now, dead, ordered = context.broker.clock.now(), context.settings.dead, context.state.ordered
    if dead is None:
        fields = {"when": now + POSTPONEMENT, "reserved": False, "attempts": 0}
        unset_fields = ["token", "batch"]
    else:
        origin = {"queue": context.name, "reason": reason, "attempts": 0, "key": None, "at": now}
        if context.stage is not None:
            origin["stage"] = context.stage.name
        fields = {"q": dead, "when": now, "reserved": False, "attempts": 0, "origin": origin}
        unset_fields = ["token", "key", "start_by", *(["place"] if ordered else [])]
    update = {"$set": fields, "$unset": dict.fromkeys(unset_fields, "")}
    projection = {"_id": 1, "sequence": 1, "place": 1} if ordered else {"_id": 1}
    arguments = {"filter": filter, "update": update, "sort": CLAIM_ORDER, "projection": projection}

    async def remove() -> tuple[Any, list[Promoted]]:
        """Bury the document, which then holds its sequence, or lets the next item follow; in a transaction."""
        removed: Any = await perform(Command("find_one_and_update", arguments))
        sequence, place = (removed or {}).get("sequence"), (removed or {}).get("place")
        if dead is None or place is None or not isinstance(sequence, str):
            return removed, []
        if context.settings.holds_sequences and isinstance(place, int):
            await hold(context.broker, context.name, [Letter(removed["_id"], dead, sequence, place)])
            return removed, []
        return removed, (await leave(context.broker, context.name, {sequence: 1}))

    is_atomic = ordered and dead is not None
    removed, promoted = await (run_atomic(context.broker, remove) if is_atomic else remove())
    record_promoted(context.broker, promoted)
    if removed is None:
        return False
    context.unfit += 1
    id, extra = removed["_id"], log_fields(queue=context.name, id=removed["_id"])
    if dead is None:
        foreign_logger.warning(
            "put off document %s of queue %r until %s: it holds BSON that cannot be read; get(id) raises with its "
            "bytes, remove(id) deletes it",
            *(id, context.name, fields["when"]),
            extra=extra,
        )
    else:
        context.count("dead")
        context.broker.record_put(dead, now, id=id)
        foreign_logger.warning("buried document %s of queue %r: %s", id, context.name, reason, extra=extra)
    return True


# --- what a claim holds until it hands it out ----------------------------------------------------


def make_marks(context: QueueContext[Any], now: datetime, lease: timedelta) -> dict[str, Any]:
    """Return the fields that a claim sets, with a token of its own."""
    return {"when": now + lease, "reserved": True, "token": new_id(), "by": str(context.broker.identity)}


def give_back_command(
    context: QueueContext[Any], token: ObjectId | None, dues: Iterable[tuple[Any, datetime]], now: datetime
) -> Command[Any]:
    """Return the command that hands back unused what the token holds of some items, given their ids and due dates."""
    if context.broker.serverless:
        filter = {"_id": {"$in": [id for id, _ in dues]}, "token": token}
        return Command("update_many", {"filter": filter, "update": release_update(now)})
    places: dict[datetime, list[Any]] = {}
    for id, due in dues:
        places.setdefault(due, []).append(id)
    requests: list[Statement] = [
        make_statement({"token": token}, ids, release_update(when)) for when, ids in places.items()
    ]
    return Command("bulk_write", {"requests": requests, "ordered": False})


def give_back_items(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Command[Any]:
    """Return the command that hands back unused items that were claimed together."""
    first, now = items[0], items[0].read_at
    if len(items) == 1:
        return release_command(first.id, first.token, first.due or now)
    return give_back_command(context, first.token, [(item.id, item.due or now) for item in items], now)


async def update_held(
    context: QueueContext[Any], items: Sequence[Item[Any]], update: Mapping[str, Any]
) -> list[Item[Any]]:
    """Update items that were claimed together, and return those that their token still holds (``update``).

    The undo of their claim gives them back when the call is cancelled or fails. Sent again after a lost reply, the
    update sets the same values. ``find`` tells which items are lost, if any.
    """
    fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
    if await retry_until_reply(update_many_command(fence, update)) == len(items):
        return list(items)
    documents = await find_few(context.broker, fence, [("_id", 1)], len(items), projection={"_id": 1})
    held = {id_key(document["_id"]) for document in documents}
    return [item for item in items if id_key(item.id) in held]


async def renew_leases(context: QueueContext[Any], items: list[Item[Any]], lease: timedelta) -> list[Item[Any]]:
    """Restart the leases when the claim, or burials among its items, took half of them; lost items are left out."""
    until, now = items[0].lease_until if items else None, context.broker.clock.now()
    if until is None or now < until - lease / 2:
        return items
    held = await update_held(context, items, {"$set": {"when": now + lease}})
    return [item.held_until(now + lease) for item in held]


async def hand_out(
    context: QueueContext[Any], items: list[Item[Any]], lease: timedelta, on_invalid: OnInvalid = "bury"
) -> list[Item[Any]]:
    """Return claimed items as callers get them: decoded, under a lease that has half of its time left, and counted."""
    decoded = await decode_items(context, items, on_invalid)
    held = await renew_leases(context, decoded, lease)
    context.count("reserve", len(held))
    return held
