"""Settle many items: the settlement of each is checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, TypeVar

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, duration, read_list
from mongoq.model.clock import Clock
from mongoq.model.envelope import Document, error_document, expiry
from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Item, id_key, is_held_in
from mongoq.model.raw import RawBatch, all_held, one_due, remembers
from mongoq.protocol.base.fence import check_owner, is_back, is_gone
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow
from mongoq.protocol.push.push import due_time
from mongoq.protocol.settle import settle
from mongoq.protocol.settle.bulk import Put, Settlement, settle_alike, settle_bulk
from mongoq.protocol.settle.move import (
    Handover,
    burial_update,
    dead_queue,
    reason_exhausted,
)
from mongoq.protocol.settle.trail import NO_MARKS, Ended, Marker, Marks
from mongoq.protocol.state.context import QueueContext

__all__ = [
    "Batch",
    "check_items",
    "commit_many",
    "extend_many",
    "make_burial",
    "make_commit",
    "make_extension",
    "make_release",
    "make_rollback",
    "release_many",
    "rollback_many",
]

M = TypeVar("M")


def check_items(
    context: QueueContext[Any], items: Any, argument: str = "items"
) -> tuple[list[Item[Any]], RawBatch | None]:
    """Return the items, each once, all reserved from this queue, and their common facts, if known."""
    found, namespace, queue = read_list(items, argument), context.broker.namespace, context.name
    held = all_held(found, namespace, queue)
    if held is not None:
        return found, held
    seen: set[Any] = set()
    for place, item in enumerate(found):
        if not isinstance(item, Item):
            raise ArgumentInvalid(f"{argument}[{place}]", f"an Item that was reserved, not {type(item).__name__}")
        if not is_held_in(item, namespace, queue):
            check_owner(context, item)  # says what is wrong with it
        key = id_key(item.id)
        if key in seen:
            raise ArgumentInvalid(f"{argument}[{place}]", f"item {item.id} is given twice")
        seen.add(key)
    return found, None


class Batch:
    """Shared state of one batch: the moment it is sent, settlements that items share, and their marks."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now()
        self.alike: dict[Any, Settlement] = {}
        self.due = cache(partial(due_time, clock))  # of moments in UTC: two folds of one hour are equal
        self.ways: dict[Handover, Callable[[Item[Any], bytes | None], Settlement]] = {}
        self._markers: dict[Any, Marker] = {}

    def marker(self, context: QueueContext[Any], ended: Ended, to: str | None = None) -> Marker:
        """Return the maker of marks for items with this end; handles of one queue may belong to a stage or to none."""
        key = context.stage, ended, to
        if key not in self._markers:
            self._markers[key] = Marker(context, ended, at=self.now, to=to)
        return self._markers[key]


def settle_all(
    context: QueueContext[Any],
    items: list[Item[Any]],
    settle: Callable[[Item[Any]], Settlement],
    held: RawBatch | None,
) -> Flow[dict[Any, Any]]:
    """Settle items, each by ``settle``, and return the same as ``settle_bulk``.

    With ``held`` the items are alike in all that ``settle`` reads, and it is called once, with the first.
    """
    if held is None:
        return (yield from settle_bulk(context, [(item, settle(item)) for item in items]))
    return (yield from settle_alike(context, items, settle(items[0]), held))


def commit_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> Flow[None]:
    """Settle items as done."""
    checked, held = check_items(context, items)
    if not checked:
        return
    yield from ensure_ready(context)
    batch = Batch(context.broker.clock)
    # History tells the token of an item, so items under several tokens are kept by several updates.
    alike = held is not None and (context.settings.history is None or held.together)
    alike = alike and context.stage is None and not remembers(checked)
    yield from settle_all(context, checked, partial(make_commit, context, batch=batch), held if alike else None)


def make_commit(context: QueueContext[Any], item: Item[Any], batch: Batch) -> Settlement:
    """Return the settlement that commits an item of a batch."""
    expires = expiry(batch.now, context.settings.history, item.once)
    kept = context.settings.history is not None  # a stub has no trail
    marks = batch.marker(context, "done").marks(item) if kept else NO_MARKS
    key = expires and (id_key(item.token), expires, marks)  # all that two updates can differ in
    if key not in batch.alike:
        batch.alike[key] = _make_commit(context, item, batch.now, marks)
    return batch.alike[key]


def _make_commit(context: QueueContext[Any], item: Item[Any], now: datetime, marks: Marks) -> Settlement:
    update = settle.retention_update(context, item, now, {})
    alone = partial(settle.commit, context)
    if update is None:
        return Settlement(update, settle.is_deleted, "commit", alone)
    # committed before, within the same millisecond, an item looks just the same
    happened = partial(_is_kept, now=now)
    return Settlement(marks.on(update), happened, "commit", alone, size=marks.size, is_proof=False)


