"""Candidates of a claim of many: the first items of a queue, which the claim tries to reserve.

Items that were never claimed are read once, whole. A process that claims an item, or changes its payload or key, leaves
``by`` on it for good. Two pushes do not: one that replaces the item of a ``key``, and one under a given id that was
removed before, which sets ``once``. An item with none of the three fields therefore still is what it was when it was
read, however long ago. A claim whose filter demands that the three are absent, and whose update found as many items as
it named, knows what it reserved.

Of other items only the ids are read, from the index alone: they are read again after the claim. Claims for many callers
of this process read ahead as well: the items of the next claims come with those of this one. Without it 64 callers
that reserve and commit come to 0.8 to 0.9 of the rate.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from mongoq.model.indexes import CLAIM_FIELDS, CLAIM_ORDER
from mongoq.model.item import Document, id_key
from mongoq.model.raw import is_fresh
from mongoq.protocol.base.find import Head, close_cursor, find_few, find_head
from mongoq.protocol.base.first_due import has_items_before_bound, refresh_hints
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.flow import Begin, Flow, Unreadable, Wait
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.state.prefetch import PendingRead

Fields = Mapping[str, int]
"""Projection of a find."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Items that a claim tries to reserve, in the order of claims.

    Attributes:
        documents: the envelopes of the items, or only the fields of ``CLAIM_FIELDS``.
        untouched: all items were read whole and were never claimed: they are not read again.
    """

    documents: Sequence[Document] = ()
    untouched: bool = False

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.documents)


def read_candidates(
    context: QueueContext[Any], n: int, *, shared: bool = False, unreserved: bool = False, fields: Fields | None = None
) -> Flow[Candidates | None]:
    """Read the first ``n`` items; ``None`` when nothing is eligible; empty when the caller must claim singly.

    Args:
        context: the queue.
        n: number of items, at most.
        shared: the claim is made for several callers of this process: it uses what was read ahead, and leaves out items
            that other claims of this process are about to take.
        unreserved: leave out items with expired leases, which may fill the head.
        fields: projection, if a filter of a consumer may settle some of the items.
    """
    claimed: Collection[Any] = context.state.prefetch.claimed_keys if shared else ()
    if not (unreserved or fields) and _can_read_whole(context):
        head = yield from _read_whole(context, n, shared=shared)
        if head is None or head:
            return head
    ids = yield from read_ids(context, n + len(claimed), unreserved=unreserved, fields=fields)
    if ids is None:
        return None
    return Candidates([document for document in ids if id_key(document["_id"]) not in claimed][:n])


def read_ids(
    context: QueueContext[Any],
    n: int,
    *,
    unreserved: bool = False,
    fields: Fields | None = None,
    due: datetime | None = None,
) -> Flow[list[Document] | None]:
    """Read the ids of the first ``n`` ordinary items (``find``), or of later ones when other processes claim as well.

    ``None`` when nothing is eligible, or nothing was at a time ``due``.
    """
    hints, contention = context.state.claim_hints, context.state.contention
    fields = fields or CLAIM_FIELDS
    if unreserved:
        filter = {**eligible(context.name, context.broker.clock.now()), "reserved": {"$ne": True}}
        read = yield from find_few(context.broker, filter, CLAIM_ORDER, n, projection=fields)
        return _select_ordinary(read) or None
    yield from refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = yield from find_few(context.broker, start.filter, CLAIM_ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.raise_bounds(start, read[0] if read else None)
        if read:
            return _select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (yield from has_items_before_bound(context)):
            return None


def _select_ordinary(read: list[Document]) -> list[Document]:
    """Return the documents that can join a batch; another program's odd types are claimed one by one."""
    return [
        document
        for document in read
        if isinstance(document["when"], datetime) and not isinstance(document["_id"], dict)
    ]


def _can_read_whole(context: QueueContext[Any]) -> bool:
    """Return whether to read items whole: not beside other processes, nor after a read that was of no use."""
    beside = context.state.contention.width > 1
    return not (beside or context.broker.serverless or time.monotonic() < context.state.prefetch.closed_until)


def _read_whole(context: QueueContext[Any], n: int, *, shared: bool) -> Flow[Candidates | None]:
    """Read the first items whole (``find``); ``None`` when nothing is eligible; empty when only ids may be read.

    When shared claims follow each other closely, the items of the next claim are read with them, and used for
    ``prefetch.PREFETCHED_ITEM_SECONDS``.
    """
    prefetch = context.state.prefetch
    if shared:
        prefetch.record_claim(time.monotonic())
    while True:
        yield from refresh_hints(context)
        try:
            if shared:
                head = yield from _take_or_read(context, n)
            else:
                pending = _make_pending(context, n)
                head = yield from _sort_out(context, n, pending, (yield from retry_once(pending.command)))
        except Unreadable:  # a document of another program: a claim by its id finds it, and buries it
            prefetch.close(time.monotonic())
            return Candidates()
        if head is not None or not (yield from has_items_before_bound(context)):
            return head


