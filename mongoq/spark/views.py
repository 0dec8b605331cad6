"""The views of a queue: which documents each shows, and which index holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mongoq.model.arguments import DEAD_SUFFIX
from mongoq.model.indexes import CLAIM, HISTORY, Index

__all__ = ["VIEWS", "View", "view_of"]

VIEWS = ("live", "history", "dead", "all")
DATE = {"$type": "date"}
"""Implies that the field exists, so it admits the partial indexes, and is decided within the index: with
``$exists: true`` the server fetches each document, since an index cannot tell null from missing."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Documents that one partial index holds: those where one date is present.

    Attributes:
        queue: the queue.
        date: the field that is present.
        index: the index, by its keys.
        payload: whether the payload is asked for: remembered ids are processed, and have none.
    """

    queue: str
    date: str
    index: Index
    payload: bool = False

    def keys(self) -> dict[str, Any]:
        """Return a filter that the index answers alone; for history it meets remembered ids as well."""
        return {"q": self.queue, self.date: DATE}

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


def view_of(name: str, queue: str) -> View:
    """Return the view of that name on a queue."""
    if name == "dead" and not queue.endswith(DEAD_SUFFIX):
        queue += DEAD_SUFFIX
    live = Branch(queue, "when", CLAIM)
    history = Branch(queue, "processed", HISTORY, payload=True)
    return View({"history": (history,), "all": (live, history)}.get(name, (live,)))


def _union(filters: list[dict[str, Any]]) -> dict[str, Any]:
    return filters[0] if len(filters) == 1 else {"$or": filters}
