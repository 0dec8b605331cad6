"""Takers: workers that get the next item of a sequence from the settlement of the one before it, without a claim."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class Handed(NamedTuple):
    """An item that a settlement has reserved for a taker.

    Attributes:
        document: its envelope as it was, which may be unreadable.
        marks: the fields that reserve it, with its token.
        now: the server's time of the reservation.
    """

    document: Mapping[str, Any]
    marks: Mapping[str, Any]
    now: datetime


class Taker(Protocol):
    """Takes items of one queue."""

    def reserve(self, now: datetime) -> Mapping[str, Any] | None:
        """Return the fields that reserve an item, with a token of its own; ``None`` without room for one.

        Called in each attempt of a transaction.
        """
        ...

    def accept(self, handed: Handed) -> None:
        """Take a reserved item; called after the commit."""
        ...