def _is_kept(found: Document, item: Item[Any], *, now: datetime) -> bool | None:
    kept = settle.is_settled_by(found, item)
    return kept and found.get("processed") == now


def rollback_many(context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration, error: Any) -> Flow[None]:
    """Hand items back after a failure; items without retries left are buried."""
    length = duration(delay, "delay")
    error_document(error, BEGINNING)  # refuses what is no error
    checked, held = check_items(context, items)
    if not checked:
        return
    yield from ensure_ready(context)
    batch = Batch(context.broker.clock)
    back = partial(make_rollback, context, batch=batch, length=length, error=error)
    endless = context.settings.max_retries is None
    alike = endless or not context.settings.is_spent(max(item.attempts for item in checked))
    yield from settle_all(context, checked, back, held if alike else None)


def make_rollback(
    context: QueueContext[Any], item: Item[Any], batch: Batch, *, length: timedelta, error: Any
) -> Settlement:
    """Return the settlement that hands an item of a batch back after a failure."""
    key = length.days, length.seconds, length.microseconds, id(error)  # a timedelta takes longer to look up
    spent = context.settings.is_spent(item.attempts)
    found = None if spent else batch.alike.get(key)
    if found is not None:
        return found
    alone = partial(settle.rollback, context, delay=length, error=error)
    if spent:
        return make_burial(context, item, batch, reason=reason_exhausted(item.attempts), error=error, alone=alone)
    when = batch.now + length
    update = settle.rollback_update(when, error_document(error, batch.now))
    happened = partial(is_back, when=when)
    batch.alike[key] = Settlement(update, happened, "rollback", alone, put=Put(context.name, when))
    return batch.alike[key]


def make_burial(
    context: QueueContext[Any],
    item: Item[Any],
    batch: Batch,
    *,
    reason: str | None,
    error: Any,
    alone: Callable[[Item[Any]], Flow[Any]],
) -> Settlement:
    """Return the settlement that buries an item of a batch."""
    now, dead = batch.now, dead_queue(context)
    marker = batch.marker(context, "dead", dead)
    grave, marks = burial_update(context, item, marker, reason=reason, error=error, attempts=item.attempts, now=now)
    happened = partial(is_gone, queue=dead, when=now)
    return Settlement(marks.on(grave), happened, "dead", alone, size=marks.size, put=Put(dead, now))


def release_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> Flow[None]:
    """Hand items back unused."""
    checked, held = check_items(context, items)
    if not checked:
        return
    yield from ensure_ready(context)
    batch = Batch(context.broker.clock)
    release = partial(make_release, context, batch=batch)
    yield from settle_all(context, checked, release, held if one_due(checked) else None)


def make_release(context: QueueContext[Any], item: Item[Any], batch: Batch) -> Settlement:
    """Return the settlement that hands an item of a batch back unused."""
    when = item.due or batch.now
    key = "release", when
    if key not in batch.alike:
        # an item that was released before looks just the same
        alone = partial(settle.release, context)
        update, put = settle.release_update(when), Put(context.name, when)
        happened = partial(is_back, when=when, fewer=1)
        batch.alike[key] = Settlement(update, happened, "release", alone, is_proof=False, put=put)
    return batch.alike[key]


def extend_many(context: QueueContext[M], items: Iterable[Item[M]], *, lease: Duration | None) -> Flow[list[Item[M]]]:
    """Extend the leases to ``lease`` from now, and return the items with their new ends."""
    length = None if lease is None else duration(lease, "lease", zero=False)
    checked, held = check_items(context, items)
    if not checked:
        return []
    yield from ensure_ready(context)
    batch = Batch(context.broker.clock)
    longer = make_extension(context, batch, lease=length)
    ends = yield from settle_all(context, checked, lambda _: longer, held)
    until = longer.told
    if not ends:
        return [item.held_until(until) for item in checked]
    return [item.held_until(ends.get(id_key(item.id), until)) for item in checked]


def make_extension(context: QueueContext[Any], batch: Batch, *, lease: timedelta | None) -> Settlement:
    """Return the settlement that extends the leases of a batch."""
    until = batch.now + (lease or context.settings.lease)
    if until not in batch.alike:
        happened, alone = partial(settle.is_extended, until=until), partial(settle.extend, context, lease=lease)
        update, put = {"$set": {"when": until}}, Put(context.name, until)
        batch.alike[until] = Settlement(update, happened, None, alone, told=until, put=put)
    return batch.alike[until]
