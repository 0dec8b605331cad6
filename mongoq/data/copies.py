"""Copies: the envelopes that a push to a topic and a replay write, and the result of a replay."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final

import bson
from bson import DatetimeMS, ObjectId
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from mongoq.data.clock import EPOCH, MILLISECOND, milliseconds
from mongoq.data.encoding.codec import Encoding, codec_options
from mongoq.data.envelope import ID_PREFIX, queue_field
from mongoq.data.item import Document

PUBLISHED = "published"
"""Reason in the ``origin`` of a copy."""


def is_publication(origin: Document) -> bool:
    """Return whether an origin is that of a push to a topic; a burial with the same reason counts an attempt."""
    return origin.get("reason") == PUBLISHED and origin.get("attempts") == 0


def make_bound_copy(envelope: Document, queue: str, at: datetime) -> dict[str, Any]:
    """Return the copy for a bound queue of an envelope that was pushed to a topic; its id is always the same."""
    id = envelope["_id"]
    origin = {"queue": envelope["q"], "id": id, "reason": PUBLISHED, "attempts": 0, "key": None, "at": at}
    # Seconds and counter of the id stay: within a queue the copies of one producer sort in the order of its pushes.
    seconds, producer, counter = id.binary[:4], id.binary[4:9], id.binary[9:]
    copy = ObjectId(seconds + sha256(producer + queue.encode()).digest()[:5] + counter)
    return {**envelope, "_id": copy, "q": queue, "origin": origin}


COPY_MARK = "replayed"
"""Field of a copy with the name of the queue that it was copied from; it survives moves and burials."""
ANY_ID = codec_options()
"""Options for ids of any type, which other programs may have used."""


class CopyIds:
    """Makes the ids of copies: always the same for one run of one item, a queue, a label, and a hop if given.

    An id begins with the time at which the original was processed (milliseconds, of the last 49 days) and the end of
    the original's counter, so that copies mostly sort as their originals did. The rest is a hash of all these facts.
    """

    def __init__(self, to: str, label: str, hop: str | None = None) -> None:
        hopped = "" if hop is None else f" {hop}"
        self._told = f"{hopped}\0{to}\0{label}".encode(errors="surrogatepass")

    def id(self, original: bytes, processed: int) -> bytes:
        """Return the 12 bytes of an id, given the bytes of the original's id, and its milliseconds."""
        digest = sha256(b"%b\0%d%b" % (hexlify(original), processed, self._told)).digest()
        return (processed % 2**32).to_bytes(4) + original[-2:] + digest[:6]

    def of(self, original: Document) -> ObjectId:
        """Return the id of the copy of a document."""
        id = original["_id"]
        raw = id.binary if isinstance(id, ObjectId) else bson.encode({"": id}, codec_options=ANY_ID)
        return ObjectId(self.id(raw, _milliseconds(original["processed"])))


def _milliseconds(date: Any) -> int:
    if type(date) is datetime and date.tzinfo is UTC:
        return milliseconds(date)
    # This way takes longer, but it accepts all dates.
    return int(date if isinstance(date, DatetimeMS) else DatetimeMS(date))


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


