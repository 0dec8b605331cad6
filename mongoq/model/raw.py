"""Facts about many items at once: documents split as bytes, and what all envelopes of a batch have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from struct import Struct
from typing import Any

import bson
from bson import ObjectId
from bson.errors import BSONError

from mongoq.model.envelope import ID_PREFIX, Document, queue_field
from mongoq.model.item import Item

Cut = tuple[bytes, bytes, bytes, int]
"""An id of 12 bytes, a payload in BSON, the bytes after it, and the time of processing in milliseconds."""

LENGTH_BYTES = 4
ID_START = LENGTH_BYTES + len(ID_PREFIX)
ID_END = ID_START + 12
PROCESSED_PREFIX = b"\x09processed\x00"
PROCESSED_TAIL_BYTES = len(PROCESSED_PREFIX) + 8 + 1

_size = Struct("<i").unpack_from
_long = Struct("<q").unpack_from


def fields_of(part: bytes) -> set[str]:
    """Return the names of the fields in a part of a document; empty if the part is no sequence of whole fields."""
    size = LENGTH_BYTES + len(part) + 1
    try:
        return set(bson.decode(size.to_bytes(LENGTH_BYTES, "little") + part + b"\0"))
    except BSONError:
        return set()


class Cutter:
    """Splits processed items of one queue, which have their fields in the order in which mongoq writes them.

    Two items with the same bytes after their payloads differ only in id, payload and time. A replay takes 13 µs of the
    client's processor for each item, and 32 µs where items are decoded and copies encoded.
    """

    def __init__(self, queue: str) -> None:
        self._middle = queue_field(queue) + b"\x03payload\0"
        self._payload = ID_END + len(self._middle)

    def cut(self, document: bytes) -> Cut | None:
        """Return the parts of a document; ``None`` if it has another order, or if its payload is no document."""
        if not (document.startswith(ID_PREFIX, LENGTH_BYTES) and document.startswith(self._middle, ID_END)):
            return None
        end = self._payload + _size(document, self._payload)[0]
        if not document.startswith(PROCESSED_PREFIX, -PROCESSED_TAIL_BYTES):
            return None
        processed = _long(document, len(document) - 9)[0]
        return document[ID_START:ID_END], document[self._payload : end], document[end:-PROCESSED_TAIL_BYTES], processed


def is_fresh(document: Document) -> bool:
    """Return whether an envelope is that of an item that was never reserved, as mongoq writes it."""
    return (
        "by" not in document
        and "key" not in document
        and "once" not in document
        and type(document["_id"]) is ObjectId
        and type(document.get("attempts")) is int
        and document["attempts"] == 0
        and isinstance(document["when"], datetime)
        and type(document.get("priority")) is int
    )


Items = Sequence[Item[Any]]

_envelope = attrgetter("_document")


def ids_of(items: Items) -> list[Any]:
    """Return the ids of items."""
    return [document["_id"] for document in map(_envelope, items)]


def has_start_by(items: Items) -> bool:
    """Return whether any item has a date by which it must be started."""
    return any("start_by" in document for document in map(_envelope, items))
