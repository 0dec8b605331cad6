"""Settling of many items: what is to become of each, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, duration, listed, moment
from mongoq.model.clock import Clock
from mongoq.model.envelope import Document, error_document, expiry, spliced
from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Move
from mongoq.model.settings import KEEP
from mongoq.protocol import settle
from mongoq.protocol.batch import placed
from mongoq.protocol.bulk import Settlement, settled
from mongoq.protocol.context import QueueContext
from mongoq.protocol.fence import check_owner, is_back
from mongoq.protocol.move import (
    EXHAUSTED_REASON,
    Destination,
    Handover,
    burial_update,
    dead_queue,
    destination,
    hand_over,
    handover,
)
from mongoq.protocol.patching import patched
from mongoq.protocol.push import due
from mongoq.protocol.request import Flow
from mongoq.protocol.settings import prepared

__all__ = [
    "Batch",
    "burying",
    "commit_many",
    "committing",
    "extend_many",
    "extending",
    "move_many",
    "moving",
    "moving_as_told",
    "release_many",
    "releasing",
    "rollback_many",
    "rolling_back",
]

M = TypeVar("M")
Resolve = Callable[[Any], "str | QueueContext[Any]"]
_Told = tuple[Handover, bytes | None]
"""What a move is told, and the payload that it brings, as ``{"payload": payload}`` in BSON."""
_Way = Callable[[bytes | None], Settlement]
"""Makes the settlement of a move, given that payload."""


def _checked(context: QueueContext[Any], items: Any, argument: str = "items") -> list[Item[Any]]:
    """Return the items, each once, all of them reserved from this queue."""
    found, namespace, queue = listed(items, argument), context.broker.namespace, context.name
    seen: set[Any] = set()
    for place, item in enumerate(found):
        if not isinstance(item, Item):
            raise ArgumentInvalid(f"{argument}[{place}]", f"an Item that was reserved, not {type(item).__name__}")
        if not item.held_in(namespace, queue):
            check_owner(context, item)  # says what is wrong with it
        key = id_key(item.id)
        if key in seen:
            raise ArgumentInvalid(f"{argument}[{place}]", f"item {item.id} is given twice")
        seen.add(key)
    return found


class Batch:
    """What the items of one batch share: the moment it is sent, and the settlements that are alike."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now()
        self.alike: dict[Any, Settlement] = {}
        self.due = cache(partial(due, clock))  # of moments in UTC: two folds of one hour are equal


def commit_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> Flow[None]:
    """Settle items as done."""
    checked = _checked(context, items)
    if not checked:
        return
    yield from prepared(context)
    batch = Batch(context.broker.clock)
    yield from settled(context, [(item, committing(context, item, batch)) for item in checked])


def committing(context: QueueContext[Any], item: Item[Any], batch: Batch) -> Settlement:
    """Return how an item of a batch is committed."""
    expires = expiry(batch.now, context.settings.history, item.once)
    key = expires and (id_key(item.token), expires)  # all that two updates can differ in
    if key not in batch.alike:
        batch.alike[key] = _commit(context, item, batch.now)
    return batch.alike[key]


def _commit(context: QueueContext[Any], item: Item[Any], now: datetime) -> Settlement:
    update = settle.kept_update(context, item, now, {})
    alone = partial(settle.commit, context, payload=None, replace_payload=False)
    if update is None:
        return Settlement(update, settle.unless_ours, "commit", alone)
    # committed before, within the same millisecond, an item looks just the same
    return Settlement(update, partial(_is_kept, now=now), "commit", alone, telling=False)


def _is_kept(found: Document, item: Item[Any], *, now: datetime) -> bool | None:
    kept = settle.settled_by(found, item)
    return kept and found.get("processed") == now


def rollback_many(context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration, error: Any) -> Flow[None]:
    """Hand items back after a failure; those beyond their retries are buried."""
    length = duration(delay, "delay")
    error_document(error, BEGINNING)  # refuses what is no error
    checked = _checked(context, items)
    if not checked:
        return
    yield from prepared(context)
    batch = Batch(context.broker.clock)
    back = partial(rolling_back, context, length=length, error=error)
    yield from settled(context, [(item, back(item, batch)) for item in checked])


