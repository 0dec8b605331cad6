"""Settling of many items: what is to become of each, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar

import bson
from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, duration, listed, moment
from mongoq.model.envelope import Document, error_document
from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Item
from mongoq.model.outcomes import Move
from mongoq.model.settings import KEEP
from mongoq.protocol import settle
from mongoq.protocol.bulk import Settlement, settled, within
from mongoq.protocol.context import QueueContext
from mongoq.protocol.fence import check_owner, is_back
from mongoq.protocol.move import EXHAUSTED_REASON, Handover, burial_update, dead_queue, destination, hand_over, handover
from mongoq.protocol.patching import patched
from mongoq.protocol.push import due
from mongoq.protocol.request import Flow
from mongoq.protocol.settings import prepared

__all__ = ["commit_many", "extend_many", "move_many", "release_many", "rollback_many"]

M = TypeVar("M")
Resolve = Callable[[Any], "str | QueueContext[Any]"]


def _checked(context: QueueContext[Any], items: Any, argument: str = "items") -> list[Item[Any]]:
    """Return the items, each once, all of them reserved from this queue."""
    found = listed(items, argument)
    seen: set[ObjectId] = set()
    for place, item in enumerate(found):
        if not isinstance(item, Item):
            raise ArgumentInvalid(f"{argument}[{place}]", f"an Item that was reserved, not {type(item).__name__}")
        check_owner(context, item)
        if item.id in seen:
            raise ArgumentInvalid(f"{argument}[{place}]", f"item {item.id} is given twice")
        seen.add(item.id)
    return found


def commit_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> Flow[None]:
    """Settle items as done."""
    checked = _checked(context, items)
    if not checked:
        return
    yield from prepared(context)
    now = context.broker.clock.now()
    yield from settled(context, [_commit(context, item, now) for item in checked])


def _commit(context: QueueContext[Any], item: Item[Any], now: datetime) -> Settlement:
    update = settle.kept_update(context, item, now, {})
    happened = partial(_is_committed, item=item, deleted=update is None)
    alone = partial(settle.commit, context, item, payload=None, replace_payload=False)
    # under one token only the date of expiry tells two such updates apart
    return Settlement(item, update, happened, "commit", alone, alike=(update and update["$set"]["expires"],))


def _is_committed(found: Document, *, item: Item[Any], deleted: bool) -> bool | None:
    return settle.unless_ours(found, item) if deleted else settle.settled_by(found, item)


def rollback_many(context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration, error: Any) -> Flow[None]:
    """Hand items back after a failure; those beyond their retries are buried."""
    length = duration(delay, "delay")
    error_document(error, BEGINNING)  # refuses what is no error
    checked = _checked(context, items)
    if not checked:
        return
    yield from prepared(context)
    now = context.broker.clock.now()
    failure, most = error_document(error, now), context.settings.most_attempts
    update = settle.rollback_update(now + length, failure)

    def one(item: Item[Any]) -> Settlement:
        alone = partial(settle.rollback, context, item, delay=delay, error=error)
        if most is None or item.attempts < most:
            return Settlement(item, update, partial(is_back, when=now + length), "rollback", alone, alike=())
        dead, reason = dead_queue(context), EXHAUSTED_REASON
        grave = burial_update(dead, item, reason=reason, error=error, attempts=item.attempts, now=now)
        return Settlement(item, grave, partial(is_back, when=now), "dead", alone)

    yield from settled(context, [one(item) for item in checked])


def release_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> Flow[None]:
    """Hand items back unused."""
    checked = _checked(context, items)
    if not checked:
        return
    yield from prepared(context)
    now = context.broker.clock.now()

    def one(item: Item[Any]) -> Settlement:
        when = item.due or now
        alone = partial(settle.release, context, item)
        happened = partial(is_back, when=when)
        # an item that was released before looks just the same
        return Settlement(item, settle.release_update(when), happened, "release", alone, alike=when, telling=False)

    yield from settled(context, [one(item) for item in checked])


def extend_many(context: QueueContext[M], items: Iterable[Item[M]], *, lease: Duration | None) -> Flow[list[Item[M]]]:
    """Let the leases end so much later than now, and return the items with that time."""
    length = None if lease is None else duration(lease, "lease", zero=False)
    checked = _checked(context, items)
    if not checked:
        return []
    yield from prepared(context)
    until = context.broker.clock.now() + (length or context.settings.lease)

    def one(item: Item[Any]) -> Settlement:
        happened = partial(settle.is_extended, item=item, until=until)
        alone = partial(settle.extend, context, item, lease=lease)
        return Settlement(item, {"$set": {"when": until}}, happened, None, alone, alike=())

    ends = yield from settled(context, [one(item) for item in checked])
    return [item.held_until(ends[item.id] or until) for item in checked]


def move_many(context: QueueContext[Any], moves: Iterable[tuple[Item[Any], Move]], resolve: Resolve) -> Flow[None]:
    """Hand items on to other queues; ``resolve`` turns a handle into its context."""
    pairs = _pairs(context, moves)
    handovers = [_handover(context, way, place, resolve) for place, (_, way) in enumerate(pairs)]
    if not pairs:
        return
    yield from prepared(context)
    due_at = cache(partial(due, context.broker.clock))  # of moments in UTC: two folds of one hour are equal
    yield from settled(
        context,
        [
            _move(context, item, handed, due_at(handed.delay, handed.when and moment(handed.when, "when")))
            for (item, _), handed in zip(pairs, handovers, strict=True)
        ],
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


def _handover(context: QueueContext[Any], way: Move, place: int, resolve: Resolve) -> Handover:
    with within(f"moves[{place}]."):
        return handover(
            context,
            destination(context, resolve(way.to)),
            payload=way.payload,
            replace_payload=way.payload is not KEEP,
            patch=way.patch,
            delay=way.delay,
            when=way.when,
            priority=way.priority,
            headers=way.headers,
            replace_headers=way.headers is not KEEP,
        )


def _move(context: QueueContext[Any], item: Item[Any], handed: Handover, when: datetime) -> Settlement:
    """Equal moves share a statement; a patch that does not fit must not fail another item, so each has its own."""
    update, alone = handed.update(when), partial(hand_over, context, item, handed)
    happened = partial(_is_moved, queue=handed.changes["q"], when=when)
    if handed.patch:
        update, room, added = patched(context, update, handed.patch)
        size = context.broker.encoding.size(update)
        return Settlement(item, update, happened, "move", alone, patch=added, room=room, size=size)
    raw = bson.encode(update, codec_options=context.broker.encoding.options)
    return Settlement(item, update, happened, "move", alone, alike=raw, size=len(raw))


def _is_moved(found: Document, *, queue: str, when: datetime) -> bool | None:
    return is_back(found, when) if found.get("q") == queue else None
