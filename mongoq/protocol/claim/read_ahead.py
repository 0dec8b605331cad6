"""Reading ahead: items that were never claimed are read once, and claimed without being read again.

A process that claims an item, or changes its payload or key, leaves ``by`` on it for good. Two pushes do not: one that
replaces the item of a ``key``, and one under a given id that was removed before, which sets ``once``. An item with none
of the three fields therefore still is what it was when it was read, however long ago. A claim whose filter demands that
the three are absent, and whose update found as many items as it named, knows what it took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bson.errors import InvalidBSON

from mongoq.model.item import Document, id_key
from mongoq.model.raw import RawEnvelope, fresh, is_fresh
from mongoq.protocol.base.find import find_head
from mongoq.protocol.base.first_due import ORDER, refresh_hints
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.claim.batch_claim import select_ordinary
from mongoq.protocol.flow import Begin, Flow, Unreadable, Wait
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.state.prefetch import PendingRead

__all__ = ["begin_read_ahead", "read_head"]


@dataclass(frozen=True, slots=True)
class Head:
    """The first items of a queue.

    Attributes:
        untouched: the raw envelopes, when none of the items was ever claimed: they are not read again.
        documents: otherwise the decoded envelopes; empty when they cannot be relied on.
        empty: the queue has no eligible item.
        busy: every item that was read is about to be taken by other claims of this process.
    """

    untouched: Sequence[RawEnvelope] = ()
    documents: Sequence[Document] = ()
    empty: bool = False
    busy: bool = False


def read_head(context: QueueContext[Any], n: int) -> Flow[Head]:
    """Return the first ``n`` items, unless other processes claim as well, or most items were claimed before.

    The items are read whole (``find``). When batch claims follow each other closely, the items of the next claim are
    read with them, and used for ``prefetch.FRESH`` seconds. Items that do not fit one reply are left out.
    """
    prefetch, now = context.state.prefetch, time.monotonic()
    if context.state.contention.width > 1 or context.broker.serverless or now < prefetch.closed_until:
        return Head()
    prefetch.asked(now)
    yield from refresh_hints(context)
    try:
        first = yield from _take_or_read(context, n)
    except (InvalidBSON, Unreadable):  # a document of another program: a claim by its id finds it, and buries it
        first = Head()
    if not (first.untouched or first.documents or first.empty or first.busy):
        prefetch.close(now)
    return first


def _take_or_read(context: QueueContext[Any], n: int) -> Flow[Head]:
    """Take the first items from the prefetch, or read them; a claim beside others waits for what one of them reads."""
    prefetch = context.state.prefetch
    while not (found := prefetch.take(n, time.monotonic())):
        if prefetch.coming is None or not _can_send_beside(context):
            coming = prefetch.coming = _make_pending(context, prefetch.most(n))
            return (yield from _read(context, n, coming))
        yield from _wait_for_pending(context, prefetch.coming)
    return Head(found)


def _read(context: QueueContext[Any], n: int, coming: PendingRead) -> Flow[Head]:
    """Read the first items and the next ones, without the items that claims of this process are about to take."""
    prefetch, encoding = context.state.prefetch, context.broker.encoding
    try:
        if _can_send_beside(context):
            coming.begun = yield from Begin(coming.command)
        read = yield from retry_once(coming.command, coming.begun)
        if prefetch.coming is not coming:  # somebody who waited for it was faster
            return (yield from _take_or_read(context, n))
    finally:
        if prefetch.coming is coming:
            prefetch.coming = None
    context.state.claim_hints.found(coming.start, encoding.opened(read[:1])[0] if read else None)
    found = fresh(read, context.name, encoding)
    left = coming.unclaimed(found)
    prefetch.put(coming.before(left[n:]), coming.start.at, len(read[0]) if read else prefetch.size)
    if len(left) >= n or len(found) == len(read):
        return Head(left[:n], empty=not read, busy=not left)
    whole: list[Document] = [*encoding.opened(read)]
    first = [document for document in whole if id_key(document["_id"]) not in coming.claimed][:n]
    few = sum(map(is_fresh, first)) * 2 < len(first)
    return Head() if few else Head(documents=select_ordinary(first))


def _can_send_beside(context: QueueContext[Any]) -> bool:
    """Return whether a command may be sent beside others at little cost."""
    return context.broker.batchers is not None and context.broker.batchers.divides


def begin_read_ahead(context: QueueContext[Any], n: int) -> Flow[None]:
    """Begin to read the next claim's items, while this claim of ``n`` is under way."""
    prefetch = context.state.prefetch
    if not _can_send_beside(context) or not len(prefetch.items) < n < prefetch.most(n) or prefetch.coming is not None:
        return
    coming = prefetch.coming = _make_pending(context, prefetch.most(n))
    try:
        coming.begun = yield from Begin(coming.command)
    finally:
        if coming.begun is None and prefetch.coming is coming:
            prefetch.coming = None


def _make_pending(context: QueueContext[Any], most: int) -> PendingRead:
    start = context.state.claim_hints.start(context.name, context.broker.clock.now())
    keys = context.state.prefetch.claimed_keys
    most += len(keys)
    return PendingRead(find_head(context.broker, start.filter, ORDER, most), start, claimed={*keys})


def _wait_for_pending(context: QueueContext[Any], coming: PendingRead) -> Flow[None]:
    """Wait for a pending read, unless it is too old by now; the first waiting caller fills the prefetch buffer."""
    prefetch = context.state.prefetch
    while prefetch.coming is coming and coming.begun is None:
        yield from Wait(0)  # it is about to be sent
    try:
        if not coming.is_fresh(time.monotonic()) or coming.begun is None:
            return
        read = yield from retry_once(coming.command, coming.begun)
        if prefetch.coming is not coming:
            return
    finally:
        if prefetch.coming is coming:
            prefetch.coming = None
    encoding = context.broker.encoding
    left = coming.before(coming.unclaimed(fresh(read, context.name, encoding)))
    if left:  # nothing left says nothing about the queue: the rest was left out
        context.state.claim_hints.found(coming.start, encoding.opened(read[:1])[0])
        prefetch.put(left, coming.start.at, len(read[0]))