def rolling_back(
    context: QueueContext[Any], item: Item[Any], batch: Batch, *, length: timedelta, error: Any
) -> Settlement:
    """Return how an item of a batch is handed back after a failure."""
    alone = partial(settle.rollback, context, delay=length, error=error)
    now, key = batch.now, (length, id(error))
    if context.settings.is_spent(item.attempts):
        return burying(context, item, batch, reason=EXHAUSTED_REASON, error=error, alone=alone)
    if key not in batch.alike:
        update = settle.rollback_update(now + length, error_document(error, now))
        batch.alike[key] = Settlement(update, _back_at(now + length), "rollback", alone)
    return batch.alike[key]


def burying(
    context: QueueContext[Any],
    item: Item[Any],
    batch: Batch,
    *,
    reason: str | None,
    error: Any,
    alone: Callable[[Item[Any]], Flow[Any]],
) -> Settlement:
    """Return how an item of a batch is buried."""
    dead = dead_queue(context)
    grave = burial_update(dead, item, reason=reason, error=error, attempts=item.attempts, now=batch.now)
    return Settlement(grave, _back_at(batch.now), "dead", alone)


def _back_at(when: datetime) -> Callable[[Document, Item[Any]], bool | None]:
    return lambda found, _: is_back(found, when)


def release_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> Flow[None]:
    """Hand items back unused."""
    checked = _checked(context, items)
    if not checked:
        return
    yield from prepared(context)
    batch = Batch(context.broker.clock)
    try:
        yield from settled(context, [(item, releasing(context, item, batch)) for item in checked])
    finally:
        for item in checked:
            context.placed(item.priority, item.due or batch.now)


def releasing(context: QueueContext[Any], item: Item[Any], batch: Batch) -> Settlement:
    """Return how an item of a batch is handed back unused."""
    when = item.due or batch.now
    key = "release", when
    if key not in batch.alike:
        # an item that was released before looks just the same
        alone = partial(settle.release, context)
        batch.alike[key] = Settlement(settle.release_update(when), _back_at(when), "release", alone, telling=False)
    return batch.alike[key]


def extend_many(context: QueueContext[M], items: Iterable[Item[M]], *, lease: Duration | None) -> Flow[list[Item[M]]]:
    """Let the leases end so much later than now, and return the items with that time."""
    length = None if lease is None else duration(lease, "lease", zero=False)
    checked = _checked(context, items)
    if not checked:
        return []
    yield from prepared(context)
    batch = Batch(context.broker.clock)
    longer = extending(context, batch, lease=length)
    ends = yield from settled(context, [(item, longer) for item in checked])
    until = longer.told
    return [item.held_until(ends.get(id_key(item.id), until)) for item in checked]


def extending(context: QueueContext[Any], batch: Batch, *, lease: timedelta | None) -> Settlement:
    """Return how the leases of a batch are extended."""
    until = batch.now + (lease or context.settings.lease)
    if until not in batch.alike:
        happened, alone = partial(settle.is_extended, until=until), partial(settle.extend, context, lease=lease)
        batch.alike[until] = Settlement({"$set": {"when": until}}, happened, None, alone, told=until)
    return batch.alike[until]


def move_many(context: QueueContext[Any], moves: Iterable[tuple[Item[Any], Move]], resolve: Resolve) -> Flow[None]:
    """Hand items on to other queues; ``resolve`` turns a handle into its context."""
    pairs = _pairs(context, moves)
    told = _told(context, pairs, resolve)
    if not pairs:
        return
    yield from prepared(context)
    batch = Batch(context.broker.clock)
    ways = {handed: moving(context, handed, batch) for handed in dict.fromkeys(handed for handed, _ in told)}
    yield from settled(
        context, [(item, ways[handed](payload)) for (item, _), (handed, payload) in zip(pairs, told, strict=True)]
    )


