"""Fresh items: items that were never reserved, recognised by the bytes of their envelopes.

In the form that mongoq writes, all fields except payload and headers are then known. To decode only these two takes a
third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from bson import ObjectId

from mongoq.model.encoding.codec import Encoding
from mongoq.model.envelope import ID, PRIORITY, REST, WHEN, Document, queue_field
from mongoq.model.item import id_key
from mongoq.model.process.clock import milliseconds
from mongoq.model.raw.raw_document import ID_END, ID_START, LENGTH

__all__ = ["RawEnvelope", "fresh", "is_fresh", "opened"]

PAYLOAD, HEADERS = b"payload\0", b"\x03headers\0"
BEFORE, END = REST[:-1], REST[-1:]
SIZED = {0x02: LENGTH, 0x03: 0, 0x04: 0, 0x05: LENGTH + 1}
"""Types that begin with a size: strings, documents, arrays, binaries; each with the bytes it takes beyond that size."""
FIXED = {0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
"""Types of fixed size, each with its bytes."""

_size = Struct("<i").unpack_from
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
    (document,) = encoding.opened([raw])
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


def opened(
    items: Sequence[RawEnvelope], queue: str, ids: Sequence[ObjectId], encoding: Encoding
) -> list[dict[str, Any]]:
    """Return the envelopes of fresh items, given their ids, without the fields that a claim of them sets.

    Raises:
        InvalidBSON: one of them cannot be decoded.
    """
    rests = encoding.opened([item.rest for item in items])
    return [
        {"_id": id, "q": queue, "priority": item.priority, **rest}
        for id, item, rest in zip(ids, items, rests, strict=True)
    ]
