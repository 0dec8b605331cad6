"""Byte limit of a consumer. The sizes of items are known only after their claim, so the limit works by estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.model.item import Item

__all__ = ["ByteLimit"]


class ByteLimit:
    """Bounds the bytes of the items that a consumer holds, from the sizes of recently claimed items."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._expected = 0

    def claim_size(self, wanted: int, held: int) -> int:
        """Return how many of the ``wanted`` items to claim beside ``held`` bytes; at least one if nothing is held."""
        if self._limit is None or not self._expected:
            return wanted
        return min(wanted, max((self._limit - held) // self._expected, 0 if held else 1))

    def count_fitting(self, items: Sequence[Item[Any]], held: int) -> int:
        """Return how many of the claimed items to keep beside ``held`` bytes, and update the expected size."""
        sizes = [item._size for item in items]
        # Halved with each claim, not replaced: a few large items among many small ones stay remembered for some claims.
        self._expected = max(max(sizes, default=0), self._expected // 2)
        if self._limit is None or held + sum(sizes) <= self._limit:
            return len(items)
        number, total = 0, held
        while number < len(sizes) and (total + sizes[number] <= self._limit or total == 0):
            total += sizes[number]
            number += 1
        return number
