"""Circuit breaker of a consumer with ``probe``: one item at a time is tried while the other side is down."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mongoq.data.outcomes import RetryPolicy

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
