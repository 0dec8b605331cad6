"""Counters of a process: what its brokers did, by queue, until it is written down."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Literal, get_args

__all__ = ["EVENTS", "Counters", "Event"]

Event = Literal["put", "get", "reserve", "commit", "rollback", "release", "move", "dead"]
EVENTS: tuple[Event, ...] = get_args(Event)


class Counters:
    """A buffer of events. Threads add to it without a lock, since ``deque`` is atomic there.

    Attributes:
        append: counts a queue's name, an event and how often, as one tuple; without a call in Python.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[str, str, int]] = deque()
        self.append = self._events.append

    def __bool__(self) -> bool:
        """Say whether something waits to be written."""
        return bool(self._events)

    def add(self, queue: str, event: Event, number: int = 1) -> None:
        """Count something that has happened."""
        self.append((queue, event, number))

    def take(self) -> dict[str, Counter[str]]:
        """Return the sums by queue of all that was counted so far, and forget it."""
        taken: Counter[tuple[str, str, int]] = Counter(self._popped())  # in C: a busy process has 100,000 of them
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for (queue, event, number), times in taken.items():
            sums[queue][event] += number * times
        return dict(sums)

    def _popped(self) -> Iterator[tuple[str, str, int]]:
        for _ in range(len(self._events)):
            try:
                yield self._events.popleft()
            except IndexError:  # another thread takes them as well
                return

    def put_back(self, sums: dict[str, Counter[str]]) -> None:
        """Keep what could not be written for the next time."""
        for queue, events in sums.items():
            for event, number in events.items():
                self.append((queue, event, number))
