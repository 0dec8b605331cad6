"""How many items to hold ready: as many as are worked off in a moment, so that nobody waits and little is hoarded."""

from __future__ import annotations

__all__ = ["Pace"]

MOST = 1_000
"""Items that wait for a run at most, unless the consumer says otherwise."""
SOON = 0.2
"""Seconds in which a batch was worked off that should have been larger."""
LATE = 1.0
"""Seconds after which items still wait of a batch that should have been smaller."""
GROWTH = 4


class Pace:
    """Finds how many items should wait for a run, from how long they do.

    Attributes:
        ahead: that number.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self.ahead = 1 if fixed is None else fixed
        self._taken_at = float("-inf")
        self._full = False

    def took(self, now: float, *, full: bool) -> None:
        """Take note that items were claimed; ``full`` says that there were as many as were asked for."""
        self._taken_at, self._full = now, full

    def look(self, now: float, waiting: int) -> None:
        """Take note of how many of them still wait."""
        if self._fixed is not None:
            return
        age = now - self._taken_at
        if waiting == 0 and self._full and age < SOON:
            self.ahead, self._full = min(self.ahead * GROWTH, MOST), False
        elif waiting and age > LATE:
            self.ahead, self._taken_at = max(self.ahead // 2, 1), now
