"""The views of queues: which documents each shows, and which index holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from mongoq.model.indexes import CLAIM, HISTORY, Index
from mongoq.spark.read.queue_selection import QueueSelection

__all__ = ["VIEWS", "Period", "View", "next_millisecond", "view_of"]

VIEWS = ("live", "ready", "scheduled", "reserved", "expired", "history", "dead", "all")
DATE = {"$type": "date"}
"""Implies that the field exists, so it admits the partial indexes, and is decided within the index: with
``$exists: true`` the server fetches each document, since an index cannot tell null from missing."""


@dataclass(frozen=True, slots=True)
class Period:
    """A time, from its beginning to before its end; ``None`` where it has none. Both are in whole milliseconds."""

    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def between(cls, since: datetime | None, until: datetime | None) -> Self:
        """Return the time between two moments, which may be finer than the milliseconds that MongoDB keeps."""
        return cls(since and next_millisecond(since), until and next_millisecond(until))

    def condition(self) -> dict[str, Any]:
        """Return the condition on a date."""
        told = {"$gte": self.since, "$lt": self.until}
        return DATE | {operator: moment for operator, moment in told.items() if moment is not None}


def next_millisecond(moment: datetime) -> datetime:
    """Return a moment in whole milliseconds: what is at or after, or before, the one is so with the other."""
    return moment + timedelta(microseconds=-moment.microsecond % 1000)


@dataclass(frozen=True, slots=True)
class Branch:
    """Documents that one partial index holds: those where one date is present.

    Attributes:
        queues: the condition on the names of the queues.
        date: the field that is present.
        dates: the condition on it.
        index: the index, by its keys.
        others: further conditions, which no index answers.
        payload: whether the payload is asked for: remembered ids are processed, and have none.
    """

    queues: Any
    date: str
    dates: dict[str, Any]
    index: Index
    others: Mapping[str, Any] = field(default_factory=dict)
    payload: bool = False

    def keys(self) -> dict[str, Any]:
        """Return a filter for counting, which the index answers alone unless there are ``others``.

        For history it meets remembered ids as well.
        """
        return {"q": self.queues, self.date: self.dates, **self.others}

    def documents(self) -> dict[str, Any]:
        """Return the filter of what is shown."""
        return self.keys() | ({"payload": {"$exists": True}} if self.payload else {})


@dataclass(frozen=True, slots=True)
class View:
    """What one read shows: the union of branches, each item at most once.

    One query reads both branches of ``all``: the server then returns a document once, also when it is
    committed between the two. Control documents have no ``q``, so no view meets them.
    """

    branches: tuple[Branch, ...]

    def keys(self) -> dict[str, Any]:
        """Return the filter for planning."""
        return _union([branch.keys() for branch in self.branches])

    def documents(self) -> dict[str, Any]:
        """Return the filter for reading."""
        return _union([branch.documents() for branch in self.branches])


def view_of(name: str, queues: QueueSelection, period: Period, now: datetime) -> View:
    """Return the view of that name on some queues, as they are now."""
    condition = queues.condition(dead=name == "dead")
    dates = period.condition()
    live = Branch(condition, "when", dates, CLAIM, _state(name, now))
    history = Branch(condition, "processed", dates, HISTORY, payload=True)
    return View({"history": (history,), "all": (live, history)}.get(name, (live,)))


def _state(name: str, now: datetime) -> dict[str, Any]:
    """Return what makes the state of a live item, as the column ``_state`` tells it."""
    due = {"ready": True, "expired": True, "scheduled": False, "reserved": False}.get(name)
    if due is None:
        return {}
    reserved = {"reserved": True} if name in ("reserved", "expired") else {"reserved": {"$ne": True}}
    return {"$and": [{"when": {"$lte" if due else "$gt": now}}], **reserved}


def _union(filters: list[dict[str, Any]]) -> dict[str, Any]:
    return filters[0] if len(filters) == 1 else {"$or": filters}
