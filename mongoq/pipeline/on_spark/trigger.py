"""Trigger of a run: it works always, or in rounds that begin at fixed times and go on until nothing is ready."""

from __future__ import annotations

import time
from datetime import timedelta

__all__ = ["Trigger"]


class Trigger:
    """Decides when it is time to work.

    Args:
        every: interval between the beginnings of two rounds; ``None`` for no rounds.
    """

    def __init__(self, every: timedelta | None) -> None:
        self._every = None if every is None else every.total_seconds()
        self._began = self._opens = time.monotonic()
        self._is_under_way = False

    def is_open(self) -> bool:
        """Return whether to work now; this begins a round if one is due."""
        self._is_under_way = self._is_under_way or time.monotonic() >= self._opens
        return self._is_under_way

    def close(self) -> None:
        """Record that nothing is ready: a round under way has ended."""
        if self._every is not None and self._is_under_way:
            passed = (time.monotonic() - self._began) // self._every + 1
            self._opens, self._is_under_way = self._began + passed * self._every, False
