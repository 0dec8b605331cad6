"""Fresh items: those that nobody has had, told by the bytes of their envelopes, as mongoq writes them.

What is in them but for payload and headers is known then, and to decode these alone takes a third of the time.
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
"""Strings, documents, arrays and binaries begin with a size; so many bytes more than that they take."""
FIXED = {0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
"""What others take."""

_size = Struct("<i").unpack_from
_sized = Struct("<i").pack
_middle = Struct(f"<{len(WHEN)}sq{len(PRIORITY)}si{len(BEFORE)}s")
_middle_of, MIDDLE = _middle.unpack_from, _middle.size


class RawEnvelope(NamedTuple):
    """An item that nobody has had, and nobody can replace.

    Attributes:
        id: the bytes of its id.
        priority: its priority.
        at: from when it is eligible, in milliseconds since 1970.
        rest: what else is in its envelope, or all of it, in BSON.
    """

    id: bytes
    priority: int
    at: int
    rest: bytes


_made = partial(tuple.__new__, RawEnvelope)  # the class is slower by more than all else takes here


def fresh(envelopes: Sequence[bytes], queue: str, encoding: Encoding) -> list[RawEnvelope]:
    """Return the items in the envelopes of a queue, up to the first that is not fresh.

    One in another form than that in which most are pushed is decoded, to find out.

    Raises:
        InvalidBSON: nobody can decode it.
    """
    found: list[RawEnvelope] = []
    head = queue_field(queue)
    for raw in envelopes:
        one = _by_its_bytes(raw, head) or _by_its_fields(raw, encoding)
        if one is None:
            break
        found.append(one)
    return found


def _by_its_bytes(raw: bytes, head: bytes) -> RawEnvelope | None:
    """Recognise an item as ``new_envelope`` makes it, with an id of ours, and perhaps with headers."""
    start = ID_END + len(head)
    if not (raw.startswith(ID, LENGTH) and raw.startswith(head, ID_END) and raw.startswith(PAYLOAD, start + 1)):
        return None
    end = _end(raw, raw[start], start + 1 + len(PAYLOAD))
    behind = end + MIDDLE
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
    """Return where a value that starts there ends, and no place at all where that is not told here."""
    if kind in SIZED:
        return start + _size(raw, start)[0] + SIZED[kind] if start + LENGTH <= len(raw) else len(raw)
    return start + FIXED[kind] if kind in FIXED else len(raw)


def _by_its_fields(raw: bytes, encoding: Encoding) -> RawEnvelope | None:
    (document,) = encoding.opened([raw])
    if not is_fresh(document):
        return None
    return RawEnvelope(id_key(document["_id"]), document["priority"], milliseconds(document["when"]), raw)


def is_fresh(document: Document) -> bool:
    """Say whether an envelope is that of an item that nobody has had, as mongoq writes it."""
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
    """Return the envelopes of fresh items, given their ids, but for what a claim of them sets.

    Raises:
        InvalidBSON: nobody can decode one of them.
    """
    rests = encoding.opened([item.rest for item in items])
    return [
        {"_id": id, "q": queue, "priority": item.priority, **rest}
        for id, item, rest in zip(ids, items, rests, strict=True)
    ]
