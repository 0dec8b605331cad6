# Generated from mongoq/protocol/claim/candidates.py by scripts/unasync.py. Do not edit.
"""Candidates of a claim of many: the first items of a queue, which the claim tries to reserve.

Items that were never claimed are read once, whole. A process that claims an item, or changes its payload or key, leaves
``by`` on it for good. Two pushes do not: one that replaces the item of a ``key``, and one under a given id that was
removed before, which sets ``once``. An item with none of the three fields therefore still is what it was when it was
read, however long ago. A claim whose filter demands that the three are absent, and whose update found as many items as
it named, knows what it reserved.

Of other items only the ids are read, from the index alone: they are read again after the claim.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from mongoq.model.envelope import is_fresh
from mongoq.model.indexes import CLAIM_FIELDS, CLAIM_ORDER
from mongoq.model.item import Document
from mongoq.protocol.base.find import find_head
from mongoq.protocol.claim.candidates import Candidates, Fields, _select_ordinary
from mongoq.protocol.command import Unreadable
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import close_cursor, find_few
from mongoq.protocol_threads.base.first_due import has_items_before_bound, refresh_hints
from mongoq.protocol_threads.base.retry import retry_once


def read_candidates(
    context: QueueContext[Any], n: int, *, unreserved: bool = False, fields: Fields | None = None
) -> Candidates | None:
    """Read the first ``n`` items; ``None`` when nothing is eligible; empty when the caller must claim singly.

    Args:
        context: the queue.
        n: number of items, at most.
        unreserved: leave out items with expired leases, which may fill the head.
        fields: projection, if a filter of a consumer may settle some of the items.
    """
    state = context.state
    # Items are read whole where they are likely to be still the same when the claim arrives.
    beside_others = state.contention.width > 1
    if unreserved or fields or beside_others or context.broker.serverless or time.monotonic() < state.reads_whole_at:
        ids = read_ids(context, n, unreserved=unreserved, fields=fields)
        return None if ids is None else Candidates(ids)
    while True:
        refresh_hints(context)
        start = state.claim_hints.start(context.name, context.broker.clock.now())
        try:
            head = retry_once(find_head(context.broker, start.filter, CLAIM_ORDER, n))
        except Unreadable:  # a document of another program: a claim by its id finds it, and buries it
            break
        if head.cursor:  # the items are so large that one reply does not hold them
            close_cursor(context.broker, head.cursor)
            break
        documents = head.documents
        state.claim_hints.raise_bounds(start, documents[0] if documents else None)
        if documents:
            fresh = sum(map(is_fresh, documents))
            if fresh == len(documents):
                return Candidates(documents, untouched=True, size=head.size)
            if fresh * 2 < len(documents):
                state.read_ids_only()
            if ordinary := _select_ordinary(documents):
                return Candidates(ordinary)
            break
        if not (has_items_before_bound(context)):
            return None
    state.read_ids_only()
    ids = read_ids(context, n)
    return None if ids is None else Candidates(ids)


def read_ids(
    context: QueueContext[Any],
    n: int,
    *,
    unreserved: bool = False,
    fields: Fields | None = None,
    due: datetime | None = None,
) -> list[Document] | None:
    """Read the ids of the first ``n`` ordinary items (``find``), or of later ones when other processes claim as well.

    ``None`` when nothing is eligible, or nothing was at a time ``due``.
    """
    hints, contention = context.state.claim_hints, context.state.contention
    fields = fields or CLAIM_FIELDS
    if unreserved:
        filter = {**eligible(context.name, context.broker.clock.now()), "reserved": {"$ne": True}}
        read = find_few(context.broker, filter, CLAIM_ORDER, n, projection=fields)
        return _select_ordinary(read) or None
    refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = find_few(context.broker, start.filter, CLAIM_ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.raise_bounds(start, read[0] if read else None)
        if read:
            return _select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (has_items_before_bound(context)):
            return None
