"""Originals: the processed items that a replay copies, oldest first, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import queue_name
from mongoq.model.copies import COPY_MARK
from mongoq.model.item import Document
from mongoq.model.trail import hop_before
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Command, Flow, Unreadable
from mongoq.protocol.history.pages import PageRequest, Range, page_begun, page_read
from mongoq.protocol.settle.move import Destination, destination
from mongoq.protocol.state.context import QueueContext

__all__ = ["ByIds", "InRange", "hop_destination", "locate", "payload_at"]


def hop_destination(
    context: QueueContext[Any], hop: str | None, to: str | QueueContext[Any] | None
) -> Destination | None:
    """Return the destination of items, by a hop or by ``to``; ``None`` when neither is given.

    A hop is named by its queue, because a stage may have several input queues.
    """
    target = None if to is None else destination(context, to)
    if hop is None:
        return target
    name = queue_name(hop, "hop")
    if target is None:
        return Destination(name, context.broker.untyped)
    if target.name != name:
        raise ArgumentInvalid("to", f"a hop goes to its own queue, {name!r}, and not to {target.name!r}; leave it out")
    return target


def payload_at(trail: Any, queue: str) -> Any:
    """Return the payload that an item had when it last left a queue; raises ``ArgumentInvalid`` where none was kept."""
    hop = hop_before(trail, queue)
    if hop is None:
        raise ArgumentInvalid("hop", f"its trail does not lead through queue {queue!r}")
    if hop.joined:
        raise ArgumentInvalid("hop", f"it was joined with others behind {queue!r}; those would be lost")
    if not hop.kept:
        raise ArgumentInvalid(
            "hop", "its payload there was too large to be kept" if hop.large else "its payload there was not kept"
        )
    return hop.payload


IDS_PER_FIND = 1000
"""Ids in one ``find``, at most."""
SKEW = timedelta(seconds=1)
"""Tolerance for commits answered before the replay, which may be dated later than our now; clocks agree far better."""


class InRange:
    """Reads the items between two times, without the copies that a replay made into this queue.

    The end of the range is fixed at the beginning. The mark of its own copies excludes them, so the clocks need not
    agree. Items that are copied without decoding are read ``as_stored``: as bytes. With ``trails`` the items come with
    their trails.
    """

    missing: tuple[ObjectId, ...] = ()

    def __init__(self, context: QueueContext[Any], wanted: Range, *, as_stored: bool, trails: bool) -> None:
        self._context, self._as_stored, self._trails = context, as_stored, trails
        originals = {COPY_MARK: {"$ne": context.name}}
        where = {"$and": [wanted.where, originals]} if wanted.where else originals
        until = wanted.until or context.broker.clock.now() + SKEW
        self._page = wanted.page
        self._rest: Range | None = replace(wanted, where=where, until=until)
        self._ahead: PageRequest | None = None

    def read(self, room: float) -> Flow[list[Document | bytes]]:
        """Read the next page, oldest first; it is empty at the end."""
        found: list[Document | bytes] = []
        while not found and (yield from self._begin(room)):
            assert self._ahead is not None
            found, self._rest = yield from page_read(self._context.broker, self._ahead)
            self._ahead = None
        # The server reads the next page while the caller copies this one.
        yield from self._begin(room - len(found))
        return found

    def _begin(self, room: float) -> Flow[bool]:
        """Request the next page if there may be one and none is requested; return whether a request is under way."""
        if self._ahead is None and self._rest is not None and room > 0:
            wanted = replace(self._rest, page=int(min(self._page, room)))
            self._ahead = yield from page_begun(self._context, wanted, as_stored=self._as_stored, trails=self._trails)
        return self._ahead is not None


class ByIds:
    """Reads selected items, in the order in which they were processed."""

    def __init__(
        self, context: QueueContext[Any], places: Sequence[ObjectId], missing: list[ObjectId], page: int
    ) -> None:
        self._context = context
        self._ids = list(places)
        self._page = page
        self._missing = missing

    @property
    def missing(self) -> tuple[ObjectId, ...]:
        return tuple(self._missing)

    def read(self, room: float) -> Flow[list[Document | bytes]]:
        """Read the next page; items that have expired meanwhile are missing."""
        found: list[Document | bytes] = []
        while self._ids and not found:
            size = int(min(self._page, room))
            wanted, self._ids = self._ids[:size], self._ids[size:]
            documents = {document["_id"]: document for document in (yield from _find_kept(self._context, wanted))}
            found = [documents[id] for id in wanted if id in documents]
            self._missing += [id for id in wanted if id not in documents]
        return found


def locate(context: QueueContext[Any], ids: list[ObjectId], page: int) -> Flow[ByIds]:
    """Read which of the ids are in the history, and their order (``find`` by ``_id``)."""
    found = []
    for start in range(0, len(ids), IDS_PER_FIND):
        found += yield from _find_kept(context, ids[start : start + IDS_PER_FIND], {"q": 1, "processed": 1})
    order = sorted((document["processed"], document["_id"]) for document in found)
    there = {id for _, id in order}
    return ByIds(context, [id for _, id in order], [id for id in ids if id not in there], page)


def _find_kept(
    context: QueueContext[Any], ids: Sequence[ObjectId], fields: dict[str, int] | None = None
) -> Flow[list[Document]]:
    """Find items of the history by their ids, with no other indexed field: the server considers one index only."""
    filter = {"_id": {"$in": list(ids)}, "payload": {"$exists": True}}
    arguments = {"filter": filter, "projection": fields}
    try:
        found: list[Document] = yield from Command("find", arguments, target="history")
    # One document cannot be decoded: the lenient read decodes each document by itself.
    except Unreadable:
        found = yield from find_few(
            context.broker, filter, [("_id", 1)], len(ids), projection=fields, target="history", lenient=True
        )
    return [document for document in found if document.get("q") == context.name and document.get("processed")]
