# Generated from mongoq/core/claim/judge.py by scripts/unasync.py. Do not edit.
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

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from mongoq.core.claim.judge import (
    MAX_SEQUENCES,
    MAX_SWEEP,
    POSTPONEMENT,
    UNCOUNTABLE_FILTER,
    UNREAD,
    UNREADABLE_REASON,
    OnInvalid,
    _make_expiry,
    _make_unclaimed,
    _select_expired,
    foreign_logger,
    give_back_items,
    is_expired,
    logger,
    raise_misfit,
    raises_invalid,
)
from mongoq.core.command import Command, PartlyRefused, Refused, Unreadable, has_matched
from mongoq.core.sequence.hold import Letter
from mongoq.core.sequence.places import Promoted, record_promoted
from mongoq.core.settle.by_token import update_many_command
from mongoq.core.settle.settle import reason_exhausted
from mongoq.core.settle.settlement import Batch, Wanted
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.find import find_few
from mongoq.core_threads.base.queue_settings import refresh_settings
from mongoq.core_threads.base.retry import retry_once, retry_until_reply
from mongoq.core_threads.base.transaction import run_atomic
from mongoq.core_threads.perform import perform
from mongoq.core_threads.sequence.hold import hold
from mongoq.core_threads.sequence.places import leave
from mongoq.core_threads.settle.send import settle_all, settle_within
from mongoq.core_threads.settle.settle import bury
from mongoq.data.arguments import REASON_BYTES
from mongoq.data.encoding.error_text import one_line
from mongoq.data.envelope import new_id, shorten
from mongoq.data.indexes import CLAIM_ORDER
from mongoq.data.item import Item, has_place, id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.sequence import HAS_PLACE, blocked_filter
from mongoq.errors import PayloadInvalid, ReservationLost

# --- runs ----------------------------------------------------------------------------------------


def bury_exhausted(context: QueueContext[Any], item: Item[Any]) -> None:
    """Bury a reserved item that had all its runs; the claim that found it is none, nor is one that died in this."""
    runs = context.settings.most_attempts
    assert runs is not None
    _bury(context, item, reason_exhausted(runs), None, runs)


def _bury(
    context: QueueContext[Any], item: Item[Any], reason: str, error: PayloadInvalid | None, attempts: int
) -> None:
    """Bury a reserved item. If its lease has ended meanwhile, the next claim of the item makes the same decision."""
    try:
        bury(context, item, reason=reason, error=error, attempts=attempts)
        context.unfit += 1
    except ReservationLost as lost:
        words = item.id, item.queue, lost
        logger.warning("item %s of queue %r was not buried here: %s", *words, extra=log_fields(item))


# --- the model -----------------------------------------------------------------------------------


def decode_items(context: QueueContext[Any], items: list[Item[Any]], on_invalid: OnInvalid) -> list[Item[Any]]:
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
                    retry_once(give_back_items(context, others))
                raise_misfit(item, invalid)
            words = item.id, item.queue, one_line(str(invalid))
            logger.warning("burying item %s of queue %r: %s", *words, extra=log_fields(item))
            # The reason is the invalid field, so that dead letters can be counted by it: the text of ``bury(error=)``.
            _bury(context, item, shorten(str(invalid), REASON_BYTES), invalid, item.attempts)
    return decoded


# --- the time by which an item must start --------------------------------------------------------


def start_or_expire(context: QueueContext[Any], items: list[Item[Any]]) -> list[Item[Any]]:
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
                documents = find_few(broker, fence, [("_id", 1)], len(expired), projection=UNREAD)
                expired = [context.raw_item(document, now) for document in documents]
            batch = Batch(broker.clock)
            wanted: list[Wanted] = [(item, _make_expiry(context, item, batch, claimed=True)) for item in expired]
            for error in (settle_all(wanted)).failed.values():
                if not isinstance(error, ReservationLost):  # another caller has it by now
                    raise error
            settle_expired_head(context)
        except Exception:
            # They were claimed for a caller that gets this error in their place.
            with suppress(Exception):
                retry_once(give_back_items(context, items))
            raise
    dated = [item for item in starting if item.stored("start_by") is not None]
    if dated:
        held = update_held(context, dated, {"$unset": {"start_by": ""}})
        lost = {id_key(item.id) for item in dated} - {id_key(item.id) for item in held}
        starting = [item for item in starting if id_key(item.id) not in lost]
    return starting


def settle_expired_head(context: QueueContext[Any]) -> None:
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
            documents = find_few(broker, start.filter, CLAIM_ORDER, MAX_SWEEP, projection=UNREAD)
            expired = _select_expired(context, documents, now, new_id())
            placed = [item for item in expired if has_place(item)]
            fence = {**eligible(context.name, now), "start_by": {"$lte": now}}
            settle_all(_make_unclaimed(context, [item for item in expired if not has_place(item)], fence))
            for begin in range(0, len(placed), MAX_SEQUENCES):
                heads = placed[begin : begin + MAX_SEQUENCES]
                record = run_atomic(broker, partial(_settle_placed, context, heads, fence))
                record()
        except (Unreadable, Refused, PartlyRefused):
            return


