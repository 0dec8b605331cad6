"""Views of queues: the queues of a read, the documents that each view shows, and the index that holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Self

from mongoq.data.arguments import DEAD_SUFFIX, queue_name
from mongoq.data.indexes import BEGINNING, CLAIM, CONTROL_PREFIX, COUNTERS_PREFIX, HISTORY, TOPICS_ID, Index
from mongoq.errors import ArgumentInvalid, QueueUnknown
from mongoq.spark.raw_options import RawOptions
from mongoq.spark.scan import Scan
from mongoq.sync.operations import find_dead_queue

QUEUE_OPTIONS = ("queue", "queues", "prefix")
"""Options that name the queues of a read; exactly one is given."""
VIEWS = ("live", "ready", "scheduled", "reserved", "expired", "history", "dead", "all")
DATE = {"$type": "date"}
"""Condition of a present date. It implies that the field exists, so partial indexes can serve it, and the index alone
decides it. With ``$exists: true`` the server fetches each document, since an index cannot tell null from missing.
"""


SURROGATES = range(0xD800, 0xE000)
LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """The queues of a read.

    Attributes:
        names: names of the queues; empty if a prefix is given.
        prefix: common beginning of the names; empty if names are given.
        dead: queues that hold the dead letters, by these names, as far as they were looked for.
    """

    names: tuple[str, ...] = ()
    prefix: str = ""
    dead: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: RawOptions) -> Self:
        """Check the options ``queue``, ``queues`` and ``prefix``; exactly one is required."""
        ways = [way for way in QUEUE_OPTIONS if options.value(way) is not None]
        if not ways:
            problem = "this option is missing: the name of the queue to read; or give queues, or prefix"
            raise ArgumentInvalid("queue", problem)
        if len(ways) > 1:
            raise ArgumentInvalid(ways[1], f"{' and '.join(ways)} say both what to read; give one of them")
        if ways == ["prefix"]:
            prefix = options.value("prefix")
            if not prefix:
                raise ArgumentInvalid("prefix", "this option is empty")
            return cls(prefix=queue_name(prefix, "prefix"))
        names = options.names("queues", '["orders", "refunds"]') or (options.value("queue"),)
        return cls(tuple(queue_name(name, ways[0]) for name in names))

    def __repr__(self) -> str:
        return f"prefix {self.prefix!r}" if self.prefix else ", ".join(map(repr, self.names))

    def names_of(self, *, dead: bool) -> list[str]:
        """Return the names of the queues themselves, or of their dead queues; empty if a prefix is given."""
        if not dead:
            return sorted(set(self.names))
        return sorted({self.dead.get(name, name.removesuffix(DEAD_SUFFIX) + DEAD_SUFFIX) for name in self.names})

    def condition(self, *, dead: bool) -> Any:
        """Return the condition on the names: of the queues themselves, or of their dead queues.

        A prefix includes dead queues only with ``dead``.
        """
        if self.prefix:
            named = beginning_with(self.prefix)
            ending = re.escape(DEAD_SUFFIX) + r"\z"
            if not dead:
                # The range bounds the index scan; the ending is checked on its keys.
                return {**named, "$not": {"$regex": ending}}
            return {**named, "$regex": f"(?s)^{re.escape(self.prefix)}.*{ending}"}
        names = self.names_of(dead=dead)
        return names[0] if len(names) == 1 else {"$in": names}


def beginning_with(prefix: str) -> dict[str, Any]:
    """Return the condition on texts with this prefix; an index can answer it."""
    return {"$gte": prefix, **_before_the_next(prefix)}


def _before_the_next(prefix: str) -> dict[str, str]:
    """Return the upper bound of names with a prefix: the server orders strings as UTF-8, by code points."""
    head, last = prefix[:-1], ord(prefix[-1])
    if last == LAST_CODE_POINT:
        # No code point is larger, so the next name is that after the shorter prefix; a surrogate has no UTF-8.
        return _before_the_next(head) if head else {}
    following = last + 1
    return {"$lt": head + chr(SURROGATES.stop if following in SURROGATES else following)}


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
        bounds = {"$gte": self.since, "$lt": self.until}
        return DATE | {operator: moment for operator, moment in bounds.items() if moment is not None}


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


def find_letters(scan: Scan, queues: QueueSelection) -> QueueSelection:
    """Return the selection with the queues that hold the letters of its queues and stages, as commands find them."""
    dead: dict[str, str] = {}
    for name in queues.names:
        with suppress(QueueUnknown):  # refused, or an empty table, as for other views
            dead[name], _ = scan.run(find_dead_queue, name)
    return replace(queues, dead=dead)


MAX_SUGGESTIONS = 5
DATES = (("when", CLAIM), ("processed", HISTORY))


def refuse_unknown(scan: Scan, queues: QueueSelection) -> None:
    """Raise ``ArgumentInvalid`` if a queue has no item, live or processed, and no settings or other trace either.

    The check is one index lookup for each date that an item may have. For queues without items the control documents
    are read: a queue has settings or counters, is the dead queue of another, or is bound to a topic. A dead queue may
    be missing while its queue exists. The check only reads, so a crash leaves no trace.
    """
    if queues.prefix:
        if not _has_items(scan, queues.condition(dead=False)) and not _has_items(scan, queues.condition(dead=True)):
            _refuse(scan, "prefix", queues.prefix, f"no queue whose name begins with {queues.prefix!r}")
        return
    for name in queues.names:
        # Of a queue and its dead queue, one may be missing.
        other = name.removesuffix(DEAD_SUFFIX) if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX
        if name not in queues.dead and not any(
            _has_items(scan, each) or _is_named(scan, each) for each in (name, other)
        ):
            _refuse(scan, "queue" if len(queues.names) == 1 else "queues", name, f"no queue {name!r}")


def items_of(scan: Scan, condition: Any) -> list[str]:
    """Return the names of queues that hold an item and match the condition (two ``distinct``)."""
    names: set[str] = set()
    for date, _ in DATES:
        names |= set(scan.names({"q": condition, date: {"$gte": BEGINNING}}))
    return sorted(names)


def _has_items(scan: Scan, condition: Any) -> bool:
    return any(scan.has({"q": condition, date: DATE}, hint=scan.index(index.keys)) for date, index in DATES)


def _is_named(scan: Scan, name: str) -> bool:
    # All control documents by a range of _id, an index scan: up to the next character after the colon.
    controls = {"$gte": CONTROL_PREFIX, "$lt": CONTROL_PREFIX[:-1] + chr(ord(":") + 1)}
    ways: Sequence[dict[str, Any]] = (
        {"_id": CONTROL_PREFIX + name},
        {"_id": COUNTERS_PREFIX + name},
        {"_id": controls, "settings.dead": {"$eq": name}},
        {"_id": TOPICS_ID, "bound.queue": {"$eq": name}},
    )
    return any(scan.has(way) for way in ways)


def _refuse(scan: Scan, option: str, name: str, problem: str) -> None:
    names = items_of(scan, {"$gte": ""})
    # cutoff=0: always show the nearest names, even if none is very similar.
    close = get_close_matches(name, names, MAX_SUGGESTIONS, cutoff=0.0)
    what = ", ".join(map(repr, close)) + (" and others" if len(names) > len(close) else "")
    there = f"which has {what}" if names else "which holds no items at all"
    raise ArgumentInvalid(
        option, f"there is {problem} in {scan.name}, {there}; correct it, or say missing=empty if it may be missing"
    )
