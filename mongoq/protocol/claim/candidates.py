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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mongoq.model.envelope import is_fresh
from mongoq.model.indexes import CLAIM_FIELDS, CLAIM_ORDER
from mongoq.model.item import Document
from mongoq.protocol.base.find import close_cursor, find_few, find_head
from mongoq.protocol.base.first_due import has_items_before_bound, refresh_hints
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.command import Unreadable
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext

Fields = Mapping[str, int]
"""Projection of a find."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Items that a claim tries to reserve, in the order of claims.

    Attributes:
        documents: the envelopes of the items, or only the fields of ``CLAIM_FIELDS``.
        untouched: all items were read whole and were never claimed: they are not read again.
        size: the average bytes of untouched items.
    """

    documents: Sequence[Document] = ()
    untouched: bool = False
    size: int = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.documents)


async def read_candidates(
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
        ids = await read_ids(context, n, unreserved=unreserved, fields=fields)
        return None if ids is None else Candidates(ids)
    while True:
        await refresh_hints(context)
        start = state.claim_hints.start(context.name, context.broker.clock.now())
        try:
            head = await retry_once(find_head(context.broker, start.filter, CLAIM_ORDER, n))
        except Unreadable:  # a document of another program: a claim by its id finds it, and buries it
            break
        if head.cursor:  # the items are so large that one reply does not hold them
            await close_cursor(context.broker, head.cursor)
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
        if not (await has_items_before_bound(context)):
            return None
    state.read_ids_only()
    ids = await read_ids(context, n)
    return None if ids is None else Candidates(ids)


async def read_ids(
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
        read = await find_few(context.broker, filter, CLAIM_ORDER, n, projection=fields)
        return _select_ordinary(read) or None
    await refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = await find_few(context.broker, start.filter, CLAIM_ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.raise_bounds(start, read[0] if read else None)
        if read:
            return _select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (await has_items_before_bound(context)):
            return None


def _select_ordinary(read: list[Document]) -> list[Document]:
    """Return the documents that can join a batch; another program's odd types are claimed one by one."""
    return [
        document
        for document in read
        if isinstance(document["when"], datetime) and not isinstance(document["_id"], dict)
    ]
