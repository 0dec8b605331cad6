"""The callers of this process that wait for items, and which of them asks the server next.

One change wakes one waiter of a queue, so that a hundred waiters do not send a hundred claims. A woken waiter that
leaves passes its call on. Nothing here waits or sends: ``core.wait.wait`` does, by what this module
decides. The wait queues of a broker share the state of one change stream (``WaiterRegistry``).
"""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import RLock
from typing import Any, Literal
from weakref import WeakSet

from mongoq.core.command import Waiter, WakeEvent
from mongoq.data.process import dice

LIVE_POLL_SECONDS = 600.0
"""Seconds between two polls of a queue that the change stream covers: they only catch what a stream could miss."""
POLL_FIRST, POLL_MOST, POLL_IDLE = 0.01, 0.2, 5.0
"""Seconds between two polls without a change stream: at first; at most on a virtual clock; at most on an idle queue."""
POLL_SHARE = 0.25
"""Without a change stream the next poll comes after this share of the time for which the queue was empty."""
REMEMBERED, REMEMBERED_FOR = 1000, 1.0
"""Items per queue that this process changed itself, and the seconds for which it ignores their stream events."""
HOLD_BACK_FIRST, HOLD_BACK = 0.001, 0.01
"""Seconds that a process waits before it asks after its claims came too late: at first, doubled each time, at most."""

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

Turn = Literal["ask", "look", None]
"""What a waiter does next: claim, read when the next item is due, or (``None``) sleep."""


