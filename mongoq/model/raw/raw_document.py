"""Documents as the bytes that the server sent, split without decoding."""

from __future__ import annotations

from struct import Struct

import bson
from bson.errors import BSONError

from mongoq.model.envelope import ID, queue_field

__all__ = ["Cut", "Cutter", "fields_of", "first_batch"]

Cut = tuple[bytes, bytes, bytes, int]
"""An id of 12 bytes, a payload in BSON, the bytes after it, and the time of processing in milliseconds."""

LENGTH = 4
ID_START = LENGTH + len(ID)
ID_END = ID_START + 12
PROCESSED = b"\x09processed\x00"
TAIL = len(PROCESSED) + 8 + 1
BATCH = b"\x04firstBatch\x00"
CURSOR_ID = b"\x12id\x00"

_size = Struct("<i").unpack_from
_long = Struct("<q").unpack_from


def first_batch(cursor: bytes) -> tuple[list[bytes], int] | None:
    """Return the documents in the cursor of a ``find`` reply, and the cursor's id; ``None`` for an unknown form."""
    if not cursor.startswith(BATCH, LENGTH):
        return None
    start = LENGTH + len(BATCH)
    end = start + _size(cursor, start)[0]
    if not cursor.startswith(CURSOR_ID, end):
        return None
    found, at = [], start + LENGTH
    while at < end - 1:
        # Each document follows its type, its index in digits, and a NUL.
        at = cursor.index(0, at) + 1
        behind = at + _size(cursor, at)[0]
        found.append(cursor[at:behind])
        at = behind
    return found, _long(cursor, end + len(CURSOR_ID))[0]


def fields_of(part: bytes) -> set[str]:
    """Return the names of the fields in a part of a document; empty if the part is no sequence of whole fields."""
    size = LENGTH + len(part) + 1
    try:
        return set(bson.decode(size.to_bytes(LENGTH, "little") + part + b"\0"))
    except BSONError:
        return set()


class Cutter:
    """Splits processed items of one queue, which have their fields in the order in which mongoq writes them.

    Two items with the same bytes after their payloads differ only in id, payload and time.
    """

    def __init__(self, queue: str) -> None:
        self._middle = queue_field(queue) + b"\x03payload\0"
        self._payload = ID_END + len(self._middle)

    def cut(self, document: bytes) -> Cut | None:
        """Return the parts of a document; ``None`` if it has another order, or if its payload is no document."""
        if not (document.startswith(ID, LENGTH) and document.startswith(self._middle, ID_END)):
            return None
        end = self._payload + _size(document, self._payload)[0]
        if not document.startswith(PROCESSED, -TAIL):
            return None
        processed = _long(document, len(document) - 9)[0]
        return document[ID_START:ID_END], document[self._payload : end], document[end:-TAIL], processed
