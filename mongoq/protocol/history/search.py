"""Search: items that match a filter, read slice by slice, so that each command examines a limited number of items.

A filter that no index answers would otherwise keep one command busy with the whole queue or history. A slice is the
next documents of an index; only its documents are compared with the filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mongoq.model.arguments import count
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.indexes import CLAIM_FIELDS
from mongoq.model.item import Document
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import aggregate_command, find_few
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.history.pages import (
    BoundedCount,
    PageRequest,
    Range,
    aggregate_filtered,
    documents_page,
    read_page,
)
from mongoq.protocol.history.read import NOT_RESERVED
from mongoq.protocol.state.context import QueueContext

SLICE = 20_000
"""Documents that one command of a search examines, at most."""
FIRST_SLICE = 1_000
"""Documents that the first command of a search examines, at most: most searches end there."""
SLICE_GROWTH = 4
"""Factor from one slice to the next one."""
PAGE = 500
"""Documents in one reply, at most."""
HISTORY_FIELDS = {"processed": 1}
"""Projection of the place of a processed item, its ``_id`` included: the server answers it from the index alone."""

Stages = list[Mapping[str, Any]]
Progress = Callable[[int], object]
"""Function of the caller that receives the number of items examined so far."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Matching documents among the next ones of a range.

    Attributes:
        documents: the documents, a page of them at most.
        rest: range of the next slice; ``None`` at the end.
        examined: number of documents that were compared with the filter; at least so many.
    """

    documents: list[Document]
    rest: Range | None
    examined: int


def read_slice(context: QueueContext[Any], wanted: Range, *, examine: int = SLICE) -> Flow[Slice]:
    """Read the matching documents among the next ``examine`` of a range (``find`` and ``aggregate``).

    A slice may have no documents although there is a ``rest``. Without a filter, it is one page (``find``).
    """
    if context.broker.serverless or not wanted.conditions(context.name):
        documents, rest = yield from documents_page(context, wanted)
        return Slice(documents, rest, len(documents))
    stages, wanted, behind = yield from _next_stages(context, wanted, count(examine, "examine"))
    pipeline = [*stages, {"$limit": wanted.page}]
    aggregate = {"pipeline": pipeline, "cursor": {"batchSize": wanted.page}, "readConcern": {"level": "majority"}}
    asked = PageRequest(wanted, aggregate_command(context.broker, aggregate))
    documents, rest = yield from read_page(context.broker, asked)
    return Slice(documents, behind, examine) if rest is None else Slice(documents, rest, len(documents))


def _next_stages(context: QueueContext[Any], wanted: Range, examine: int) -> Flow[tuple[Stages, Range, Range | None]]:
    """Return the stages that find the matches in a slice, its range, and the range behind the slice.

    The end of the slice is read first, from the index alone (``find``). Items that come or go before the stages are run
    may shift the slice, so its end is a condition as well: no item is met twice, and none that stays is passed over.
    """
    broker = context.broker
    yield from ensure_broker_ready(broker, write=False)
    if wanted.started is None:
        wanted = replace(wanted, started=broker.clock.now())
    keys, conditions = wanted.key_filter(context.name), wanted.conditions(context.name)
    fields = HISTORY_FIELDS if wanted.state == "processed" else CLAIM_FIELDS
    ends = yield from find_few(
        broker, keys, wanted.order, 2, projection=fields, skip=examine - 1, target="history", lenient=True
    )
    behind = replace(wanted, after=ends[0]) if len(ends) == 2 else None
    if behind is not None:
        conditions = [*conditions, wanted.up_to(ends[0])]
    stages: Stages = [
        {"$match": keys},
        {"$sort": dict(wanted.order)},
        {"$limit": examine},
        {"$match": {"$and": conditions}},
    ]
    return stages, wanted, behind


class Search:
    """Reads the matching documents of a range, a slice at a time; slices grow while they do not fill a page.

    Attributes:
        rest: range that is not read yet; ``None`` at the end.
        examined: number of documents that were compared with the filter so far; at least so many.
    """

    def __init__(self, context: QueueContext[Any], wanted: Range) -> None:
        self.rest: Range | None = wanted
        self.examined = 0
        self._context = context
        self._page = wanted.page
        self._size = FIRST_SLICE

    def read(self, room: float = math.inf) -> Flow[list[Document]]:
        """Read the next slice, ``room`` documents of it at most; it may be empty before the end."""
        if self.rest is None:
            return []
        page = int(min(self._page, room))
        part = yield from read_slice(self._context, replace(self.rest, page=page), examine=self._size)
        # The server examines a slice to its end, also where its first documents fill the page.
        self._size = FIRST_SLICE if len(part.documents) >= page else min(SLICE, self._size * SLICE_GROWTH)
        self.rest, self.examined = part.rest, self.examined + part.examined
        return part.documents


def search(
    context: QueueContext[Any], wanted: Range, *, limit: int, progress: Progress | None = None
) -> Flow[list[Document]]:
    """Read the first ``limit`` matching documents of a range, slice by slice; undecodable ones come in addition.

    It reads to the end of the range if there are fewer. ``progress`` is called after each slice.
    """
    pages, found, missing = Search(context, replace(wanted, page=PAGE)), list[Document](), limit
    while missing > 0 and pages.rest is not None:
        documents = yield from pages.read(missing)
        found += documents
        missing -= sum(not isinstance(document, UnreadableDocument) for document in documents)
        if progress is not None:
            progress(pages.examined)
    return found


def count_range(
    context: QueueContext[Any], wanted: Range, *, limit: int, progress: Progress | None = None
) -> Flow[BoundedCount]:
    """Count the items of a range among its first ``limit`` items, slice by slice (``find`` and ``aggregate`` each).

    Without a filter, the server counts keys of the index (``aggregate``). ``progress`` is called after each slice.
    """
    yield from ensure_broker_ready(context.broker, write=False)
    if not wanted.conditions(context.name):
        whole = replace(wanted, started=context.broker.clock.now()).filter(context.name)
        number: int = yield from Command("count_documents", {"filter": whole, "limit": limit + 1})
        return BoundedCount(number, exact=number <= limit)
    number, examined, rest = 0, 0, wanted
    while examined < limit:
        size = min(SLICE, limit - examined)
        stages, _, behind = yield from _next_stages(context, rest, size)
        groups = yield from aggregate_filtered([*stages, {"$count": "n"}])
        number += sum(group["n"] for group in groups)
        examined += size
        if progress is not None:
            progress(examined)
        if behind is None:
            return BoundedCount(number)
        rest = behind
    return BoundedCount(number, exact=False)


def count_free(
    context: QueueContext[Any], wanted: Range, *, limit: int, progress: Progress | None = None
) -> Flow[BoundedCount]:
    """Count the live items of a range that no caller holds, as ``count_range`` does.

    These are all due items, which need no look at the documents, and the later ones that are not reserved.
    """
    yield from ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    due = yield from count_range(context, replace(wanted, until=now), limit=limit, progress=progress)
    if not due.exact:
        return due
    later = replace(wanted, since=now).narrow({"reserved": NOT_RESERVED})
    return due + (yield from count_range(context, later, limit=max(1, limit - due.number), progress=progress))
