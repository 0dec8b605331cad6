"""Rendezvous: the state of a join for one value, by which items of several queues wait for their partners.

Each queue has a line: places are numbered as items come, and taken in that order, so no process searches the waiting
items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import bson
from bson import Decimal128, ObjectId

from mongoq.data.encoding.codec import PLAIN_OPTIONS


def qualify(pipeline: str, part: str, by: str) -> str:
    """Return the name of a pipeline and a part; in the pipeline's name the separator and ``%`` are escaped."""
    escaped = pipeline.replace("%", "%25").replace(by, f"%{ord(by):X}")
    return f"{escaped}{by}{part}"


FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""End of the wait in a join without a timeout."""
VALUE_BYTES = 1024
"""Bytes of a value as BSON, at most."""
MAX_PLACE_DIGITS = 18
"""Digits of the number of a place, at most."""
Document = Mapping[str, Any]


class Unjoinable(ValueError):
    """Raised for a value that cannot be compared with other values."""


def value_key(value: Any) -> str:
    """Return the key of a value: equal for values that are equal to the server, for example 1 and 1.0.

    Raises:
        Unjoinable: it is missing or null, a document or a list, not a number, or takes more than 1 KiB.
    """
    if value is None:
        raise Unjoinable("is missing, or null")
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        # In one form that is the same for all equal numbers.
        exact = Decimal(value)
        if not exact.is_finite():
            raise Unjoinable(f"is {value}, which is no number to look for")
        if not -VALUE_BYTES < exact.adjusted() < VALUE_BYTES:
            raise Unjoinable("is a number of very many digits")
        text = f"{exact:f}" if exact else "0"
        document: dict[str, Any] = {"number": text.rstrip("0").rstrip(".") if "." in text else text}
    elif isinstance(value, bool | str | bytes | ObjectId | UUID | datetime):
        document = {"": value}
    else:
        raise Unjoinable(f"is of type {type(value).__name__}; join by a text, a number, a date, an id or bytes")
    raw = bson.encode(document, codec_options=PLAIN_OPTIONS)
    if len(raw) > VALUE_BYTES:
        raise Unjoinable(f"takes {len(raw):,} bytes, and {VALUE_BYTES:,} is the limit")
    # A hash, because a value may hold any characters and 1 KiB, and the key is part of an ``_id`` and of an item's key.
    return hashlib.sha256(raw).hexdigest()[:40]


def rendezvous_id(join: str, key: str) -> str:
    """Return the ``_id`` of the control document of a join and a value."""
    return f"join:{join}:{key}"


@dataclass(frozen=True, slots=True)
class Place:
    """The place where an item waits.

    Attributes:
        key: key of its value.
        queue: queue that it arrived by; the place is in the line of this queue.
        number: number of the place in that line.
    """

    key: str
    queue: str
    number: int

    @property
    def text(self) -> str:
        """Key of the waiting item."""
        return f"{self.key}:{_tag(self.queue)}:{self.number}"

    @classmethod
    def of(cls, text: Any, queues: Iterable[str]) -> Place | None:
        """Return the place with this text in the line of one of these queues.

        ``None`` for other texts: other programs may have written anything, and a join may have had other queues.
        """
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal() and len(parts[2]) <= MAX_PLACE_DIGITS):
            return None
        queue = next((queue for queue in queues if _tag(queue) == parts[1]), None)
        return None if queue is None else cls(parts[0], queue, int(parts[2]))


@cache
def _tag(queue: str) -> str:
    return hashlib.sha256(queue.encode()).hexdigest()[:8]


@dataclass(slots=True)
class _Line:
    """The line of one queue. All numbers only grow, except ``missed``, and ``come`` by ``unpark``.

    Attributes:
        come: places given out so far.
        taken: places that are past, from the first one on.
        missed: partners that were given up before their items of this queue arrived; falls with each late arrival.
        stored: ``come`` as the document has it.
    """

    come: int = 0
    taken: int = 0
    missed: int = 0
    stored: int = 0


class JoinState:
    """The state of one value: for each queue, the places given out, the places past, and the partners given up.

    The stored state of queues that the join no longer has stays as it is.

    Attributes:
        key: key of the value.
        stored: True when a document exists.
    """

    def __init__(self, key: str, queues: Iterable[str], document: Document | None) -> None:
        self.key = key
        self.stored = document is not None
        entries = document["lines"] if document is not None else ()
        self._lines = {
            entry["queue"]: _Line(entry["come"], entry["taken"], entry["missed"], stored=entry["come"])
            for entry in entries
        }
        self._queues = tuple(queues)
        for queue in self._queues:
            self._lines.setdefault(queue, _Line())

    def first(self, queue: str, empty_places: Set[str]) -> Place | None:
        """Return the first place of a line with a waiting item; ``empty_places`` are known to be empty."""
        line = self._lines[queue]
        for number in range(line.taken, line.come):
            place = Place(self.key, queue, number)
            if not empty_places or place.text not in empty_places:
                return place
        return None

    def following(self, place: Place, most: int) -> Iterator[Place]:
        """Yield the stored places after one, ``most`` at most."""
        for number in range(place.number + 1, min(place.number + 1 + most, self._lines[place.queue].stored)):
            yield Place(self.key, place.queue, number)

    def park(self, queue: str) -> Place:
        """Return the next place of a line."""
        line = self._lines[queue]
        line.come += 1
        return Place(self.key, queue, line.come - 1)

    def unpark(self, place: Place) -> bool:
        """Give back the last place of a line; return whether it was the last one."""
        line = self._lines[place.queue]
        if place.number != line.come - 1:
            return False
        line.come -= 1
        return True

    def take(self, place: Place) -> None:
        """Mark a place, and all places before it, as past."""
        line = self._lines[place.queue]
        line.taken = max(line.taken, place.number + 1)

    def give_up(self, place: Place, *, remembered: bool) -> None:
        """Let an item leave its place without partners.

        With ``remembered`` its partners will count as late, unless it was itself a late partner of an earlier item.
        """
        line = self._lines[place.queue]
        if line.taken == place.number:
            line.taken += 1
        if remembered and not self.take_late_mark(place.queue):
            for other in self._others(place.queue):
                other.missed += 1

    def record_return(self, queue: str) -> None:
        """Record that a given-up item looks for its partners again: they will not be late."""
        for other in self._others(queue):
            other.missed = max(other.missed - 1, 0)

    def _others(self, queue: str) -> Iterator[_Line]:
        return (self._lines[other] for other in self._queues if other != queue)

    def take_late_mark(self, queue: str) -> bool:
        """Return whether a partner of an arrival by this queue was given up; each given-up partner counts once."""
        line = self._lines[queue]
        if not line.missed:
            return False
        line.missed -= 1
        return True

    @property
    def empty(self) -> bool:
        """True when no item waits, as far as the state shows."""
        return all(line.taken >= line.come for line in self._lines.values())

    @property
    def done(self) -> bool:
        """True when there is nothing to remember."""
        return self.empty and not any(line.missed for line in self._lines.values())

    def fields(self) -> dict[str, Any]:
        """Return the fields to store."""
        lines = self._lines.items()
        return {"lines": [{"queue": q, "come": n.come, "taken": n.taken, "missed": n.missed} for q, n in lines]}
