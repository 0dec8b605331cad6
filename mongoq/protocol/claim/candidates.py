"""Candidates: items that may be claimed together, read by the index."""

from __future__ import annotations

from datetime import datetime
from operator import itemgetter
from typing import Any

from bson import ObjectId

from mongoq.model.envelope import Document
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.first_due import ORDER, has_items_before_bound, refresh_hints
from mongoq.protocol.flow.commands import Flow
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext

__all__ = ["read_candidates", "read_fresh_candidates", "select_ordinary"]

_id, _when = itemgetter("_id"), itemgetter("when")


def read_candidates(
    context: QueueContext[Any], n: int, *, remembered: bool = False, due: datetime | None = None
) -> Flow[list[Document] | None]:
    """Read what may be claimed together of ``n`` (``find``), the first ones unless others take them as well.

    ``None`` when nothing is eligible, or nothing was at a time ``due``.
    """
    hints, contention, fields = context.state.claim_hints, context.state.contention, _fields(remembered=remembered)
    yield from refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = yield from find_few(context.broker, start.filter, ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.found(start, read[0] if read else None)
        if read:
            return select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (yield from has_items_before_bound(context)):
            return None


def read_fresh_candidates(context: QueueContext[Any], n: int, *, remembered: bool) -> Flow[list[Document] | None]:
    """Read only unreserved, ordinary candidates: items with expired leases may fill the head."""
    filter = {**eligible(context.name, context.broker.clock.now()), "reserved": {"$ne": True}}
    read = yield from find_few(context.broker, filter, ORDER, n, projection=_fields(remembered=remembered))
    return select_ordinary(read) or None


def _fields(*, remembered: bool) -> dict[str, int]:
    return {"priority": 1, "when": 1, **({"once": 1} if remembered else {})}  # without, the index is all it takes


def select_ordinary(read: list[Document]) -> list[Document]:
    """Return the documents that can join a batch; another program's odd types are claimed one by one."""
    if {datetime}.issuperset(map(type, map(_when, read))) and {ObjectId}.issuperset(map(type, map(_id, read))):
        return read
    return [
        document
        for document in read
        if isinstance(document["when"], datetime) and not isinstance(document["_id"], dict)
    ]
