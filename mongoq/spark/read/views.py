"""Views of queues: the documents that each view shows, and the index that holds them."""

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
"""Condition of a present date. It implies that the field exists, so partial indexes can serve it, and the index alone
decides it. With ``$exists: true`` the server fetches each document, since an index cannot tell null from missing.
"""


@dataclass(frozen=True, slots=True)
class Period:
    """Time range, from ``since`` to before ``until``; ``None`` for no bound. Both are in whole milliseconds."""

    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def between(cls, since: datetime | None, until: datetime | None) -> Self:
        """Return the range between two times, which may be finer than MongoDB's milliseconds."""
        return cls(since and next_millisecond(since), until and next_millisecond(until))

    def condition(self) -> dict[str, Any]:
        """Return the condition on a date."""
        told = {"$gte": self.since, "$lt": self.until}
        return DATE | {operator: moment for operator, moment in told.items() if moment is not None}


def next_millisecond(moment: datetime) -> datetime:
    """Return the time rounded up to whole milliseconds: comparisons with stored dates stay the same."""
    return moment + timedelta(microseconds=-moment.microsecond % 1000)


@dataclass(frozen=True, slots=True)
class Branch:
    """Documents of one partial index: those in which one date is present.

    Attributes:
        queues: condition on the names of the queues.
        date: name of the date field.
        dates: condition on the date.
        index: the index, by its keys.
        others: further conditions, which no index decides.
        payload: True if the payload must exist: remembered ids are processed too, and have none.
    """

    queues: Any
    date: str
    dates: dict[str, Any]
    index: Index
    others: Mapping[str, Any] = field(default_factory=dict)
    payload: bool = False

    def keys(self) -> dict[str, Any]:
        """Return a filter for counting; the index alone answers it unless there are ``others``.

        For history it also counts remembered ids.
        """
        return {"q": self.queues, self.date: self.dates, **self.others}

    def documents(self) -> dict[str, Any]:
        """Return the filter of the documents that are shown."""
        return self.keys() | ({"payload": {"$exists": True}} if self.payload else {})


@dataclass(frozen=True, slots=True)
class View:
    """Documents of one read: the union of branches, each item at most once.

    One query reads both branches of ``all``: so the server returns a document once, even when it is committed during
    the read. Control documents have no ``q``, so no view shows them.
    """

    branches: tuple[Branch, ...]

    def keys(self) -> dict[str, Any]:
        """Return the filter for planning."""
        return _union([branch.keys() for branch in self.branches])

    def documents(self) -> dict[str, Any]:
        """Return the filter for reading."""
        return _union([branch.documents() for branch in self.branches])


def view_of(name: str, queues: QueueSelection, period: Period, now: datetime) -> View:
    """Return the view of this name on some queues, at the time ``now``."""
    condition = queues.condition(dead=name == "dead")
    dates = period.condition()
    live = Branch(condition, "when", dates, CLAIM, _state(name, now))
    history = Branch(condition, "processed", dates, HISTORY, payload=True)
    return View({"history": (history,), "all": (live, history)}.get(name, (live,)))


def _state(name: str, now: datetime) -> dict[str, Any]:
    """Return the conditions for the state of a live item, as the column ``_state`` shows it."""
    due = {"ready": True, "expired": True, "scheduled": False, "reserved": False}.get(name)
    if due is None:
        return {}
    reserved = {"reserved": True} if name in ("reserved", "expired") else {"reserved": {"$ne": True}}
    return {"$and": [{"when": {"$lte" if due else "$gt": now}}], **reserved}


def _union(filters: list[dict[str, Any]]) -> dict[str, Any]:
    return filters[0] if len(filters) == 1 else {"$or": filters}
