"""Prefetch size: the number of items to hold ready. Enough that no runner waits, few enough that little is hoarded."""

from __future__ import annotations

__all__ = ["PrefetchSizer"]

MAX_PREFETCH = 2_000
"""Maximum number of waiting items, unless the consumer sets one: two claims, so that one can be under way."""
FAST_SECONDS = 0.2
"""Seconds: a batch that lasted for less should have been larger; so should one that lasted less than its claim took."""
SLOW_SECONDS = 1.0
"""Seconds: a batch of which items still wait after this time should have been smaller."""
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
