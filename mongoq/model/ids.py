"""Ids made many at a time: as the driver makes them, each takes longer than the rest of its envelope."""

from __future__ import annotations

import os
import time

__all__ = ["Ids"]

NUMBERS = 2**24
"""What the last three bytes of an ObjectId can count to."""


class Ids:
    """Makes ObjectIds for one producer: seconds, five random bytes of its own, and a number that counts them.

    They sort in the order in which they are made. A forked child must not go on with it.
    """

    def __init__(self) -> None:
        self._own = os.urandom(5)
        self._next = 0

    def made(self, number: int) -> list[bytes]:
        """Return so many, as their 12 bytes; less than 16 million."""
        if self._next + number > NUMBERS:
            self._next = 0  # those of the same numbers are seconds older
        first, self._next = self._next, self._next + number
        head = (int(time.time()) & 0xFFFFFFFF).to_bytes(4) + self._own
        return [head + number.to_bytes(3) for number in range(first, self._next)]
