"""How many items to hold by their bytes: their sizes are known only once they are claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.model.item import Item

__all__ = ["ByteLimit"]


class ByteLimit:
    """Bounds the bytes of the items that a consumer holds, by the sizes of those that it has claimed lately."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._expected = 0

    def claim_size(self, wanted: int, held: int) -> int:
        """Return how many of the items wanted to claim, given the bytes of those that are held; where none is, one."""
        if self._limit is None or not self._expected:
            return wanted
        return min(wanted, max((self._limit - held) // self._expected, 0 if held else 1))

    def count_fitting(self, items: Sequence[Item[Any]], held: int) -> int:
        """Return how many of the items just claimed to keep beside so many bytes, and remember how large they are.

        A few large items among many small ones are remembered for some claims.
        """
        sizes = [item._size for item in items]
        self._expected = max(max(sizes, default=0), self._expected // 2)
        if self._limit is None or held + sum(sizes) <= self._limit:
            return len(items)
        number, total = 0, held
        while number < len(sizes) and (total + sizes[number] <= self._limit or total == 0):
            total += sizes[number]
            number += 1
        return number
