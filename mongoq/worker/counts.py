"""What a consumer has settled so far: how many items, by what became of them, and from when to when."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

__all__ = ["SettledCounts"]


class SettledCounts:
    """Counts what was settled.

    Attributes:
        endings: items by what became of them.
        first: when the first ones were counted, on the monotonic clock; ``None`` before.
        last: when the last ones were.
    """

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()
        self.first: float | None = None
        self.last: float | None = None

    def add(self, endings: Iterable[str]) -> None:
        """Count some."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.endings.update(endings)
