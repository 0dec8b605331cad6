"""Documents as the bytes that the server sent, split without decoding.

Fresh items: items that were never reserved, recognised by the bytes of their envelopes. In the form that mongoq
writes, all fields except payload and headers are then known. To decode only these two takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from struct import Struct
from typing import Any, NamedTuple

import bson
from bson import ObjectId
from bson.errors import BSONError

from mongoq.model.clock import milliseconds
from mongoq.model.encoding.codec import Encoding
from mongoq.model.encoding.ids import bytes_of
from mongoq.model.envelope import ID, PRIORITY, REST, WHEN, Document, queue_field
from mongoq.model.item import Item, id_key

__all__ = [
    "Cut",
    "Cutter",
    "RawBatch",
    "RawEnvelope",
    "all_held",
    "fields_of",
    "first_batch",
    "fresh",
    "ids_of",
    "is_fresh",
    "one_due",
    "open_fresh",
    "remembers",
]

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


PAYLOAD, HEADERS = b"payload\0", b"\x03headers\0"
BEFORE, END = REST[:-1], REST[-1:]
SIZED = {0x02: LENGTH, 0x03: 0, 0x04: 0, 0x05: LENGTH + 1}
"""Types that begin with a size: strings, documents, arrays, binaries; each with the bytes it takes beyond that size."""
FIXED = {0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
"""Types of fixed size, each with its bytes."""

_sized = Struct("<i").pack
_middle = Struct(f"<{len(WHEN)}sq{len(PRIORITY)}si{len(BEFORE)}s")
_middle_of, MIDDLE = _middle.unpack_from, _middle.size


class RawEnvelope(NamedTuple):
    """An item that was never reserved, and that no push can replace.

    Attributes:
        id: bytes of its id.
        priority: its priority.
        at: time from which it is eligible, in milliseconds since 1970.
        rest: the other fields of its envelope, or the whole envelope, in BSON.
    """

    id: bytes
    priority: int
    at: int
    rest: bytes


# A call of the class is slower, by more than all other steps here take.
_made = partial(tuple.__new__, RawEnvelope)


def fresh(envelopes: Sequence[bytes], queue: str, encoding: Encoding) -> list[RawEnvelope]:
    """Return the items in the envelopes of a queue, up to the first that is not fresh.

    An envelope in an unusual form is decoded for the check.

    Raises:
        InvalidBSON: it cannot be decoded.
    """
    found: list[RawEnvelope] = []
    head = queue_field(queue)
    for raw in envelopes:
        # The fast way first: it recognises the form in which most items are pushed.
        one = _by_its_bytes(raw, head) or _by_its_fields(raw, encoding)
        if one is None:
            break
        found.append(one)
    return found


def _by_its_bytes(raw: bytes, head: bytes) -> RawEnvelope | None:
    """Recognise an item as ``new_envelope`` makes it, with an ObjectId, and perhaps with headers."""
    start = ID_END + len(head)
    if not (raw.startswith(ID, LENGTH) and raw.startswith(head, ID_END) and raw.startswith(PAYLOAD, start + 1)):
        return None
    end = _end(raw, raw[start], start + 1 + len(PAYLOAD))
    behind = end + MIDDLE
    # The bytes end early: this is not the expected form.
    if behind >= len(raw):
        return None
    when, at, priority, number, before = _middle_of(raw, end)
    if when != WHEN or priority != PRIORITY or before != BEFORE or at < 0:
        return None
    last = behind
    if raw.startswith(HEADERS, behind):
        last = _end(raw, HEADERS[0], behind + len(HEADERS))
    if last + len(END) != len(raw):
        return None
    rest = raw[start:end] + raw[behind:]
    return _made((raw[ID_START:ID_END], number, at, _sized(LENGTH + len(rest)) + rest))


def _end(raw: bytes, kind: int, start: int) -> int:
    """Return the end of a value that starts there; for a type that is unknown here, return the end of the document."""
    if kind in SIZED:
        return start + _size(raw, start)[0] + SIZED[kind] if start + LENGTH <= len(raw) else len(raw)
    return start + FIXED[kind] if kind in FIXED else len(raw)


def _by_its_fields(raw: bytes, encoding: Encoding) -> RawEnvelope | None:
    (document,) = encoding.decode_many([raw])
    if not is_fresh(document):
        return None
    return RawEnvelope(id_key(document["_id"]), document["priority"], milliseconds(document["when"]), raw)


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


def open_fresh(
    items: Sequence[RawEnvelope], queue: str, ids: Sequence[ObjectId], encoding: Encoding
) -> list[dict[str, Any]]:
    """Return the envelopes of fresh items, given their ids, without the fields that a claim of them sets.

    Raises:
        InvalidBSON: one of them cannot be decoded.
    """
    rests = encoding.decode_many([item.rest for item in items])
    return [
        {"_id": id, "q": queue, "priority": item.priority, **rest}
        for id, item, rest in zip(ids, items, rests, strict=True)
    ]


Items = Sequence[Item[Any]]

ITEMS = {Item}
OBJECT_IDS = {ObjectId}
DATES = {datetime}

_envelope = attrgetter("_document")
_namespace = attrgetter("_namespace")
_due = attrgetter("_due")
_fields = [itemgetter(name) for name in ("_id", "q", "token", "when", "reserved")]


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Common facts of many items that are all reserved from one queue.

    Attributes:
        together: True when one token holds all of them.
        until: end of the first of their leases.
        ids: ids of the items.
    """

    together: bool
    until: datetime
    ids: list[ObjectId]


def all_held(items: Sequence[Any], namespace: str, queue: str) -> RawBatch | None:
    """Check that all are different items, reserved from that queue; ``None`` when each needs a check of its own."""
    if not (items and ITEMS.issuperset(map(type, items)) and {namespace}.issuperset(map(_namespace, items))):
        return None
    envelopes = list(map(_envelope, items))
    try:
        ids, queues, tokens, ends, reserved = [list(map(field, envelopes)) for field in _fields]
    except KeyError:
        return None
    if not ({queue}.issuperset(queues) and all(reserved) and OBJECT_IDS.issuperset(map(type, chain(ids, tokens)))):
        return None
    if not DATES.issuperset(map(type, ends)):
        return None
    # An item is there twice.
    if len(set(map(bytes_of, ids))) < len(items):
        return None
    return RawBatch(len(set(map(bytes_of, tokens))) == 1, min(ends), ids)


def ids_of(items: Items) -> list[Any]:
    """Return the ids of items."""
    return [found["_id"] for found in map(_envelope, items)]


def one_due(items: Items) -> bool:
    """Return whether all items were due at the same known time."""
    first = items[0].due
    return first is not None and all(first == due for due in map(_due, items))


def remembers(items: Items) -> bool:
    """Return whether the id of any item is remembered after it is settled."""
    return any("once" in found for found in map(_envelope, items))
