"""History: what was processed, oldest first, in pages by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import count, moment
from mongoq.model.item import Item
from mongoq.protocol.context import QueueContext
from mongoq.protocol.control import ready
from mongoq.protocol.read import BEGINNING, read
from mongoq.protocol.request import Command, Flow

__all__ = ["Page", "Range", "history_page", "history_range"]

M = TypeVar("M")
ORDER = [("processed", 1), ("_id", 1)]


@dataclass(frozen=True, slots=True)
class Range:
    """From when (included) until when (excluded), and after which item to go on."""

    since: datetime
    until: datetime | None
    after: ObjectId | None
    page: int

    def filter(self, queue: str) -> dict[str, Any]:
        """Return the filter; stubs, which have no payload, are left out."""
        bounds: dict[str, Any] = {"$gte": self.since}
        if self.until is not None:
            bounds["$lt"] = self.until
        filter: dict[str, Any] = {"q": queue, "processed": bounds, "payload": {"$exists": True}}
        if self.after is not None:
            filter["$or"] = [{"processed": {"$gt": self.since}}, {"_id": {"$gt": self.after}}]
        return filter


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """Some items, and where to go on; ``None`` at the end."""

    items: list[Item[M]]
    rest: Range | None


def history_range(since: datetime | None, until: datetime | None, page: int) -> Range:
    """Check what to read."""
    first = BEGINNING if since is None else moment(since, "since")
    last = None if until is None else moment(until, "until")
    if last is not None and last < first:
        raise ArgumentInvalid("until", f"{until} lies before since, {since}")
    return Range(first, last, None, count(page, "page"))


def history_page(context: QueueContext[M], wanted: Range) -> Flow[Page[M]]:
    """Read one page (``find`` over the history index, majority read concern)."""
    yield from ready(context.broker, write=False)
    arguments: Mapping[str, Any] = {
        "filter": wanted.filter(context.name),
        "sort": ORDER,
        "limit": wanted.page,
    }
    found: Any = yield from Command("find", arguments, target="history")
    rest = None
    if len(found) == wanted.page:
        last = found[-1]
        rest = Range(last["processed"], wanted.until, last["_id"], wanted.page)
    now = context.broker.clock.now()
    return Page([read(context, document, now) for document in found], rest)
