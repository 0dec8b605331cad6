"""What the model knows of an item, of a reservation, and of the settings of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

__all__ = [
    "Entry",
    "Lost",
    "Misfit",
    "Move",
    "NoDeadQueue",
    "Origin",
    "Push",
    "Refusal",
    "Rules",
    "Run",
    "Taken",
    "Used",
]


class Refusal(Exception):
    """What the model refuses, and then changes nothing."""


class Lost(Refusal):
    """The caller does not hold the item."""


class Taken(Refusal):
    """A live item has the key; its id is the argument."""


class Used(Refusal):
    """Another push has used the id; the queue that has it and the id are the arguments."""


class Misfit(Refusal):
    """A patch does not fit the payload."""


class NoDeadQueue(Refusal):
    """There is nowhere to bury."""


class Origin(NamedTuple):
    """Where a dead item or a copy comes from."""

    queue: str
    id: Any
    reason: str
    attempts: int
    key: str | None
    at: datetime


@dataclass
class Rules:
    """The settings of a queue."""

    lease: timedelta = timedelta(seconds=30)
    history: timedelta | None = None
    max_retries: int | None = None
    dead: str | None = None
    paused: bool = False


@dataclass(frozen=True)
class Push:
    """What is pushed besides the queue and the id."""

    payload: Any
    when: datetime
    priority: int = 0
    headers: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Move:
    """Where an item goes; ``add`` is a patch that adds to the payload's ``n``."""

    to: str
    when: datetime
    payload: Any = field(default=...)
    add: int | None = None
    priority: int | None = None
    headers: Any = field(default=...)
    key: str | None = None


@dataclass(frozen=True)
class Run:
    """A reservation, as its holder knows it."""

    number: int
    id: Any
    queue: str
    due: datetime


@dataclass
class Entry:
    """An item: live while it has a ``when``, else processed, or a stub that remembers its id.

    ``holder`` is the number of the reservation, also when its lease is over; ``batch`` that of the last one that was
    one of a batch; ``into`` the queue that a push of a given id named, wherever the item went since.
    """

    id: Any
    queue: str
    payload: Any
    when: datetime | None
    priority: int = 0
    attempts: int = 0
    key: str | None = None
    headers: Mapping[str, Any] | None = None
    error: tuple[str, str] | None = None
    origin: Origin | None = None
    copied_from: str | None = None
    once: datetime | None = None
    into: str | None = None
    holder: int | None = None
    batch: int | None = None
    processed: datetime | None = None
    expires: datetime | None = None
    is_stub: bool = False

    @property
    def is_kept(self) -> bool:
        """In history."""
        return self.processed is not None and not self.is_stub

    @property
    def is_suspect(self) -> bool:
        """Whether another item of its batch may have killed the holder."""
        return self.batch is not None and self.holder in (None, self.batch)

    def is_held(self, now: datetime) -> bool:
        return self.holder is not None and self.when is not None and self.when > now

    def state(self, now: datetime) -> str | None:
        """The state; ``None`` for a stub."""
        if self.when is None:
            return "processed" if self.is_kept else None
        if self.holder is None:
            return "ready" if self.when <= now else "scheduled"
        return "expired" if self.when <= now else "reserved"

    def patched(self, add: int) -> Any:
        """The payload with a sum in its ``n``."""
        if not isinstance(self.payload, dict):
            raise Misfit
        return {**self.payload, "n": self.payload.get("n", 0) + add}