def _sort_out(
    context: QueueContext[Any], n: int, pending: PendingRead, head: Head, *, ahead: bool = False
) -> Flow[Candidates | None]:
    """Return the first ``n`` of the items that were read; with ``ahead``, keep the others for the next claims."""
    prefetch, documents = context.state.prefetch, head.documents
    if head.cursor:
        # The items are so large that one reply does not hold them.
        yield from close_cursor(context.broker, head.cursor)
        prefetch.close(time.monotonic())
        return Candidates()
    context.state.claim_hints.raise_bounds(pending.start, documents[0] if documents else None)
    if not documents:
        return None
    untouched = list(takewhile(is_fresh, documents))
    unclaimed = pending.drop_claimed(untouched)
    prefetch.size = head.size
    if ahead:
        prefetch.refill(pending.before(unclaimed[n:]), pending.start.at, prefetch.size)
    if len(unclaimed) >= n or len(untouched) == len(documents):
        return Candidates(unclaimed[:n], untouched=True)
    first = list(pending.drop_claimed(documents))[:n]
    if sum(map(is_fresh, first)) * 2 < len(first):
        prefetch.close(time.monotonic())
    return Candidates(_select_ordinary(first))


def _take_or_read(context: QueueContext[Any], n: int) -> Flow[Candidates | None]:
    """Take the first items from the prefetch, or read them; a claim beside others waits for what one of them reads."""
    prefetch = context.state.prefetch
    while not (documents := prefetch.take(n, time.monotonic())):
        beside = _can_send_beside(context)
        if beside and prefetch.coming is not None:
            yield from _wait_for_pending(context, prefetch.coming)
            continue
        coming = prefetch.coming = _make_pending(context, prefetch.most(n), ahead=True)
        if beside:
            yield from _begin(context, coming)
        reply = yield from _finish(context, coming)
        if reply is not None:
            return (yield from _sort_out(context, n, coming, reply, ahead=True))
    return Candidates(documents, untouched=True)


def _can_send_beside(context: QueueContext[Any]) -> bool:
    """Return whether a command may be sent beside others at little cost."""
    return context.broker.batchers is not None and context.broker.batchers.divides


def begin_read_ahead(context: QueueContext[Any], n: int) -> Flow[None]:
    """Begin to read the next claim's items, while this claim of ``n`` is under way."""
    prefetch = context.state.prefetch
    if not _can_send_beside(context) or not len(prefetch.items) < n < prefetch.most(n) or prefetch.coming is not None:
        return
    coming = prefetch.coming = _make_pending(context, prefetch.most(n), ahead=True)
    yield from _begin(context, coming)


def _begin(context: QueueContext[Any], coming: PendingRead) -> Flow[None]:
    try:
        coming.pending = yield from Begin(coming.command)
    finally:
        if coming.pending is None and context.state.prefetch.coming is coming:
            context.state.prefetch.coming = None


def _finish(context: QueueContext[Any], coming: PendingRead) -> Flow[Head | None]:
    """Return the reply of a read under way; ``None`` when another caller that waited for it was faster."""
    prefetch = context.state.prefetch
    try:
        reply = yield from retry_once(coming.command, coming.pending)
        return reply if prefetch.coming is coming else None
    finally:
        if prefetch.coming is coming:
            prefetch.coming = None


def _make_pending(context: QueueContext[Any], most: int, *, ahead: bool = False) -> PendingRead:
    start = context.state.claim_hints.start(context.name, context.broker.clock.now())
    claimed = {*context.state.prefetch.claimed_keys} if ahead else set()
    find = find_head(context.broker, start.filter, CLAIM_ORDER, most + len(claimed))
    return PendingRead(find, start, claimed=claimed)


def _wait_for_pending(context: QueueContext[Any], coming: PendingRead) -> Flow[None]:
    """Wait for a pending read, unless it is too old by now; the first waiting caller fills the prefetch buffer."""
    prefetch = context.state.prefetch
    while prefetch.coming is coming and coming.pending is None:
        yield from Wait(0)  # it is about to be sent
    if coming.pending is None or not coming.is_fresh(time.monotonic()):
        if prefetch.coming is coming:
            prefetch.coming = None
        return
    reply = yield from _finish(context, coming)
    if reply is not None:
        yield from _sort_out(context, 0, coming, reply, ahead=True)
