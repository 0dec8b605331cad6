"""Ids of new items: ObjectIds with a counter of mongoq's own, in ascending order."""

from __future__ import annotations

import os
import threading
import time
from operator import attrgetter

from bson import ObjectId

bytes_of = attrgetter("binary")
"""Returns the 12 bytes of an ObjectId."""

NUMBERS = 2**24
"""Values of the counter in the last three bytes of an ObjectId."""
SECONDS = 0xFFFFFFFF
"""Mask of the seconds in the first four bytes."""


class _Counter:
    """The random bytes of this process, and the number of its next id."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with other random bytes, in a forked child: it would make the ids of its parent."""
        self._lock = threading.Lock()
        self._process = os.urandom(5)
        self._next = int.from_bytes(os.urandom(3))

    def make(self, number: int) -> list[bytes]:
        with self._lock:
            # Begin again at 0 when the numbers run out; the earlier ids with these numbers are seconds older.
            first = self._next if self._next + number <= NUMBERS else 0
            self._next = (first + number) % NUMBERS
        head = (int(time.time()) & SECONDS).to_bytes(4) + self._process
        return [head + place.to_bytes(3) for place in range(first, first + number)]


_counter = _Counter()
os.register_at_fork(after_in_child=_counter.reset)


def new_ids(number: int) -> list[bytes]:
    """Return ``number`` new ObjectIds as their 12 bytes, in ascending order.

    They sort after earlier ids of this process, except once in 16 million, when the counter begins again. So of items
    that are due at the same moment, the one pushed first is claimed first.
    """
    # 1,000 calls of ``ObjectId()`` take 3.4 ms, which is a tenth of a ``push_many`` of 1,000 items; this takes 0.2 ms.
    return _counter.make(number)


def new_id() -> ObjectId:
    """Return a new ObjectId, as ``new_ids`` makes them."""
    return ObjectId(_counter.make(1)[0])
