"""Ids, made and looked at in less time than by the driver's own means, which with many takes longer than the rest."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from operator import attrgetter

from bson import ObjectId

__all__ = ["bytes_of", "new_id", "new_ids"]

bytes_of = attrgetter("_ObjectId__id" if hasattr(ObjectId, "_ObjectId__id") else "binary")
"""Returns the 12 bytes of an ObjectId; its property calls Python for each."""

NUMBERS = 2**24
"""What the last three bytes of an ObjectId can count to."""
SECONDS = 0xFFFFFFFF
"""What its first four can."""


@cache
def _process() -> bytes:
    """Return the five bytes of this process; the driver asks the system each time whether it is another one."""
    return ObjectId._random()


os.register_at_fork(after_in_child=_process.cache_clear)
os.register_at_fork(after_in_child=_process)  # while it has one thread: for a moment others would get the parent's


def new_id() -> ObjectId:
    """Return a new ObjectId, as ``new_ids`` makes them."""
    try:
        with ObjectId._inc_lock:
            place = ObjectId._inc
            ObjectId._inc = (place + 1) % NUMBERS
        return ObjectId((int(time.time()) & SECONDS).to_bytes(4) + _process() + place.to_bytes(3))
    except AttributeError:  # another version of the driver may count in another way
        return ObjectId()


def new_ids(number: int) -> list[bytes]:
    """Return so many new ObjectIds as their 12 bytes, in ascending order.

    They are such as ``ObjectId()`` makes, and sort behind the ones that this process has made before, but for once in
    16 million, when the driver's counter begins again: of items that are due at the same moment, the one that was
    pushed first is claimed first.
    """
    with suppress(AttributeError):  # another version of the driver may count in another way
        return _counted(number)
    return sorted(ObjectId().binary for _ in range(number))


def _counted(number: int) -> list[bytes]:
    with ObjectId._inc_lock:
        first = ObjectId._inc
        if first + number > NUMBERS:
            first = 0  # those of the same numbers are seconds older
        ObjectId._inc = (first + number) % NUMBERS
    head = (int(time.time()) & SECONDS).to_bytes(4) + _process()
    return [head + place.to_bytes(3) for place in range(first, first + number)]
