"""How many items to hold ready: as many as are worked off in a moment, so that nobody waits and little is hoarded."""

from __future__ import annotations

__all__ = ["PrefetchSizer"]

MAX_PREFETCH = 2_000
"""Items that wait for a run at most, unless the consumer says otherwise: two claims, so that one is under way."""
FAST_SECONDS = 0.2
"""Seconds in which a batch was worked off that should have been larger; so should one that took longer to claim."""
SLOW_SECONDS = 1.0
"""Seconds after which items still wait of a batch that should have been smaller."""
GROWTH_FACTOR = 4


class PrefetchSizer:
    """Finds how many items should wait for a run, from how long they do.

    Attributes:
        target: that number.
    """

    def __init__(self, fixed: int | None = None, *, least: int = 1) -> None:
        self._fixed = fixed
        self._least = least
        self.target = least if fixed is None else fixed
        self._claimed_at = self._empty_at = float("-inf")
        self._fast_seconds = FAST_SECONDS
        self._full = False

    def record_claim(self, now: float, *, full: bool, seconds: float = 0.0) -> None:
        """Take note that items were claimed, in so many seconds; ``full`` says that there were as many as asked for."""
        self._claimed_at, self._full, self._fast_seconds = now, full, max(FAST_SECONDS, seconds)

    def record_empty(self, now: float) -> None:
        """Take note that none of them waits any more; who looks may come much later."""
        self._empty_at = now

    def adjust(self, now: float, waiting: int) -> None:
        """Take note of how many of them still wait."""
        if self._fixed is not None:
            return
        age = now - self._claimed_at
        lasted = self._empty_at - self._claimed_at if self._empty_at >= self._claimed_at else age
        if waiting == 0 and self._full and lasted < self._fast_seconds:
            self.target, self._full = max(min(self.target * GROWTH_FACTOR, MAX_PREFETCH), self._least), False
        elif waiting and age > SLOW_SECONDS:
            self.target, self._claimed_at = max(self.target // 2, self._least), now
