"""Heads: where claims begin in a queue whose index is full of deleted entries.

The server keeps the index entries of what was claimed for its history window, and a claim that begins at the beginning
walks over all of them. So this process remembers where the queue begins in each priority: claims that begin there are
fast. What somebody else puts before it is found by the next look, which is why claims begin at the beginning as long
as that is cheap. These are hints: no item is lost or doubled for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.model.envelope import Document

__all__ = ["MARGIN", "MOST", "ClaimHints", "LowerBound", "ScanStart", "claimable", "eligible"]

MARGIN = timedelta(seconds=0.5)
"""A push that became due so recently may still be under way."""
MOST = 16
"""Priorities in use: with more of them a fast claim would be none."""
EVERY = 1.0
"""Seconds between looks while claims are fast."""
EVERY_EMPTY = 0.1
"""The same where nothing was found: the item that somebody waits for may stand before the floors."""
SHARE = 0.05
"""The part of the time that looks may take, at most."""
WORTH = 0.1
"""Seconds that claims must have taken before it is worth looking whether they could be faster."""
SLOW = 0.00075
"""Seconds that the walk over deleted entries must cost before hints are worth their price in order."""
CALM = 10
"""Looks that must find the walk cheap before claims begin at the beginning again."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Where claims begin in a priority: at a date, or at the item with this id of those due on that date."""

    when: datetime
    id: ObjectId | None = None


def eligible(queue: str, now: datetime) -> dict[str, Any]:
    """Return the filter of what may be claimed: ready items, and those whose lease is over."""
    return {"q": queue, "when": {"$lte": now}}


def claimable(queue: str, now: datetime, floors: Mapping[int, LowerBound]) -> dict[str, Any]:
    """Return the filter of what may be claimed and stands at these floors or behind them.

    One branch for each priority, each with the queue in it: the server merges them in the order of claims.
    """
    branches = [branch for priority in sorted(floors) for branch in _branches(queue, now, priority, floors[priority])]
    return branches[0] if len(branches) == 1 else {"$or": branches}


def _branches(queue: str, now: datetime, priority: int, floor: LowerBound) -> list[dict[str, Any]]:
    within: dict[str, Any] = {"q": queue, "priority": priority}
    if floor.id is None:
        return [{**within, "when": {"$gte": floor.when, "$lte": now}}]
    return [
        {**within, "when": floor.when, "_id": {"$gte": floor.id}},
        {**within, "when": {"$gt": floor.when, "$lte": now}},
    ]


@dataclass(slots=True)
class ScanStart:
    """Where one claim begins.

    Attributes:
        filter: what it may take.
        now: the time that it goes by.
        at: when it is sent, on the monotonic clock.
        version: of the floors that it goes by; ``None`` when it begins at the beginning.
    """

    filter: dict[str, Any]
    now: datetime
    at: float
    version: int | None


@dataclass(slots=True)
class ClaimHints:
    """Where a queue begins, as far as this process knows, and whether its claims go by that.

    Attributes:
        fast: claims go by the floors.
        floors: by priority. Replaced as a whole, so that threads see one state of them.
        version: counts what was put before a floor; a claim that was sent before that says nothing about it.
        spent: seconds that claims took since the last look.
        looked_at: when the last look began, on the monotonic clock.
        cost: seconds that it took.
        calm: how many looks in a row have found the walk cheap.
        asked: the version when the last look began.
    """

    fast: bool = False
    floors: Mapping[int, LowerBound] = field(default_factory=dict)
    version: int = 0
    spent: float = 0.0
    looked_at: float = field(default_factory=time.monotonic)
    cost: float = 0.0
    calm: int = 0
    asked: int = 0

    def start(self, queue: str, now: datetime) -> ScanStart:
        """Return where a claim begins."""
        floors, version = self.floors, self.version
        if self.fast and floors:
            return ScanStart(claimable(queue, now, floors), now, time.monotonic(), version)
        return ScanStart(eligible(queue, now), now, time.monotonic(), None)

    def found(self, start: ScanStart, first: Document | None) -> None:
        """Take in what a claim found first: there is nothing before it, or nothing at all."""
        self.spent += time.monotonic() - start.at
        if start.version is None or start.version != self.version:
            return
        floors = dict(self.floors)
        recent = start.now - MARGIN
        until = None if first is None else first["priority"]
        for priority, floor in floors.items():
            if until is None or priority < until:
                floors[priority] = _raised(floor, LowerBound(recent))
        if first is not None and until in floors and isinstance(when := first["when"], datetime):
            id = first["_id"]
            head = LowerBound(when, id if isinstance(id, ObjectId) else None) if when < recent else LowerBound(recent)
            floors[until] = _raised(floors[until], head)
        self.floors = floors

    def note(self, priority: int, when: datetime) -> None:
        """Take in that this process put an item into the queue: its next claim must not begin behind it."""
        if not self.fast or not _is_number(priority):
            return
        floor = self.floors.get(priority)
        if floor is None or when <= floor.when:
            self.floors = {**self.floors, priority: LowerBound(when)}
            self.version += 1
            self.fast = len(self.floors) <= MOST

    def due(self, at: float, *, empty: bool = False) -> bool:
        """Say whether to look: while claims are fast, and when they take so long that they perhaps could be.

        With ``empty`` a fast claim has found nothing.
        """
        if not self.fast and self.spent < WORTH:
            return False
        least = EVERY_EMPTY if empty else EVERY
        return at - self.looked_at >= max(least, self.cost / SHARE)

    def begin(self, at: float) -> None:
        """Take the turn to look, so that other threads do not look as well."""
        self.looked_at, self.spent, self.asked = at, 0.0, self.version

    def seen(self, heads: Sequence[tuple[Any, Any]], now: datetime) -> Mapping[int, LowerBound] | None:
        """Return the floors that a look makes of the priorities and their first dates; ``None`` when it cannot be done.

        Priorities that have run dry stay, and 0 is always among them, since most items have it.
        """
        if len(heads) > MOST or not all(
            _is_number(priority) and isinstance(when, datetime) for priority, when in heads
        ):
            return None
        recent = now - MARGIN
        floors = {priority: LowerBound(min(when, recent)) for priority, when in heads}
        for priority in (0, *self.floors):
            if len(floors) < MOST:
                floors.setdefault(priority, LowerBound(recent))
        return floors

    def looked(self, floors: Mapping[int, LowerBound] | None, *, slow: bool, at: float) -> None:
        """Take in a look: its floors, and whether the walk from the beginning was slow."""
        self.cost = at - self.looked_at
        self.calm = 0 if slow else self.calm + 1
        if floors is None or (self.calm >= CALM and self.fast):
            self.fast, self.floors = False, {}
        elif slow or self.fast:
            if self.version != self.asked:  # what was put there meanwhile may have come too late to be seen
                floors = {**floors, **{each: _lower(self.floors[each], floors.get(each)) for each in self.floors}}
            self.floors, self.fast = floors, True
            self.version += 1

    def is_slow(self, full: float, fast: float) -> bool:
        """Say whether a walk that took ``full`` seconds is slow beside one that took ``fast``."""
        return full - fast > SLOW and full > 2 * fast


def _is_number(priority: Any) -> bool:
    """Some other program's document may hold anything there, or nothing."""
    return isinstance(priority, int) and not isinstance(priority, bool)


def _lower(floor: LowerBound, other: LowerBound | None) -> LowerBound:
    return floor if other is None or floor.when <= other.when else other


def _raised(floor: LowerBound, to: LowerBound) -> LowerBound:
    """Return the later floor; of two on one date the one with an id, which is the newer."""
    return to if to.when >= floor.when else floor
