"""Ids of items: as the driver makes them, each takes longer than the rest of its envelope."""

from __future__ import annotations

import os
import time
from threading import Lock

from bson import ObjectId

__all__ = ["new_id", "new_ids"]


class Ids:
    """Makes ObjectIds: the seconds, and a number of eight bytes that begins at random and counts them.

    They sort in the order in which they are made, as long as the clock does not go back.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew; what a forked child must do, who would make the same ids as its parent."""
        self._lock = Lock()
        self._next = int.from_bytes(os.urandom(8)) // 2

    def made(self, number: int) -> list[bytes]:
        """Return so many, as their 12 bytes."""
        with self._lock:
            first, self._next = self._next, self._next + number
            seconds = (int(time.time()) & 0xFFFFFFFF).to_bytes(4)
        return [seconds + place.to_bytes(8) for place in range(first, first + number)]


_ids = Ids()
"""All items of a process have their ids from here: those that are due at the same moment are claimed in their order."""
os.register_at_fork(after_in_child=_ids.begin)

new_ids = _ids.made


def new_id() -> ObjectId:
    """Return the id of an item."""
    return ObjectId(new_ids(1)[0])