class CopyStencil:
    """Makes copies that differ from one envelope only in ids, documents and times; all other parts are encoded once."""

    def __init__(self, encoding: Encoding, envelope: dict[str, Any]) -> None:
        id, original, payload = ObjectId(), ObjectId(), encoding.raw({"": ObjectId()})
        marked = {**envelope, "_id": id, "payload": payload, "when": EPOCH + MILLISECOND}
        rest = bytes(encoding.raw({**marked, "origin": {**envelope["origin"], "id": original}}).raw)
        self._rest = len(rest) - len(payload.raw)
        rest, parts = rest[4:], []
        # In the order in which they are in the envelope.
        for mark in (id.binary, payload.raw, _bytes(marked["when"]), original.binary):
            part, _, rest = rest.partition(mark)
            parts.append(part)
        self._parts = (*parts, rest)
        self._when: datetime | None = None
        self._when_bytes = b""

    def copy(self, id: bytes, payload: bytes, original: bytes, when: datetime) -> RawBSONDocument:
        """Return a copy, given its id, its payload in BSON, the id of its original, and the time when it is due."""
        # The bytes are kept, because copies share their times.
        if when is not self._when:
            self._when, self._when_bytes = when, _bytes(when)
        size = (self._rest + len(payload)).to_bytes(4, "little")
        head, to_payload, to_when, to_original, tail = self._parts
        parts = (size, head, id, to_payload, payload, to_when, self._when_bytes, to_original, original, tail)
        # The document is only sent, so default codec options are enough: it is never decoded here.
        return RawBSONDocument(b"".join(parts))


def _bytes(when: datetime) -> bytes:
    return _milliseconds(when).to_bytes(8, "little", signed=True)


class ReplayOrder:
    """Times of copies that keep the order of claims of their originals, for any ids of the copies.

    Claims go by ``(priority, when, _id)``. Copies share their ``when`` as long as their ids ascend; where an id does
    not ascend, ``when`` goes on by a millisecond.
    """

    def __init__(self) -> None:
        self._last: tuple[datetime, bytes] | None = None

    def places(self, ids: Sequence[bytes], end: datetime) -> list[datetime]:
        """Return a ``when`` for each of the next copies; the last is ``end``, or later if earlier copies need it."""
        if not ids:
            return []
        steps = list(accumulate((key <= before for before, key in pairwise(ids)), initial=0))
        start = end - steps[-1] * MILLISECOND
        if self._last is not None:
            when, id = self._last
            start = max(start, when + MILLISECOND * int(ids[0] <= id))
        times = [start + step * MILLISECOND for step in range(steps[-1] + 1)]
        places = [times[step] for step in steps]
        self._last = places[-1], ids[-1]
        return places


MAX_REFUSALS = 100
"""Refusals in one result, at most."""


class _Skip:
    """Type of ``SKIP``, which ``transform`` of a replay returns for an item to leave out."""

    def __repr__(self) -> str:
        """Return the name that messages show."""
        return "SKIP"


SKIP: Final[Any] = _Skip()
"""Result of ``transform`` for an item that is not to be replayed."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay, so far or in all: ``found == pushed + already + skipped + refused``.

    A replay of dead letters moves the letters themselves: ``pushed`` are the letters that went back, and ``skipped``
    the letters that a caller holds; there is no ``already`` and no ``position``.

    Attributes:
        found: processed items that were selected.
        pushed: copies that were added; in a dry run, copies that would be.
        already: copies that exist, or are remembered, from an earlier run of this replay.
        skipped: items for which ``transform`` returned ``SKIP``.
        refused: items with a payload that does not fit the target, or cannot be stored, and documents of other programs
            that cannot be decoded.
        refusals: id and reason of the first 100 refused items.
        missing: ids of ``ids=`` that are not in the history of the queue, or not among the dead letters.
        position: ``processed`` and id of the last item that was done; ``after=position`` goes on after it.
    """

    found: int = 0
    pushed: int = 0
    already: int = 0
    skipped: int = 0
    refused: int = 0
    refusals: tuple[tuple[ObjectId, str], ...] = ()
    missing: tuple[ObjectId, ...] = ()
    position: tuple[datetime, Any] | None = None

    def __add__(self, more: Replayed) -> Replayed:
        """Return the sum of this result and a later one."""
        return Replayed(
            found=self.found + more.found,
            pushed=self.pushed + more.pushed,
            already=self.already + more.already,
            skipped=self.skipped + more.skipped,
            refused=self.refused + more.refused,
            refusals=(*self.refusals, *more.refusals)[:MAX_REFUSALS],
            missing=(*self.missing, *more.missing),
            position=more.position or self.position,
        )
