"""Counts of the items that a consumer has settled, by result, with the times of the first and the last."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

__all__ = ["SettledCounts"]


class SettledCounts:
    """Counts settled items.

    Attributes:
        endings: number of items by result, such as ``done`` or ``dead``.
        first: monotonic time of the first count; ``None`` before.
        last: monotonic time of the latest count; ``None`` before.
    """

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()
        self.first: float | None = None
        self.last: float | None = None

    def add(self, endings: Iterable[str]) -> None:
        """Count the results of some items."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.endings.update(endings)