def _settle_placed(
    context: QueueContext[Any], heads: Sequence[Item[Any]], fence: Mapping[str, Any]
) -> Callable[[], None]:
    """Settle expired heads of sequences and the expired items behind them, inside a transaction.

    Heads that were settled or started meanwhile are left out. Returns the function that records the rest.
    """
    now, ids = heads[0].read_at, [item.id for item in heads]
    # Read in this transaction, they are as they were: another writer of one makes it try again.
    still = {"_id": {"$in": ids}, **fence, "place": HAS_PLACE}
    found = find_few(context.broker, still, [("_id", 1)], len(ids), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in found}
    leaving = [item for item in heads if id_key(item.id) in keys]
    sequences = {str(item.sequence) for item in leaving}
    if not (context.settings.holds_sequences and context.settings.buries_expired):
        for sequence in sequences:  # behind a letter that holds its sequence, none leaves
            blocked, most = {**blocked_filter(context.name), "sequence": sequence}, MAX_SWEEP // len(sequences)
            documents = find_few(context.broker, blocked, [("place", 1)], most, projection=UNREAD)
            leaving += _select_expired(context, documents, now, heads[0].token)
    return settle_within(_make_unclaimed(context, leaving, {"q": context.name, "start_by": {"$lte": now}}))


# --- documents of other programs -----------------------------------------------------------------


def bury_uncountable(context: QueueContext[Any]) -> bool:
    """Bury the first eligible document with attempts that cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts are set to 0.
    """
    filter = {"q": context.name, "when": {"$lte": context.broker.clock.now()}, "$or": UNCOUNTABLE_FILTER}
    if context.settings.dead is None:
        return perform(Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, has_matched))
    return bury_foreign(context, filter, "its attempts are no number that can be counted")


def bury_foreign(context: QueueContext[Any], filter: Mapping[str, Any], reason: str = UNREADABLE_REASON) -> bool:
    """Bury the first document that matches, and return whether there is one (``findAndModify``).

    In a queue without a dead queue it is postponed for an hour: at the head, every claim would find it again.
    """
    if not context.state.ordered:  # this process may not have heard yet of the queue's first sequence
        refresh_settings(context)
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

    def remove() -> tuple[Any, list[Promoted]]:
        """Bury the document, which then holds its sequence, or lets the next item follow; in a transaction."""
        removed: Any = perform(Command("find_one_and_update", arguments))
        sequence, place = (removed or {}).get("sequence"), (removed or {}).get("place")
        if dead is None or place is None or not isinstance(sequence, str):
            return removed, []
        if context.settings.holds_sequences and isinstance(place, int):
            hold(context.broker, context.name, [Letter(removed["_id"], dead, sequence, place)])
            return removed, []
        return removed, (leave(context.broker, context.name, {sequence: 1}))

    is_atomic = ordered and dead is not None
    removed, promoted = run_atomic(context.broker, remove) if is_atomic else remove()
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


def update_held(context: QueueContext[Any], items: Sequence[Item[Any]], update: Mapping[str, Any]) -> list[Item[Any]]:
    """Update items that were claimed together, and return those that their token still holds (``update``).

    The undo of their claim gives them back when the call is cancelled or fails. Sent again after a lost reply, the
    update sets the same values. ``find`` tells which items are lost, if any.
    """
    fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
    if retry_until_reply(update_many_command(fence, update)) == len(items):
        return list(items)
    documents = find_few(context.broker, fence, [("_id", 1)], len(items), projection={"_id": 1})
    held = {id_key(document["_id"]) for document in documents}
    return [item for item in items if id_key(item.id) in held]


def renew_leases(context: QueueContext[Any], items: list[Item[Any]], lease: timedelta) -> list[Item[Any]]:
    """Restart the leases when the claim, or burials among its items, took half of them; lost items are left out."""
    until, now = items[0].lease_until if items else None, context.broker.clock.now()
    if until is None or now < until - lease / 2:
        return items
    held = update_held(context, items, {"$set": {"when": now + lease}})
    return [item.held_until(now + lease) for item in held]


def hand_out(
    context: QueueContext[Any], items: list[Item[Any]], lease: timedelta, on_invalid: OnInvalid = "bury"
) -> list[Item[Any]]:
    """Return claimed items as callers get them: decoded, under a lease that has half of its time left, and counted."""
    decoded = decode_items(context, items, on_invalid)
    held = renew_leases(context, decoded, lease)
    context.count("reserve", len(held))
    return held
