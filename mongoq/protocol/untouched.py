"""Untouched items: what nobody has had, and what a claim therefore need not read again.

Whoever takes an item, or changes what it holds or its key, leaves ``by`` on it for good. Only a push that replaces the
item of a ``key`` does not, nor one under an id that was given before and has been removed, which says ``once``. So an
item with none of the three is what it was when it was read, whenever that was; and a claim that names them, and took as
many as it meant to, knows what it took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bson.errors import InvalidBSON

from mongoq.model.fresh import Fresh, fresh, is_fresh
from mongoq.model.item import Document, id_keys
from mongoq.protocol.candidates import ordinary
from mongoq.protocol.context import QueueContext
from mongoq.protocol.looks import ORDER, looked
from mongoq.protocol.lookup import find_head
from mongoq.protocol.request import Begin, Flow, Unreadable, insisted
from mongoq.protocol.shelf import Coming

__all__ = ["Head", "head"]


@dataclass(frozen=True, slots=True)
class Head:
    """The first items of a queue.

    Attributes:
        untouched: those, where nobody has had any of them: they need not be read again.
        documents: else their envelopes; none when these are not to be gone by.
        empty: there was nothing at all.
    """

    untouched: Sequence[Fresh] = ()
    documents: Sequence[Document] = ()
    empty: bool = False


def head(context: QueueContext[Any], n: int) -> Flow[Head]:
    """Return the first ``n`` items, unless somebody else claims as well, or most of them have been had.

    They are read whole (``find``), and where claims of many follow one another closely those of the next ones with
    them: at most so long ago as ``shelf.FRESH`` says. What one reply does not hold is left out.
    """
    shelf, now = context.state.shelf, time.monotonic()
    if context.state.crowd.width > 1 or context.broker.serverless or now < shelf.closed_until:
        return Head()
    shelf.asked(now)
    yield from looked(context)
    found = shelf.take(n, now)
    try:
        if not found and shelf.coming is not None:
            yield from _awaited(context, shelf.coming)
            found = shelf.take(n, now)
        first = Head(found) if found else (yield from _read(context, n))
    except (InvalidBSON, Unreadable):  # some other program's; claimed by its id it is found out, and buried
        first = Head()
    if not first.untouched and not first.documents:
        if not first.empty:
            shelf.close(now)
        return first
    yield from _ahead(context, n)
    shelf.claims([one.id for one in first.untouched] or id_keys([document["_id"] for document in first.documents]))
    return first


def _read(context: QueueContext[Any], n: int) -> Flow[Head]:
    shelf, encoding = context.state.shelf, context.broker.encoding
    coming = shelf.coming = _coming(context, shelf.most(n))
    try:
        read = yield from insisted(coming.command)
    finally:
        shelf.coming = None
    found = fresh(read, context.name, encoding)
    context.state.heads.found(coming.start, encoding.opened(read[:1])[0] if read else None)
    shelf.put(coming.left(found[n:]), coming.start.at, len(read[0]) if read else shelf.size)
    if not read or len(found) >= min(n, len(read)):
        return Head(found[:n], empty=not read)
    first: list[Document] = [*encoding.opened(read[:n])]
    few = sum(map(is_fresh, first)) * 2 < len(first)
    return Head() if few else Head(documents=ordinary(first))


def _ahead(context: QueueContext[Any], n: int) -> Flow[None]:
    """Begin to read what the next claim will want, while this one of ``n`` is under way."""
    shelf, lanes = context.state.shelf, context.broker.lanes
    if lanes is not None and lanes.shares > 1 and len(shelf.items) < n < shelf.most(n) and shelf.coming is None:
        shelf.coming = _coming(context, shelf.most(n) + n)
        shelf.coming.begun = yield from Begin(shelf.coming.command)


def _coming(context: QueueContext[Any], most: int) -> Coming:
    start = context.state.heads.start(context.name, context.broker.clock.now())
    return Coming(find_head(context.broker, start.filter, ORDER, most), start)


def _awaited(context: QueueContext[Any], coming: Coming) -> Flow[None]:
    """Wait for what is being read, if that is not too old by now."""
    try:
        if not coming.is_fresh(time.monotonic()) or coming.begun is None:
            return
        read = yield from insisted(coming.command, coming.begun)
    finally:
        context.state.shelf.coming = None
    left = coming.left(fresh(read, context.name, context.broker.encoding))
    if left:  # nothing left says nothing about the queue: the rest was left out
        context.state.heads.found(coming.start, left[0].place)
        context.state.shelf.put(left, coming.start.at, len(read[0]))
