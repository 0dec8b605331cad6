"""The hub of a broker: its waiting rooms, and what is known of the change stream that all of them share."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from threading import RLock
from typing import Any
from weakref import WeakSet

from mongoq.protocol.flow.event import WakeEvent
from mongoq.protocol.state.wait_queue import POLL_IDLE, WaitQueue

__all__ = ["LINGER", "WaiterRegistry"]

AWAIT = 10.0
"""Seconds that the server holds an answer back while nothing happens."""
SLACK = 5.0
"""Seconds beyond that after which an answer counts as lost."""
SOON = 0.5
"""Seconds for which an answer is waited for, before another reader takes over."""
REPLACED = 2
"""The most readers that wait for answers nobody needs: each holds a connection."""
TOGETHER = 100
"""Queues of one look."""
LINGER = 1.0
"""Seconds for which the stream stays open though nobody waits."""


class WaiterRegistry:
    """The waiting rooms of a broker, and what is known of the change stream that all of them share.

    Attributes:
        lock: held for moments only, never while anybody rests.
        restless: says that time may stand still, or that there is no server, so that only polling tells.
        reader: what the reader of the stream rests on while nobody rests, to be woken by it.
        ending: rings when the broker is closed.
        patience: for how many seconds the server holds an answer back while nothing happens.
        running: the number of the reader; 0 while there is none.
        barred: the client cannot spare a connection for a stream.
        deaf: the server has no change streams.
        cursor: the open stream; ``None`` while there is none.
        token: where a stream goes on that takes its place.
        covered: the queues it tells of.
        narrowed: it tells of too many.
        reading_until: the time at which the server answers the reader, whatever happens.
        replaced: the readers that still wait for an answer nobody needs.
        since: when the stream was opened, on the monotonic clock; ``inf`` while there is none. It has told of every
            change of a control document from then on, while it is alive.
        alive_until: until when the stream counts as alive unless the server answers.
        closed: the broker is closed.
    """

    def __init__(self, restless: Callable[[], bool] = lambda: False) -> None:
        self.restless = restless
        self.patience = AWAIT
        self.closed = self.barred = False
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self.lock = RLock()
        self.rooms: dict[str, WaitQueue] = {}
        self.reader, self.ending = WakeEvent(), WakeEvent()
        self.running = self.readers = 0
        self.deaf = False
        self.replaced: set[int] = set()
        self.token: Any = None
        self.silence()

    def forget(self) -> None:
        """Start afresh in a forked child: those who wait, and the stream, are the parent's."""
        self._start()

    def silence(self) -> None:
        """Take note that there is no stream."""
        self.cursor: int | None = None
        self.covered: frozenset[str] = frozenset()
        self.narrowed = False
        self.reading_until = -math.inf
        self.since = math.inf
        self.alive_until = -math.inf

    def room(self, queue: str) -> WaitQueue:
        """Return the room of a queue, made at first use."""
        with self.lock:
            if queue not in self.rooms:
                self.rooms[queue] = WaitQueue(self, queue)
            return self.rooms[queue]

    def watches(self, queue: str) -> bool:
        """Say whether the stream tells of this queue."""
        return queue in self.covered and time.monotonic() < self.alive_until

    def overdue(self) -> list[WaitQueue]:
        """Return the rooms that are to be looked after soon, without a stream: one look may serve all of them."""
        with self.lock:
            soon = time.monotonic() + POLL_IDLE / 2
            rooms = [room for room in self.rooms.values() if room.tickets and room.poll < soon and not room.glances()]
            return sorted(rooms, key=lambda room: room.poll)[:TOGETHER]

    def wanted(self) -> frozenset[str]:
        """Return the queues somebody waits for, or did a moment ago."""
        with self.lock:
            recently = time.monotonic() - LINGER
            return frozenset(room.name for room in self.rooms.values() if room.tickets or room.left_at > recently)

    def attend(self) -> None:
        """Let the reader go on: somebody rests."""
        if not self.reader.rung:
            self.reader.ring()

    def is_awaited(self) -> bool:
        """Say whether anybody rests, to be woken by the stream."""
        with self.lock:
            return any(ticket.asleep for room in self.rooms.values() for ticket in room.tickets)

    def start(self) -> int:
        """Return the number of the reader that is to be started; 0 when none is."""
        with self.lock:
            if self.running or self.deaf or self.barred or self.closed or self.restless():
                return 0
            self.readers += 1
            self.running = self.readers
            return self.running

    def stop(self) -> bool:
        """Say whether the reader may end, and that there is none from now on; not while anybody waits."""
        with self.lock:
            if any(room.tickets for room in self.rooms.values()):
                return False
            self.silence()
            self.token, self.running = None, 0
            return True

    def ended(self, reader: int) -> None:
        """Take note that a reader has ended; who waits goes on by looking now and then."""
        with self.lock:
            self.replaced.discard(reader)
            if self.running == reader:
                self.token = None
                self.silence()
                self.running = 0
                self.alarm()

    def alarm(self) -> None:
        """Let everybody ask once, and look now and then from now on unless there is a stream again."""
        with self.lock:
            for room in self.rooms.values():
                room.tell()

    def unheard(self) -> None:
        """Take note that the reader rests, and hears nothing until somebody rests as well."""
        self.alive_until = min(self.alive_until, time.monotonic() + LINGER)

    def widen(self, queue: str) -> tuple[int, int]:
        """See to it that the stream will tell of this queue; returns a reader to start for it, and the cursor to kill.

        The server keeps an answer back though its cursor was killed, so another reader takes over. 0 when the one there
        is will answer soon, or enough of them still wait.
        """
        with self.lock:
            if queue in self.covered or self.cursor is None:
                return 0, 0
            self.reader.ring()
            if self.reading_until - time.monotonic() < SOON or len(self.replaced) == REPLACED:
                return 0, 0
            self.readers += 1
            self.replaced.add(self.running)
            self.running, self.reading_until = self.readers, -math.inf
            return self.running, self.cursor

    def narrow(self) -> None:
        """Let the stream be opened for fewer queues: it tells of some that nobody waits for."""
        self.narrowed = True

    def begin_reading(self, reader: int, seconds: float) -> bool:
        """Take note that a reader waits for the server from now on; false when the stream is to be opened anew."""
        with self.lock:
            if self.narrowed or self.running != reader or not self.wanted() <= self.covered:
                return False
            self.reading_until = time.monotonic() + seconds
            self.alive_until = self.reading_until + SLACK
            return True

    def answered(self, reader: int, token: Any) -> bool:
        """Take note of an answer; false when another reader has taken over."""
        with self.lock:
            if self.running != reader:
                return False
            self.token, self.reading_until = token, -math.inf
            self.alive_until = time.monotonic() + self.patience + SLACK
            return True

    def opened(self, cursor: int, covered: frozenset[str], *, lossless: bool) -> None:
        """Take note of an open stream, and let those ask who may have missed something."""
        with self.lock:
            fresh = covered - self.covered if lossless else covered
            if not lossless or self.since == math.inf:
                self.since = time.monotonic()
            self.cursor, self.covered, self.narrowed = cursor, covered, False
            for name in fresh:
                if name in self.rooms:
                    self.rooms[name].tell()

    def close(self) -> int | None:
        """Let the reader end; returns the cursor to kill, if any."""
        with self.lock:
            self.closed = True
            self.ending.ring()
            self.reader.ring()
            return self.cursor

    def wake(self) -> None:
        """Wake all who rest."""
        with self.lock:
            for room in self.rooms.values():
                for ticket in room.tickets:
                    ticket.ring()


_all: WeakSet[WaiterRegistry] = WeakSet()


def _after_fork() -> None:
    for hub in _all:
        hub.forget()


os.register_at_fork(after_in_child=_after_fork)
