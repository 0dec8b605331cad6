"""Search: items that match a filter, read slice by slice, so that each command examines a limited number of items.

A filter that no index answers would otherwise keep one command busy with the whole queue or history. A slice is the
next documents of an index; only its documents are compared with the filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mongoq.errors import CollectionUnsuitable, FilterInvalid
from mongoq.model.arguments import count
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.indexes import CLAIM_FIELDS
from mongoq.model.item import Document
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.history.pages import (
    BoundedCount,
    Range,
    documents_page,
    is_refused_filter,
    refusal,
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
SEQUENCE_FIELDS = {"_id": 0, "sequence": 1, "place": 1}
"""Projection of the place of a blocked item, which the server answers from the index alone."""
PLACE_FIELDS = {"processed": HISTORY_FIELDS, "blocked": SEQUENCE_FIELDS}
"""Projection of the place of an item by the state of the range; live items have ``CLAIM_FIELDS``."""

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
    """Read the matching documents among the next ``examine`` of a range (two ``find``).

    A slice may have no documents although there is a ``rest``. Without a filter, it is one page (one ``find``).
    """
    part, behind = wanted, None
    if wanted.conditions(context.name):
        part, behind = yield from _cut_slice(context, wanted, count(examine, "examine"))
    documents, rest = yield from documents_page(context, part)
    if rest is None:
        return Slice(documents, behind, examine)
    return Slice(documents, replace(rest, last=wanted.last), len(documents))


def _cut_slice(context: QueueContext[Any], wanted: Range, examine: int) -> Flow[tuple[Range, Range | None]]:
    """Return the next slice of a range, and the range behind it.

    The end of the slice is read from the keys of the index alone (``find``). The slice is what lies before it, whatever
    comes or goes meanwhile: no item is met twice, and none that stays is passed over.
    """
    broker = context.broker
    yield from ensure_broker_ready(broker, write=False)
    wanted = replace(wanted, has_hint=True, started=wanted.started or broker.clock.now())
    fields = PLACE_FIELDS.get(str(wanted.state), CLAIM_FIELDS)
    options: dict[str, Any] = {"projection": fields, "hint": wanted.index.pattern, "target": "history"}
    try:
        ends = yield from find_few(
            broker, wanted.key_filter(context.name), wanted.order, 2, skip=examine - 1, **options
        )
    except Exception as error:
        # No filter of the user is in this command, so the server can only refuse the hint.
        if is_refused_filter(error):
            problem = f"lacks the index {wanted.index.name}; run broker.ensure_indexes(), see 'mongoq doctor'"
            raise CollectionUnsuitable(broker.namespace, problem) from error
        raise
    if len(ends) < 2:
        return wanted, None
    return replace(wanted, last=ends[0]), replace(wanted, after=ends[0])


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
        # A full page leaves most of a slice unread, and the end of each slice is read first.
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
        part, behind = yield from _cut_slice(context, rest, size)
        number += yield from _count_slice(context, part)
        examined += size
        if progress is not None:
            progress(examined)
        if behind is None:
            return BoundedCount(number)
        rest = behind
    return BoundedCount(number, exact=False)


def _count_slice(context: QueueContext[Any], part: Range) -> Flow[int]:
    arguments: dict[str, Any] = {"filter": part.filter(context.name)}
    if not context.broker.serverless:
        arguments["hint"] = part.index.pattern
    try:
        return (yield from Command("count_documents", arguments))
    except Exception as error:
        if part.where and is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise


def count_free(
    context: QueueContext[Any], wanted: Range, *, limit: int, progress: Progress | None = None
) -> Flow[BoundedCount]:
    """Count the live items of a range that no caller holds, as ``count_range`` does.

    These are all due items and all blocked ones, which need no look at the documents, and the later ones that are not
    reserved.
    """
    yield from ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    due = yield from count_range(context, replace(wanted, until=now), limit=limit, progress=progress)
    if not due.exact:
        return due
    later = replace(wanted, since=now).narrow({"reserved": NOT_RESERVED})
    free = due + (yield from count_range(context, later, limit=max(1, limit - due.number), progress=progress))
    if not free.exact:
        return free
    blocked = replace(wanted, state="blocked")
    return free + (yield from count_range(context, blocked, limit=max(1, limit - free.number), progress=progress))
