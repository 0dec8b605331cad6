"""Rendezvous: where items of several queues wait for their partners, by the value that they have in common.

On each side places are counted on as items come, and taken in their order, so nobody looks through those who wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import bson
from bson import Decimal128, ObjectId
from bson.binary import UuidRepresentation

__all__ = ["JoinState", "Place", "Unjoinable", "rendezvous_id", "value_key"]

VALUE_BYTES = 1024
DIGITS = 18
"""Of the number of a place."""
Document = Mapping[str, Any]


class Unjoinable(ValueError):
    """A value that no other one can be looked for by."""


def value_key(value: Any) -> str:
    """Return what a value is known by: equal for values that are equal to the server, such as 1 and 1.0.

    Raises:
        Unjoinable: it is missing or null, a document or a list, not a number, or takes more than 1 KiB.
    """
    if value is None:
        raise Unjoinable("is missing, or null")
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        told = _number(value)
    elif isinstance(value, bool | str | bytes | ObjectId | UUID | datetime):
        told = {"": value}
    else:
        raise Unjoinable(f"is of type {type(value).__name__}; join by a text, a number, a date, an id or bytes")
    raw = bson.encode(told, codec_options=_OPTIONS)
    if len(raw) > VALUE_BYTES:
        raise Unjoinable(f"takes {len(raw):,} bytes, and {VALUE_BYTES:,} is the limit")
    return hashlib.sha256(raw).hexdigest()[:40]


_OPTIONS: bson.CodecOptions[Any] = bson.CodecOptions(uuid_representation=UuidRepresentation.STANDARD, tz_aware=True)


def _number(value: Any) -> dict[str, Any]:
    """Return a number in the one form that all that equal it have."""
    exact = Decimal(value)
    if not exact.is_finite():
        raise Unjoinable(f"is {value}, which is no number to look for")
    if not exact:
        return {"number": "0"}
    if not -VALUE_BYTES < exact.adjusted() < VALUE_BYTES:
        raise Unjoinable("is a number of very many digits")
    text = f"{exact:f}"
    return {"number": text.rstrip("0").rstrip(".") if "." in text else text}


def rendezvous_id(join: str, key: str) -> str:
    """Return the ``_id`` of the control document of a join and a value."""
    return f"join:{join}:{key}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item waits.

    Attributes:
        key: what its value is known by.
        queue: the queue that it came by, whose line it stands in.
        number: its place in that line.
    """

    key: str
    queue: str
    number: int

    @property
    def text(self) -> str:
        """The key of the waiting item."""
        return f"{self.key}:{_tag(self.queue)}:{self.number}"

    @classmethod
    def of(cls, text: Any, queues: Iterable[str]) -> Place | None:
        """Return the place with this text in the line of one of these queues.

        ``None`` when it is none: some other program may have written anything, and a join may have had other queues.
        """
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal() and len(parts[2]) <= DIGITS):
            return None
        queue = next((queue for queue in queues if _tag(queue) == parts[1]), None)
        return None if queue is None else cls(parts[0], queue, int(parts[2]))


@cache
def _tag(queue: str) -> str:
    return hashlib.sha256(queue.encode()).hexdigest()[:8]


@dataclass(slots=True)
class _Line:
    """The line of one queue.

    Attributes:
        come: how many have come to wait.
        taken: how many places are behind.
        missed: how many partners of who comes were given up.
        stored: how many had come when that was stored.
    """

    come: int = 0
    taken: int = 0
    missed: int = 0
    stored: int = 0

    def fields(self, queue: str) -> dict[str, Any]:
        """Return what is to be stored."""
        return {"queue": queue, "come": self.come, "taken": self.taken, "missed": self.missed}


class JoinState:
    """What is known of a value: by queue how many have come to wait, how many places are behind, who was given up.

    What is stored of queues that the join has no more stays as it is.

    Attributes:
        key: what the value is known by.
        stored: there is a document of it.
    """

    def __init__(self, key: str, queues: Iterable[str], document: Document | None) -> None:
        self.key = key
        self.stored = document is not None
        self._lines = _lines(document.get("lines")) if document is not None else {}
        self._queues = tuple(queues)
        for queue in self._queues:
            self._lines.setdefault(queue, _Line())

    def first(self, queue: str, gone: Set[str]) -> Place | None:
        """Return the first place of a line where somebody waits; ``gone`` are those where nobody is any more."""
        line = self._lines[queue]
        for number in range(line.taken, line.come):
            place = Place(self.key, queue, number)
            if not gone or place.text not in gone:
                return place
        return None

    def following(self, place: Place, most: int) -> Iterator[Place]:
        """Return the stored places behind one, so many at most."""
        for number in range(place.number + 1, min(place.number + 1 + most, self._lines[place.queue].stored)):
            yield Place(self.key, place.queue, number)

    def park(self, queue: str) -> Place:
        """Return the next place of a line."""
        line = self._lines[queue]
        line.come += 1
        return Place(self.key, queue, line.come - 1)

    def unpark(self, place: Place) -> bool:
        """Let who has the last place of a line not wait there after all; says whether it was the last one."""
        line = self._lines[place.queue]
        if place.number != line.come - 1:
            return False
        line.come -= 1
        return True

    def take(self, place: Place) -> None:
        """Let somebody leave, and all places before that one."""
        line = self._lines[place.queue]
        line.taken = max(line.taken, place.number + 1)

    def give_up(self, place: Place, *, remembered: bool) -> None:
        """Let somebody leave without partners.

        ``remembered`` says that these will be known to come late, unless it was the partner of one given up before.
        """
        line = self._lines[place.queue]
        if line.taken == place.number:
            line.taken += 1
        if remembered and not self.is_late(place.queue):
            for other in self._others(place.queue):
                other.missed += 1

    def come_back(self, queue: str) -> None:
        """Let somebody who was given up look for partners again: they will not come late."""
        for other in self._others(queue):
            other.missed = max(other.missed - 1, 0)

    def _others(self, queue: str) -> Iterator[_Line]:
        return (self._lines[other] for other in self._queues if other != queue)

    def is_late(self, queue: str) -> bool:
        """Say whether a partner of who comes by this queue was given up; that is told once for each."""
        line = self._lines[queue]
        if not line.missed:
            return False
        line.missed -= 1
        return True

    @property
    def empty(self) -> bool:
        """Whether nobody waits, as far as is known."""
        return all(line.taken >= line.come for line in self._lines.values())

    @property
    def done(self) -> bool:
        """Whether there is nothing to remember."""
        return self.empty and not any(line.missed for line in self._lines.values())

    def fields(self) -> dict[str, Any]:
        """Return what is to be stored."""
        return {"lines": [line.fields(queue) for queue, line in self._lines.items()]}


def _lines(stored: Any) -> dict[str, _Line]:
    """Return the stored lines; what some other program put there counts for nothing."""
    found = {}
    for line in stored if isinstance(stored, list) else []:
        if isinstance(line, Mapping) and isinstance(line.get("queue"), str):
            come = _count(line.get("come"))
            found[line["queue"]] = _Line(come, _count(line.get("taken")), _count(line.get("missed")), come)
    return found


def _count(stored: Any) -> int:
    return int(stored) if isinstance(stored, int) and not isinstance(stored, bool) and stored > 0 else 0
