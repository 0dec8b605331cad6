"""Where claims begin: lower bounds for a queue whose index is full of deleted entries, and places under contention.

The server keeps the index entries of claimed items for its history window, and a claim that scans from the start of
the index walks over all of them. This process therefore remembers where the first item of each priority is, and claims
from there. An item that another process puts before such a bound is found by the next refresh of the bounds, so claims
scan from the start as long as that is cheap. Bounds are hints: no item is lost or delivered twice because of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.data.envelope import Document
from mongoq.data.process import dice

BOUND_MARGIN = timedelta(seconds=0.5)
"""No bound is later than this before now: a push that became due so recently may still be in flight."""
MAX_BOUNDS = 16
"""Priorities with a bound, at most: each is a branch of the claim's ``$or``, and more would make it slow."""
BOUNDS_REFRESH_SECONDS = 1.0
"""Seconds between two refreshes while claims use the bounds."""
EMPTY_CLAIM_REFRESH_SECONDS = 0.1
"""The same after a claim that found nothing: the item that a caller waits for may be before the bounds."""
MAX_REFRESH_SHARE = 0.05
"""The share of the time that refreshes may take, at most."""
CLAIM_SECONDS_BEFORE_MEASURING = 0.1
"""Seconds that claims must have taken before it is worth measuring whether bounds would make them faster."""
SLOW_SCAN_SECONDS = 0.00075
"""Seconds that the walk over deleted entries must cost before bounds are worth a slightly different order."""
FAST_SCANS_BEFORE_END = 10
"""Refreshes in a row that must find the walk cheap before claims scan from the start again."""


MAX_WIDTH = 64
"""The largest ``width``: places, one batch apart, among which a process chooses."""
HIGH_LOSS = 0.16
"""The smoothed share of lost items above which the width doubles."""
LOW_LOSS = 0.04
"""The smoothed share of lost items below which the width shrinks."""
EARLIER_WEIGHT = 0.85
"""The weight of earlier batches in the smoothed share."""
FORGET_SECONDS = 1.0
"""Seconds without a batch after which the width is 1 again: the other processes may be gone."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Where claims of one priority begin: at a date, or at one item of those that are due on it."""

    when: datetime
    id: ObjectId | None = None


def eligible(queue: str, now: datetime) -> dict[str, Any]:
    """Return the filter of items that can be claimed: ready ones, and reserved ones whose lease is over."""
    return {"q": queue, "when": {"$lte": now}}


def claimable(queue: str, now: datetime, floors: Mapping[int, LowerBound]) -> dict[str, Any]:
    """Return the filter of items that can be claimed and are at these bounds or behind them.

    Each priority is one branch with the queue in it, so that the server merges sorted scans in the order of claims.
    """
    branches: list[dict[str, Any]] = []
    for priority in sorted(floors):
        floor, within = floors[priority], {"q": queue, "priority": priority}
        if floor.id is None:
            branches.append({**within, "when": {"$gte": floor.when, "$lte": now}})
        else:
            branches.append({**within, "when": floor.when, "_id": {"$gte": floor.id}})
            branches.append({**within, "when": {"$gt": floor.when, "$lte": now}})
    return branches[0] if len(branches) == 1 else {"$or": branches}


@dataclass(slots=True)
class ScanStart:
    """Where one claim begins.

    Attributes:
        filter: the filter of the claim.
        now: the server's time that the filter holds.
        at: when the claim is sent, on the monotonic clock.
        version: the version of the bounds in the filter; ``None`` when the claim scans from the start.
    """

    filter: dict[str, Any]
    now: datetime
    at: float
    version: int | None


