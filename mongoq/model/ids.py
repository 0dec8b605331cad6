"""Ids of items: as the driver makes them, each takes longer than the rest of its envelope."""

from __future__ import annotations

import os
import time
from itertools import count, islice

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
        self._numbers = count(int.from_bytes(os.urandom(8)) // 2)  # which threads may share

    def one(self) -> ObjectId:
        """Return the id of an item."""
        return ObjectId(_seconds() + next(self._numbers).to_bytes(8))

    def many(self, number: int) -> list[bytes]:
        """Return so many, as their 12 bytes."""
        seconds = _seconds()
        return [seconds + place.to_bytes(8) for place in islice(self._numbers, number)]


def _seconds() -> bytes:
    return (int(time.time()) & 0xFFFFFFFF).to_bytes(4)


_ids = Ids()
"""All items of a process have their ids from here: those that are due at the same moment are claimed in their order."""
os.register_at_fork(after_in_child=_ids.begin)

new_id, new_ids = _ids.one, _ids.many