class WaitQueue:
    """The waiters of one queue, oldest first. The oldest one keeps the timer for all of them.

    Attributes:
        name: the queue.
        waiters: the waiters, oldest first.
        dry: the last claim found nothing, and nothing has changed since.
        pending: a change came while no waiter was asleep; the next waiter that looks asks once more.
        due: when, on the monotonic clock, the next known item becomes eligible; set by a claim that found nothing.
        poll: when, on the monotonic clock, to poll next, whatever the change stream says.
        left_at: when the last waiter left.
        emptied_at: since when the queue counts as empty; the pauses between polls grow with it.
        in_vain: how many woken waiters in a row found nothing, because other processes were faster.
        early: how many claims in a row found nothing although an item was due.
        known: items that this process has changed or claimed, until when their stream events wake no waiter.
        changes: the number of changes so far; a claim that began before a change may have missed it.
    """

    def __init__(self, registry: WaiterRegistry, name: str) -> None:
        self._registry = registry
        self.name = name
        self.waiters: list[Waiter] = []
        self.dry = self.pending = False
        self.due = self.poll = math.inf
        self.left_at = self.emptied_at = time.monotonic()
        self.in_vain = self.early = 0
        self.changes = 0
        self.known: OrderedDict[Any, float] = OrderedDict()

    def enter(self, *, patient: bool) -> Waiter:
        """Add a waiter. One that is not ``patient`` asks at once, even if nothing has changed since the last claim."""
        with self._registry.lock:
            waiter = Waiter()
            waiter.called = not (patient and self.dry and self._registry.watches(self.name))
            self.waiters.append(waiter)
            return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter, and call another one for the change that it was called for: there may be more items."""
        with self._registry.lock:
            if waiter not in self.waiters:
                return  # forgotten in a forked child
            first = self.waiters[0] is waiter
            self.waiters.remove(waiter)
            self.left_at = time.monotonic()
            if waiter.called or waiter.asking:
                self.dry = False
                self.call(1)
            elif first and self.waiters:
                self.waiters[0].set()  # it keeps the timer now

    def turn(self, waiter: Waiter) -> Turn:
        """Return what a waiter does now."""
        with self._registry.lock:
            waiter.asleep = waiter.was_set = False
            if waiter.called or self.pending:
                return "ask"
            if waiter is not self.waiters[0]:
                return None
            now = time.monotonic()
            if now >= self.due or (now >= self.poll and self.is_next_poll_soon()):
                return "ask"
            return "look" if now >= self.poll else None

    def is_next_poll_soon(self) -> bool:
        """Return whether the next poll comes so soon that reading the next due time would save nothing."""
        if self._registry.restless():
            return True
        idle = time.monotonic() - self.emptied_at
        return not self._registry.watches(self.name) and idle * POLL_SHARE <= POLL_MOST

    def begin(self, waiter: Waiter) -> int:
        """Record that a waiter sends a claim now; return the change count to hand to ``record_nothing``."""
        with self._registry.lock:
            waiter.called = self.pending = False
            waiter.asking = True
            # This claim takes the item that was due: what is known of later ones comes with its result.
            if time.monotonic() >= self.due:
                self.due, self.dry = math.inf, False
            return self.changes

    def seconds_until_due(self, changes: int) -> float | None:
        """Return the seconds until the next item is due, or ``None`` when something has changed since that was read."""
        with self._registry.lock:
            if not (self.dry and changes == self.changes and self._registry.watches(self.name)):
                return None
            return max(0.0, self.due - time.monotonic())

    def record_nothing(self, waiter: Waiter, changes: int, due: float) -> None:
        """Record that a claim found nothing; ``due`` is the seconds until the next item becomes eligible."""
        with self._registry.lock:
            now = time.monotonic()
            waiter.asking = False
            self.in_vain, waiter.woken = self.in_vain + waiter.woken, False
            self.early = self.early + 1 if due <= 0 else 0
            floor = min(POLL_FIRST * 1.5**self.early, POLL_MOST) if self.early > 1 else 0.0
            until = now + max(due, floor)
            if changes == self.changes:
                self.due, self.dry = until, True
            else:
                self.due = min(self.due, until)
            self.poll = now + self.pause(now)

    def record_poll(self, changes: int, due: float) -> None:
        """Record when the next item is due, as a poll for several queues has read it."""
        with self._registry.lock:
            now = time.monotonic()
            self.poll = now + self.pause(now)
            if due <= 0:
                self.call(1)
            elif changes == self.changes or now + due < self.due:
                self.due = now + due
                if self.waiters:
                    self.waiters[0].set()

    def seconds_to_hold_back(self) -> float:
        """Return the seconds to wait before asking, so that processes that are always faster ask first."""
        if self.in_vain < 2:
            return 0.0
        return dice.uniform(0, min(HOLD_BACK_FIRST * 2 ** min(self.in_vain, 10), HOLD_BACK))

    def record_found(self) -> None:
        """Record that a waiter has claimed an item."""
        with self._registry.lock:
            self.emptied_at = time.monotonic()
            self.in_vain = self.early = 0

    def pause(self, now: float) -> float:
        """Return the seconds until the next poll, jittered; without a stream they grow while the queue is empty."""
        if self._registry.watches(self.name):
            return LIVE_POLL_SECONDS * dice.uniform(0.8, 1.2)
        most = POLL_MOST if self._registry.restless() else POLL_IDLE
        share = (now - self.emptied_at) * POLL_SHARE
        return min(max(share, POLL_FIRST), most) * dice.uniform(0.5, 1.0)

    def begin_sleep(self, waiter: Waiter) -> float:
        """Return the seconds that a waiter may sleep unless its event is set; 0 when it is to ask now."""
        with self._registry.lock:
            if waiter.called or self.pending:
                return 0.0
            waiter.asleep = True
            if not self._registry.reader.was_set:
                self._registry.reader.set()  # a waiter goes to sleep, to be woken by the stream
            if waiter is not self.waiters[0]:
                return math.inf
            return max(0.0, min(self.due, self.poll) - time.monotonic())

    def tell(self, due: float = 0.0, number: int = 1, key: Any = None) -> None:
        """Record that items become eligible in ``due`` seconds, and wake up to ``number`` waiters.

        ``key`` names an item whose stream event this process can ignore: it knows of the change already.
        """
        with self._registry.lock:
            if key is not None:
                self._remember(key)
            now = time.monotonic()
            self.changes += 1
            if due <= 0:
                self.dry, self.emptied_at = False, now
                self.call(number)
            elif now + due < self.due:
                self.due = now + due
                if self.waiters:
                    self.waiters[0].set()

    def heard(self, due: float, key: Any) -> bool:
        """Record an event of the change stream; return whether this process did not know of it yet."""
        with self._registry.lock:
            if self.known.pop(key, -math.inf) > time.monotonic():  # the next of that kind is another event
                return False
            self.tell(due)
            return True

    def took(self, keys: list[Any]) -> None:
        """Remember claimed items whose stream events may still arrive."""
        with self._registry.lock:
            for key in keys[-REMEMBERED:]:
                self._remember(key)

    def _remember(self, key: Any) -> None:
        if not self._registry.watches(self.name):
            return  # no event will come, and one of a later rollback would have the same key
        self.known[key] = time.monotonic() + REMEMBERED_FOR
        if len(self.known) > REMEMBERED:
            self.known.popitem(last=False)

    def call(self, number: int) -> None:
        """Wake up to ``number`` sleeping waiters; when none sleeps, the waiter that asks just now asks once more."""
        woken = 0
        for waiter in self.waiters:
            if woken == number:
                break
            if waiter.asleep and not waiter.called:
                waiter.called = waiter.woken = True
                waiter.set()
                woken += 1
        if not woken and self.waiters:
            self.pending = True


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
                    # Forget those that no waiter has used lately: all of them are looked through for each reply.
                    recently = time.monotonic() - STREAM_LINGER_SECONDS
                    used = [each for each in self.wait_queues.values() if each.waiters or each.left_at > recently]
                    self.wait_queues = {each.name: each for each in used}
                    self.room = max(MIN_ROOM, 2 * len(used))
                self.wait_queues[queue] = WaitQueue(self, queue)
            wait_queue = self.wait_queues[queue]
            return wait_queue, wait_queue.enter(patient=patient)

    def watches(self, queue: str) -> bool:
        """Return whether the stream is alive and covers this queue."""
        return queue in self.covered and time.monotonic() < self.alive_until

    def expect_events(self) -> None:
        """Let the next event of the stream for any item wake waiters, also for items that this process has changed.

        Called when it has changed items in a transaction, which are there only after the commit.
        """
        with self.lock:
            for wait_queue in self.wait_queues.values():
                wait_queue.known.clear()

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