@dataclass(slots=True)
class ClaimHints:
    """The bounds of one queue that this process knows, and whether its claims use them.

    Attributes:
        fast: claims use the bounds.
        floors: the bound of each priority. Replaced as a whole, so that threads see a consistent set.
        version: grows when an item is put before a bound; a claim sent before that proves nothing about the bound.
        spent: seconds that claims took since the last refresh.
        looked_at: when the last refresh began, on the monotonic clock.
        cost: seconds that the last refresh took.
        calm: refreshes in a row that found the walk from the start cheap.
        asked: the version when the last refresh began.
        outdated: an item was put at a place that no bound covers; the next claim refreshes the bounds first.
    """

    fast: bool = False
    floors: Mapping[int, LowerBound] = field(default_factory=dict)
    version: int = 0
    spent: float = 0.0
    looked_at: float = field(default_factory=time.monotonic)
    cost: float = 0.0
    calm: int = 0
    asked: int = 0
    outdated: bool = False

    def start(self, queue: str, now: datetime) -> ScanStart:
        """Return where a claim begins."""
        floors, version = self.floors, self.version
        if self.fast and floors:
            return ScanStart(claimable(queue, now, floors), now, time.monotonic(), version)
        return ScanStart(eligible(queue, now), now, time.monotonic(), None)

    def raise_bounds(self, start: ScanStart, first: Document | None) -> None:
        """Raise the bounds to the first item that a claim found; ``None`` when it found nothing."""
        self.spent += time.monotonic() - start.at
        if start.version is None or start.version != self.version:
            return
        floors = dict(self.floors)
        recent = start.now - BOUND_MARGIN
        until = None if first is None else first["priority"]
        for priority, floor in floors.items():
            if until is None or priority < until:
                floors[priority] = _later_bound(floor, LowerBound(recent))
        if first is not None and until in floors and isinstance(when := first["when"], datetime):
            id = first["_id"]
            head = LowerBound(when, id if isinstance(id, ObjectId) else None) if when < recent else LowerBound(recent)
            floors[until] = _later_bound(floors[until], head)
        self.floors = floors

    def note(self, priority: Any, when: datetime) -> None:
        """Lower the bound of a priority to an item that this process has put into the queue."""
        if not self.fast:
            return
        if not _is_number(priority):
            self.outdated = True
            return
        floor = self.floors.get(priority)
        if floor is None or when <= floor.when:
            self.floors = {**self.floors, priority: LowerBound(when)}
            self.version += 1
            self.fast = len(self.floors) <= MAX_BOUNDS

    def needs_refresh(self, at: float, *, empty: bool = False) -> bool:
        """Return whether to refresh the bounds: they are in use, or claims are so slow that they might help.

        ``empty``: a claim with bounds has found nothing.
        """
        if not self.fast and self.spent < CLAIM_SECONDS_BEFORE_MEASURING:
            return False
        least = EMPTY_CLAIM_REFRESH_SECONDS if empty else BOUNDS_REFRESH_SECONDS
        return self.outdated or at - self.looked_at >= max(least, self.cost / MAX_REFRESH_SHARE)

    def begin(self, at: float) -> None:
        """Record that this thread refreshes the bounds, so that others do not."""
        self.looked_at, self.spent, self.asked, self.outdated = at, 0.0, self.version, False

    def bounds_of(self, heads: Sequence[tuple[Any, Any]], now: datetime) -> Mapping[int, LowerBound] | None:
        """Return the bounds made of each priority's first date; ``None`` with too many priorities or foreign values.

        Priorities that have become empty stay, and 0 is always among them, since most items have it.
        """
        if len(heads) > MAX_BOUNDS or not all(
            _is_number(priority) and isinstance(when, datetime) for priority, when in heads
        ):
            return None
        recent = now - BOUND_MARGIN
        floors = {priority: LowerBound(min(when, recent)) for priority, when in heads}
        for priority in (0, *self.floors):
            if len(floors) < MAX_BOUNDS:
                floors.setdefault(priority, LowerBound(recent))
        return floors

    def record_refresh(self, floors: Mapping[int, LowerBound] | None, *, slow: bool, at: float) -> None:
        """Record a refresh: its bounds, and whether the walk from the start of the index was slow."""
        self.cost = at - self.looked_at
        self.calm = 0 if slow else self.calm + 1
        if floors is None or (self.calm >= FAST_SCANS_BEFORE_END and self.fast):
            self.fast, self.floors = False, {}
        elif slow or self.fast:
            if self.version != self.asked:  # an item put before a bound meanwhile may have come too late to be read
                floors = {**floors, **{each: _lower(self.floors[each], floors.get(each)) for each in self.floors}}
            self.floors, self.fast = floors, True
            self.version += 1

    def is_slow(self, full: float, fast: float) -> bool:
        """Return whether a scan from the start (``full`` seconds) is slow beside one from the bounds (``fast``)."""
        return full - fast > SLOW_SCAN_SECONDS and full > 2 * fast


def _is_number(priority: Any) -> bool:
    """Return whether a priority can have a bound: the document of another program may hold any value, or none."""
    return isinstance(priority, int) and not isinstance(priority, bool)


def _lower(floor: LowerBound, other: LowerBound | None) -> LowerBound:
    return floor if other is None or floor.when <= other.when else other


def _later_bound(floor: LowerBound, to: LowerBound) -> LowerBound:
    """Return the later bound; of two on one date the one with an id, which is newer."""
    return to if to.when >= floor.when else floor


@dataclass(slots=True)
class Contention:
    """The places at the head of a queue where this process claims its batches: how far apart the processes keep.

    Processes that all read the first ids of a queue claim the same items, and all but one of them lose. A process that
    loses many items therefore begins its next batch some batches behind the head, at places that it visits in turn, the
    head included. The distance grows until the process loses little, and shrinks again after that: a single consumer is
    always at the head, and keeps the exact order.

    Attributes:
        width: the number of places; 1 is the head alone.
        lost: the smoothed share of items that other processes had claimed first.
        turns: the places that are left of this round; each is visited once a round, in random order.
        at: when the last batch was claimed, on the monotonic clock.
    """

    width: int = 1
    lost: float = 0.0
    turns: list[int] = field(default_factory=list)
    at: float = float("-inf")

    def skip(self, n: int, at: float | None = None) -> int:
        """Return how many items to skip before a batch of ``n``."""
        if self.width == 1:
            return 0
        if (time.monotonic() if at is None else at) - self.at > FORGET_SECONDS:
            self._choose(1)
            return 0
        turns = self.turns or dice.sample(range(self.width), self.width)
        self.turns = turns[1:]
        return n * turns[0]

    def record_batch(self, n: int, lost_items: int, at: float | None = None) -> None:
        """Record a batch: of ``n`` items, ``lost_items`` had been claimed by others."""
        if not lost_items and self.width == 1:
            return
        self.at = time.monotonic() if at is None else at
        self.lost = EARLIER_WEIGHT * self.lost + (1 - EARLIER_WEIGHT) * lost_items / n
        if self.lost > HIGH_LOSS:
            self._choose(min(MAX_WIDTH, 2 * self.width))
        elif self.lost < LOW_LOSS:
            self._choose(self.width - max(1, self.width // 8))

    def beyond(self) -> None:
        """Record that the queue ends before the chosen place: halve the width, and go to the head next."""
        self._choose(max(1, self.width // 2))
        self.turns = [0]

    def _choose(self, width: int) -> None:
        self.width, self.turns = max(1, width), []
        self.lost = (HIGH_LOSS + LOW_LOSS) / 2 if self.width > 1 else 0.0
