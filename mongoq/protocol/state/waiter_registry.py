"""The wait queues of a broker, and the state of the change stream that all of them share."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from threading import RLock
from typing import Any
from weakref import WeakSet

from mongoq.protocol.flow import Waiter, WakeEvent
from mongoq.protocol.state.wait_queue import POLL_IDLE, WaitQueue

GET_MORE_WAIT_SECONDS = 10.0
"""Seconds that the server waits before it answers a ``getMore`` without events."""
REPLY_SLACK_SECONDS = 5.0
"""Seconds beyond that after which the answer counts as lost."""
READER_WAIT_SECONDS = 0.5
"""Seconds within which a reader's next answer is awaited; for a later one another reader takes over."""
MAX_REPLACED_READERS = 2
"""Replaced readers that may wait for a useless answer at the same time: each holds a connection."""
QUEUES_PER_POLL = 100
"""Queues of one poll."""
STREAM_LINGER_SECONDS = 1.0
"""Seconds for which the stream stays open without a waiter."""
MIN_ROOM = 100
"""Wait queues that are kept, used or not."""


class WaiterRegistry:
    """The wait queues of a broker, and the state of the change stream that all of them share.

    Attributes:
        lock: held for moments only, never while a waiter sleeps.
        restless: returns whether only polling helps: on a virtual clock, or without a server.
        wait_queues: the wait queues, by the names of their queues.
        room: the number of wait queues from which on the next new one lets unused ones be forgotten.
        reader: the event on which the reader of the stream sleeps while no waiter sleeps.
        ending: the event that is set when the broker is closed.
        patience: seconds that the server waits before it answers without events.
        running: the number of the current reader; 0 without one.
        barred: the client's pool is too small to spare a connection for a stream.
        deaf: the server has no change streams.
        cursor: the cursor of the open stream; ``None`` without one.
        token: the resume token for the next stream.
        covered: the queues whose events the stream delivers.
        narrowed: the stream covers queues without a waiter, and is to be reopened for fewer.
        reading_until: when the server answers the reader at the latest, on the monotonic clock.
        replaced: the numbers of replaced readers that still wait for an answer.
        since: when the stream was opened, on the monotonic clock; ``inf`` without one. While the stream is alive, it
            has delivered every change of a control document since then.
        alive_until: until when the stream counts as alive without an answer, on the monotonic clock.
        closed: the broker is closed.
    """

    def __init__(self, restless: Callable[[], bool] = lambda: False) -> None:
        self.restless = restless
        self.patience = GET_MORE_WAIT_SECONDS
        self.closed = self.barred = False
        self._start()
        _registries.add(self)

    def _start(self) -> None:
        self.lock = RLock()
        self.wait_queues: dict[str, WaitQueue] = {}
        self.room = MIN_ROOM
        self.reader, self.ending = WakeEvent(), WakeEvent()
        self.running = self.readers = 0
        self.deaf = False
        self.replaced: set[int] = set()
        self.token: Any = None
        self.silence()

    def forget(self) -> None:
        """Forget everything in a forked child: the waiters and the stream belong to the parent."""
        self._start()

    def silence(self) -> None:
        """Record that there is no stream."""
        self.cursor: int | None = None
        self.covered: frozenset[str] = frozenset()
        self.narrowed = False
        self.reading_until = -math.inf
        self.since = math.inf
        self.alive_until = -math.inf

    def enter(self, queue: str, *, patient: bool) -> tuple[WaitQueue, Waiter]:
        """Add a waiter to the wait queue of a queue, made at first use; return both."""
        with self.lock:
            if queue not in self.wait_queues:
                if len(self.wait_queues) >= self.room:
                    self._forget_unused()
                self.wait_queues[queue] = WaitQueue(self, queue)
            wait_queue = self.wait_queues[queue]
            return wait_queue, wait_queue.enter(patient=patient)

    def _forget_unused(self) -> None:
        """Forget wait queues that no waiter has used lately: all of them are looked through for each reply."""
        recently = time.monotonic() - STREAM_LINGER_SECONDS
        self.wait_queues = {
            name: each for name, each in self.wait_queues.items() if each.waiters or each.left_at > recently
        }
        self.room = max(MIN_ROOM, 2 * len(self.wait_queues))

    def watches(self, queue: str) -> bool:
        """Return whether the stream is alive and covers this queue."""
        return queue in self.covered and time.monotonic() < self.alive_until

    def expect_events(self) -> None:
        """Let the next event of the stream for any item wake waiters, also for items that this process has changed.

        Called when it has changed items in a transaction, which are there only after the commit.
        """
        with self.lock:
            for wait_queue in self.wait_queues.values():
                wait_queue.forget_changes()

    def overdue(self) -> list[WaitQueue]:
        """Return the wait queues that are to be polled soon: one command may serve all of them."""
        with self.lock:
            soon = time.monotonic() + POLL_IDLE / 2
            wait_queues = [
                wait_queue
                for wait_queue in self.wait_queues.values()
                if wait_queue.waiters and wait_queue.poll < soon and not wait_queue.is_next_poll_soon()
            ]
            return sorted(wait_queues, key=lambda wait_queue: wait_queue.poll)[:QUEUES_PER_POLL]

    def wanted_queues(self) -> frozenset[str]:
        """Return the queues that have a waiter, or had one within ``STREAM_LINGER_SECONDS``."""
        with self.lock:
            recently = time.monotonic() - STREAM_LINGER_SECONDS
            return frozenset(
                wait_queue.name
                for wait_queue in self.wait_queues.values()
                if wait_queue.waiters or wait_queue.left_at > recently
            )

    def attend(self) -> None:
        """Wake the reader: a waiter goes to sleep."""
        if not self.reader.was_set:
            self.reader.set()

    def is_awaited(self) -> bool:
        """Return whether a waiter sleeps, to be woken by the stream."""
        with self.lock:
            return any(waiter.asleep for wait_queue in self.wait_queues.values() for waiter in wait_queue.waiters)

    def start(self) -> int:
        """Return the number of the reader to start; 0 when none is needed or possible."""
        with self.lock:
            if self.running or self.deaf or self.barred or self.closed or self.restless():
                return 0
            self.readers += 1
            self.running = self.readers
            return self.running

    def stop(self) -> bool:
        """Return whether the reader may end, and record that there is none; not while a caller waits."""
        with self.lock:
            if any(wait_queue.waiters for wait_queue in self.wait_queues.values()):
                return False
            self.silence()
            self.token, self.running = None, 0
            return True

    def record_end(self, reader: int) -> None:
        """Record that a reader has ended; waiters go on by polling."""
        with self.lock:
            self.replaced.discard(reader)
            if self.running == reader:
                self.token = None
                self.silence()
                self.running = 0
                self.alarm()

    def alarm(self) -> None:
        """Let a waiter of each queue ask once: events may have been missed."""
        with self.lock:
            for wait_queue in self.wait_queues.values():
                wait_queue.tell()

    def record_reader_asleep(self) -> None:
        """Record that the reader sleeps, and reads nothing until a waiter sleeps as well."""
        self.alive_until = min(self.alive_until, time.monotonic() + STREAM_LINGER_SECONDS)

    def widen(self, queue: str) -> tuple[int, int]:
        """Make the stream cover this queue; return the number of a reader to start, and the cursor to kill.

        The server does not answer the pending ``getMore`` of a killed cursor at once, so another reader takes over. 0
        when the current reader's answer is due soon, or when too many replaced readers still wait.
        """
        with self.lock:
            if queue in self.covered or self.cursor is None:
                return 0, 0
            # A reader that sleeps, or is about to get an answer, opens the stream again by itself.
            self.reader.set()
            if (
                self.reading_until - time.monotonic() < READER_WAIT_SECONDS
                or len(self.replaced) == MAX_REPLACED_READERS
            ):
                return 0, 0
            self.readers += 1
            self.replaced.add(self.running)
            self.running, self.reading_until = self.readers, -math.inf
            return self.running, self.cursor

    def narrow(self) -> None:
        """Have the stream reopened for fewer queues: it covers some without a waiter."""
        self.narrowed = True

    def begin_reading(self, reader: int, seconds: float) -> bool:
        """Record that a reader waits for the server now; return false when the stream must be reopened first."""
        with self.lock:
            if self.narrowed or self.running != reader or not self.wanted_queues() <= self.covered:
                return False
            self.reading_until = time.monotonic() + seconds
            self.alive_until = self.reading_until + REPLY_SLACK_SECONDS
            return True

    def record_answer(self, reader: int, token: Any) -> bool:
        """Record an answer; return false when another reader has taken over."""
        with self.lock:
            if self.running != reader:
                return False
            self.token, self.reading_until = token, -math.inf
            self.alive_until = time.monotonic() + self.patience + REPLY_SLACK_SECONDS
            return True

    def record_open(self, cursor: int, covered: frozenset[str], *, lossless: bool) -> None:
        """Record an open stream, and let waiters ask whose events may have been missed."""
        with self.lock:
            # A stream that resumes at its token has missed nothing; a new one has, since its waiters last asked.
            fresh = covered - self.covered if lossless else covered
            if not lossless or self.since == math.inf:
                self.since = time.monotonic()
            self.cursor, self.covered, self.narrowed = cursor, covered, False
            for name in fresh:
                if name in self.wait_queues:
                    self.wait_queues[name].tell()

    def close(self) -> int | None:
        """Make the reader end; return the cursor to kill, if any."""
        with self.lock:
            self.closed = True
            self.ending.set()
            self.reader.set()
            return self.cursor

    def wake(self) -> None:
        """Wake all waiters."""
        with self.lock:
            for wait_queue in self.wait_queues.values():
                for waiter in wait_queue.waiters:
                    waiter.set()


_registries: WeakSet[WaiterRegistry] = WeakSet()


def _after_fork() -> None:
    for registry in _registries:
        registry.forget()


os.register_at_fork(after_in_child=_after_fork)
