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
from datetime import datetime
from itertools import takewhile
from typing import Any

from bson import ObjectId

from mongoq.model.item import Document
from mongoq.protocol.candidates import ordinary
from mongoq.protocol.context import QueueContext
from mongoq.protocol.looks import ORDER, looked
from mongoq.protocol.lookup import find_head
from mongoq.protocol.request import Begin, Flow, ReplyLost, Unreadable, insisted
from mongoq.protocol.shelf import Coming

__all__ = ["Head", "head"]


@dataclass(frozen=True, slots=True)
class Head:
    """The first items of a queue, read whole.

    Attributes:
        documents: their envelopes; none when these are not to be gone by.
        untouched: all of them are, and need not be read again.
        empty: there was nothing at all.
    """

    documents: Sequence[Document] = ()
    untouched: bool = False
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
        first = Head(found, untouched=True) if found else (yield from _read(context, n))
    except Unreadable:  # some other program's; claimed by its id it is found out, and buried
        first = Head()
    if not first.documents:
        if not first.empty:
            shelf.close(now)
        return first
    yield from _ahead(context, n)
    shelf.claims(first.documents)
    return first


def _read(context: QueueContext[Any], n: int) -> Flow[Head]:
    shelf = context.state.shelf
    coming = shelf.coming = _coming(context, shelf.most(n))
    try:
        read: list[Document] = (yield from insisted(coming.command))["firstBatch"]
    finally:
        shelf.coming = None
    found = _first_of(read)
    _took(context, coming, coming.left(found[n:]), read[0] if read else None)
    if not read or len(found) >= min(n, len(read)):
        return Head(found[:n], untouched=True, empty=not read)
    first = read[:n]
    few = sum(map(_is_untouched, first)) * 2 < len(first)
    return Head() if few else Head(ordinary(first))


def _ahead(context: QueueContext[Any], n: int) -> Flow[None]:
    """Begin to read what the next claim will want, while this one of ``n`` is under way."""
    shelf, lanes = context.state.shelf, context.broker.lanes
    if lanes is not None and lanes.shares > 1 and len(shelf.documents) < n < shelf.most(n) and shelf.coming is None:
        shelf.coming = _coming(context, shelf.most(n) + n)
        shelf.coming.begun = yield from Begin(shelf.coming.command)


def _coming(context: QueueContext[Any], most: int) -> Coming:
    start = context.state.heads.start(context.name, context.broker.clock.now())
    return Coming(find_head(context.broker, start.filter, ORDER, most), start)


def _awaited(context: QueueContext[Any], coming: Coming) -> Flow[None]:
    """Wait for what is being read, if that is not too old by now."""
    shelf = context.state.shelf
    try:
        if not coming.is_fresh(time.monotonic()) or coming.begun is None:
            return
        reply = yield from coming.begun
        read = reply["cursor"]["firstBatch"]
    except ReplyLost:
        read = (yield from coming.command)["firstBatch"]
    finally:
        shelf.coming = None
    if left := coming.left(_first_of(read)):  # nothing left says nothing about the queue: the rest was left out
        _took(context, coming, left, left[0])


def _took(context: QueueContext[Any], coming: Coming, left: Sequence[Document], first: Document | None) -> None:
    """Put on the shelf what is left of what was read; ``first`` stands at the head of the queue."""
    context.state.heads.found(coming.start, first)
    size = context.broker.encoding.size(first) if first else context.state.shelf.size
    context.state.shelf.put(left, coming.start.at, size)


def _first_of(read: Sequence[Document]) -> Sequence[Document]:
    """Return them up to the first that somebody has had, or that is not as mongoq writes it."""
    return list(takewhile(_is_untouched, read))


def _is_untouched(document: Document) -> bool:
    return (
        "by" not in document
        and "key" not in document
        and "once" not in document
        and type(document["_id"]) is ObjectId
        and type(document.get("attempts")) is int
        and document["attempts"] == 0
        and isinstance(document["when"], datetime)
        and type(document.get("priority")) is int
    )
