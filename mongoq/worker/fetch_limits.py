"""Limits of a consumer's fetches: how many items, how many bytes, and one at a time during an outage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mongoq.model.item import Item
from mongoq.model.policy import RetryPolicy

MAX_PREFETCH = 2_000
"""Maximum number of waiting items, unless the consumer sets one: two claims, so that one can be under way."""
FAST_SECONDS = 0.2
"""The target grows when a full claim was used up within this time, in seconds, or within the time of its claim."""
SLOW_SECONDS = 1.0
"""The target shrinks when items of a claim still wait after this time in seconds."""
GROWTH_FACTOR = 4


class PrefetchSizer:
    """Finds the number of items that should wait for a run, from how long they waited.

    Attributes:
        target: the number found; changes in ``adjust``, unless it is fixed.
    """

    def __init__(self, fixed: int | None = None, *, least: int = 1) -> None:
        self._fixed = fixed
        self._least = least
        self.target = least if fixed is None else fixed
        self._claimed_at = self._empty_at = float("-inf")
        self._fast_seconds = FAST_SECONDS
        self._full = False

    def record_claim(self, now: float, *, full: bool, seconds: float = 0.0) -> None:
        """Record a claim that took ``seconds``; ``full``: it returned as many items as asked for."""
        self._claimed_at, self._full, self._fast_seconds = now, full, max(FAST_SECONDS, seconds)

    def record_empty(self, now: float) -> None:
        """Record the time when no claimed item waits any more; ``adjust`` may be called much later."""
        self._empty_at = now

    def adjust(self, now: float, waiting: int) -> None:
        """Adjust the target to the number of items that still wait."""
        if self._fixed is not None:
            return
        age = now - self._claimed_at
        lasted = self._empty_at - self._claimed_at if self._empty_at >= self._claimed_at else age
        if waiting == 0 and self._full and lasted < self._fast_seconds:
            self.target, self._full = max(min(self.target * GROWTH_FACTOR, MAX_PREFETCH), self._least), False
        elif waiting and age > SLOW_SECONDS:
            self.target, self._claimed_at = max(self.target // 2, self._least), now


class ByteLimit:
    """Bounds the bytes of the items that a consumer holds, from the sizes of recently claimed items."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._expected = 0

    def claim_size(self, wanted: int, held_bytes: int) -> int:
        """Return how many of the ``wanted`` items to claim beside ``held_bytes``; at least one if nothing is held."""
        if self._limit is None or not self._expected:
            return wanted
        return min(wanted, max((self._limit - held_bytes) // self._expected, 0 if held_bytes else 1))

    def count_fitting(self, items: Sequence[Item[Any]], held_bytes: int) -> int:
        """Return how many of the claimed items to keep beside ``held_bytes``, and update the expected size."""
        sizes = [item._size for item in items]
        # Halved with each claim, not replaced: a few large items among many small ones stay remembered for some claims.
        self._expected = max(max(sizes, default=0), self._expected // 2)
        if self._limit is None or held_bytes + sum(sizes) <= self._limit:
            return len(items)
        number, total = 0, held_bytes
        while number < len(sizes) and (total + sizes[number] <= self._limit or total == 0):
            total += sizes[number]
            number += 1
        return number


MAX_PAUSE_SECONDS = 30.0
"""Longest pause between two tries, in seconds: the remote system may be back."""
MAX_REMEMBERED = 1_000
"""Failed items that a circuit breaker remembers: with so many, another one comes in any case."""


class CircuitBreaker:
    """Opens when two different items have failed, with no success between: the items are not at fault then.

    One item that fails again and again is at fault itself, and opens nothing.

    Attributes:
        is_open: True from such a failure to the next success.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._failed = Counter[Any]()
        self._tries = 0
        self._resume_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return len(self._failed) > 1

    def record_failure(self, key: Any, now: float) -> float | None:
        """Record a failure of an item; returns ``None`` if it counts as an attempt.

        If not, returns for how many seconds at least the item has to wait, so that others are tried before it: without
        that, items of a higher priority that fail every time would be the only ones.
        """
        if key in self._failed or len(self._failed) < MAX_REMEMBERED:
            self._failed[key] += 1
        if not self.is_open:
            return None
        self._tries += 1
        pause = min(self._retry.delay(self._tries).total_seconds(), MAX_PAUSE_SECONDS)
        self._resume_at = now + pause
        return pause * min(self._failed[key], len(self._failed))

    def record_success(self) -> None:
        """Close the circuit."""
        self._failed.clear()
        self._tries = 0

    def pause(self, now: float) -> float:
        """Return the seconds until the next item may be tried."""
        return max(0.0, self._resume_at - now) if self.is_open else 0.0