def _pairs(context: QueueContext[Any], moves: Any) -> list[tuple[Item[Any], Move]]:
    pairs = listed(moves, "moves")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentInvalid(f"moves[{place}]", f"a tuple of an item and a Move, not {type(pair).__name__}")
        if not isinstance(pair[1], Move):
            raise ArgumentInvalid(f"moves[{place}]", f"a Move beside the item, not {type(pair[1]).__name__}")
    _checked(context, [item for item, _ in pairs], "moves")
    return pairs


_but_payload = attrgetter("to", "patch", "delay", "when", "priority", "headers")


def _told(context: QueueContext[Any], pairs: list[tuple[Item[Any], Move]], resolve: Resolve) -> list[_Told]:
    """Check moves; those that are told the very same objects, but for the payload, share a handover."""
    known: dict[Any, tuple[Handover, Destination]] = {}
    told: list[_Told] = []
    for place, (_, move) in enumerate(pairs):
        own = move.payload is not KEEP
        key = own, *map(id, _but_payload(move))  # equal is not enough: 1 equals True, which is refused
        try:
            if key not in known:
                to = destination(context, resolve(move.to))
                known[key] = _handover(context, to, move), to
            handed, to = known[key]
            told.append((handed, to.codec.wrapped(move.payload) if own else None))
        except ArgumentInvalid as error:
            raise placed(error, f"moves[{place}].") from error
    return told


def moving_as_told(context: QueueContext[Any], move: Move, batch: Batch, resolve: Resolve) -> Settlement:
    """Return how an item of a batch is moved, all of it checked."""
    to = destination(context, resolve(move.to))
    payload = to.codec.wrapped(move.payload) if move.payload is not KEEP else None
    return moving(context, _handover(context, to, move), batch)(payload)


def _handover(context: QueueContext[Any], to: Destination, move: Move) -> Handover:
    return handover(
        context,
        to,
        payload=move.payload,
        replace_payload=move.payload is not KEEP,
        patch=move.patch,
        delay=move.delay,
        when=move.when,
        priority=move.priority,
        headers=move.headers,
        replace_headers=move.headers is not KEEP,
    )


def moving(context: QueueContext[Any], handed: Handover, batch: Batch) -> _Way:
    """Return what makes the settlements of a move; those whose updates are the same bytes share one."""
    when, equal = batch.due(handed.delay, handed.when and moment(handed.when, "when")), batch.alike
    encoding, update = context.broker.encoding, handed.update(when)
    happened = partial(_is_moved, queue=handed.changes["q"], when=when)
    if handed.patch:
        update, room, added = patched(context, update, handed.patch)
        alone, size = partial(hand_over, context, handed=handed), encoding.size(update)
        settlement = Settlement(update, happened, "move", alone, patch=added, room=room, size=size)
        return lambda _: settlement
    gone = update["$unset"]
    changes = encoding.raw({name: value for name, value in update["$set"].items() if name != "payload"})
    shared = bytes(changes.raw)

    def one(payload: bytes | None) -> Settlement:
        raw = shared if payload is None else spliced(shared, payload)
        key = raw, *gone
        if key not in equal:
            sent = {"$set": encoding.of_bytes(raw), "$unset": gone}  # those very bytes
            alone = partial(_hand_over, context, handed, payload)
            equal[key] = Settlement(sent, happened, "move", alone, size=len(raw))
        return equal[key]

    return one


def _hand_over(context: QueueContext[Any], handed: Handover, payload: bytes | None, item: Item[Any]) -> Flow[None]:
    if payload is not None:
        value = context.broker.encoding.of_bytes(payload)["payload"]
        handed = replace(handed, changes={**handed.changes, "payload": value})
    return hand_over(context, item, handed)


def _is_moved(found: Document, _: Item[Any], *, queue: str, when: datetime) -> bool | None:
    return is_back(found, when) if found.get("q") == queue else None
