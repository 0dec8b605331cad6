"""State of one process: its identity, its counters, its health, and objects that a forked child must not share."""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, Self, SupportsIndex, get_args

HOST_LENGTH = 100
"""Characters of the host's name, at most."""


class Identity:
    """``host:pid:random`` of this process; a forked child gets a new one."""

    def __init__(self) -> None:
        self._pid = -1
        self._text = ""

    def __str__(self) -> str:
        """Return the identity; cheap enough for every command."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._text = f"{socket.gethostname()[:HOST_LENGTH]}:{self._pid}:{secrets.token_hex(4)}"
        return self._text


class Local:
    """An object with a client, threads or tasks of this process, which other processes do not have.

    Pickling and copying it raise ``TypeError`` with advice on the alternative.
    """

    __slots__ = ()
    _elsewhere: ClassVar[str]
    """Advice for the other process, or for the copy."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled; ``copy`` and ``deepcopy`` call this too."""
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: {self._elsewhere}")


dice = random.Random()
# So that the children of a process do not all wait for the same time.
os.register_at_fork(after_in_child=dice.seed)


Event = Literal["put", "get", "reserve", "commit", "rollback", "release", "move", "dead", "expired"]
EVENTS: tuple[Event, ...] = get_args(Event)
"""All events, by name."""


class Counters:
    """A buffer of events. Threads add to it without a lock, because ``deque.append`` is atomic.

    Attributes:
        append: adds a tuple of queue name, event and number, without a call of a Python function.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[str, str, int]] = deque()
        self.append = self._events.append

    def __bool__(self) -> bool:
        """Return whether events wait to be written."""
        return bool(self._events)

    def add(self, queue: str, event: Event, number: int = 1) -> None:
        """Count an event."""
        self.append((queue, event, number))

    def take(self) -> dict[str, Counter[str]]:
        """Remove all events counted so far, and return their sums by queue."""
        events = []
        with suppress(IndexError):  # another thread takes events as well
            for _ in range(len(self._events)):
                events.append(self._events.popleft())
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        # Counted in C: a busy process has 100,000 events.
        for (queue, event, number), times in Counter(events).items():
            sums[queue][event] += number * times
        return dict(sums)

    def restore(self, sums: dict[str, Counter[str]]) -> None:
        """Keep events that could not be written for the next time."""
        for queue, events in sums.items():
            for event, number in events.items():
                self.append((queue, event, number))


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a check.

    Attributes:
        healthy: True if the broker can work, or the worker does.
        reasons: what is wrong, a sentence each; empty if it is healthy. Without credentials and payloads.
        notes: what is worth knowing and makes nothing unhealthy, such as the last outage.
    """

    healthy: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, reasons: Iterable[str], notes: Iterable[str] = ()) -> Self:
        """Return the health with these reasons; healthy without any."""
        listed = tuple(reasons)
        return cls(not listed, listed, tuple(notes))

    def to_document(self) -> dict[str, Any]:
        """Return the health as values of JSON."""
        return {"healthy": self.healthy, "reasons": list(self.reasons), "notes": list(self.notes)}
