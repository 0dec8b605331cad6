"""Counters of a process: events of its brokers, by queue, until they are written to the database."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Literal, get_args

__all__ = ["EVENTS", "Counters", "Event"]

Event = Literal["put", "get", "reserve", "commit", "rollback", "release", "move", "dead"]
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
        # Counted in C: a busy process has 100,000 events.
        taken: Counter[tuple[str, str, int]] = Counter(self._popped())
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for (queue, event, number), times in taken.items():
            sums[queue][event] += number * times
        return dict(sums)

    def _popped(self) -> Iterator[tuple[str, str, int]]:
        for _ in range(len(self._events)):
            try:
                yield self._events.popleft()
            except IndexError:
                # Another thread takes events as well.
                return

    def put_back(self, sums: dict[str, Counter[str]]) -> None:
        """Keep events that could not be written for the next time."""
        for queue, events in sums.items():
            for event, number in events.items():
                self.append((queue, event, number))
