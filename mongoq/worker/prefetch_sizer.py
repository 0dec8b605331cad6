"""How many items to hold ready: as many as are worked off in a moment, so that nobody waits and little is hoarded."""

from __future__ import annotations

__all__ = ["PrefetchSizer"]

MOST = 2_000
"""Items that wait for a run at most, unless the consumer says otherwise: two claims, so that one is under way."""
SOON = 0.2
"""Seconds in which a batch was worked off that should have been larger; so should one that took longer to claim."""
LATE = 1.0
"""Seconds after which items still wait of a batch that should have been smaller."""
GROWTH = 4


class PrefetchSizer:
    """Finds how many items should wait for a run, from how long they do.

    Attributes:
        ahead: that number.
    """

    def __init__(self, fixed: int | None = None, *, least: int = 1) -> None:
        self._fixed = fixed
        self._least = least
        self.ahead = least if fixed is None else fixed
        self._taken_at = self._out_at = float("-inf")
        self._soon = SOON
        self._full = False

    def took(self, now: float, *, full: bool, seconds: float = 0.0) -> None:
        """Take note that items were claimed, in so many seconds; ``full`` says that there were as many as asked for."""
        self._taken_at, self._full, self._soon = now, full, max(SOON, seconds)

    def ran_out(self, now: float) -> None:
        """Take note that none of them waits any more; who looks may come much later."""
        self._out_at = now

    def look(self, now: float, waiting: int) -> None:
        """Take note of how many of them still wait."""
        if self._fixed is not None:
            return
        age = now - self._taken_at
        lasted = self._out_at - self._taken_at if self._out_at >= self._taken_at else age
        if waiting == 0 and self._full and lasted < self._soon:
            self.ahead, self._full = max(min(self.ahead * GROWTH, MOST), self._least), False
        elif waiting and age > LATE:
            self.ahead, self._taken_at = max(self.ahead // 2, self._least), now
