"""Ids made and looked at many at a time, which with the driver's own means takes longer than all the rest."""

from __future__ import annotations

import time
from contextlib import suppress
from operator import attrgetter

from bson import ObjectId

__all__ = ["bytes_of", "new_ids"]

bytes_of = attrgetter("_ObjectId__id" if hasattr(ObjectId, "_ObjectId__id") else "binary")
"""Returns the 12 bytes of an ObjectId; its property calls Python for each."""

NUMBERS = 2**24
"""What the last three bytes of an ObjectId can count to."""


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
    head = (int(time.time()) & 0xFFFFFFFF).to_bytes(4) + ObjectId._random()
    return [head + place.to_bytes(3) for place in range(first, first + number)]
