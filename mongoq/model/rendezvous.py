"""Rendezvous: where items of several queues wait for their partners, by the value that they have in common.

On each side places are counted on as items come, and taken in their order, so nobody looks through those who wait.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import bson
from bson import Decimal128, ObjectId

__all__ = ["Place", "Rendezvous", "Unjoinable", "rendezvous_id", "value_key"]

VALUE_BYTES = 1024
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


_OPTIONS: bson.CodecOptions[Any] = bson.CodecOptions(
    uuid_representation=bson.binary.UuidRepresentation.STANDARD, tz_aware=True
)


def _number(value: Any) -> dict[str, Any]:
    """Return a number in the one form that all that equal it have."""
    if not math.isfinite(value):
        raise Unjoinable(f"is {value}, which is no number to look for")
    exact = Decimal(value)
    if not exact or -VALUE_BYTES < exact.adjusted() < VALUE_BYTES:
        text = f"{exact:f}"
        return {"number": text.rstrip("0").rstrip(".") if "." in text else text if exact else "0"}
    raise Unjoinable("is a number of very many digits")


def rendezvous_id(join: str, key: str) -> str:
    """Return the ``_id`` of the control document of a join and a value."""
    return f"join:{join}:{key}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item waits.

    Attributes:
        key: what its value is known by.
        side: the number of its queue among those of the join.
        number: its place in the line of that side.
    """

    key: str
    side: int
    number: int

    @property
    def text(self) -> str:
        """The key of the waiting item."""
        return f"{self.key}:{self.side}:{self.number}"

    @classmethod
    def of(cls, text: Any) -> Place | None:
        """Return the place with this text, or ``None``: some other program may have written anything."""
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]))


class Rendezvous:
    """What is known of a value: for each side how many have come to wait, how many places are behind, who was given up.

    Attributes:
        key: what the value is known by.
        stored: there is a document of it.
    """

    def __init__(self, key: str, sides: int, document: Document | None) -> None:
        self.key = key
        self.stored = document is not None
        if document is None:
            self._come, self._taken, self._missed = [0] * sides, [0] * sides, [0] * sides
        else:
            self._come, self._taken, self._missed = (
                _counts(document.get(field), sides) for field in ("come", "taken", "missed")
            )

    def first(self, side: int, gone: Set[str]) -> Place | None:
        """Return the first place of a side where somebody waits; ``gone`` are those where nobody is any more."""
        for number in range(self._taken[side], self._come[side]):
            place = Place(self.key, side, number)
            if place.text not in gone:
                return place
        return None

    def park(self, side: int) -> Place:
        """Return the next place of a side."""
        number = self._come[side]
        self._come[side] += 1
        return Place(self.key, side, number)

    def take(self, place: Place) -> None:
        """Let somebody leave, and all places before that one."""
        self._taken[place.side] = max(self._taken[place.side], place.number + 1)

    def give_up(self, place: Place, *, remembered: bool) -> None:
        """Let somebody leave without partners; ``remembered`` says that these will be known to come late."""
        if self._taken[place.side] == place.number:
            self._taken[place.side] += 1
        if remembered:
            for side in range(len(self._missed)):
                self._missed[side] += side != place.side

    def is_late(self, side: int) -> bool:
        """Say whether a partner of who comes on this side was given up; that is told once for each."""
        if not self._missed[side]:
            return False
        self._missed[side] -= 1
        return True

    @property
    def empty(self) -> bool:
        """Whether nobody waits, as far as is known."""
        return self._taken == self._come

    @property
    def done(self) -> bool:
        """Whether there is nothing to remember."""
        return self.empty and not any(self._missed)

    def fields(self) -> dict[str, list[int]]:
        """Return what is to be stored."""
        return {"come": self._come, "taken": self._taken, "missed": self._missed}


def _counts(stored: Any, sides: int) -> list[int]:
    """Return a stored list of counts; what some other program put there, or another join, counts for nothing."""
    told: Sequence[Any] = stored if isinstance(stored, list) and len(stored) == sides else []
    counts = [int(one) for one in told if isinstance(one, int) and not isinstance(one, bool) and one >= 0]
    return counts if len(counts) == sides else [0] * sides
