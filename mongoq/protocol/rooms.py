"""Waiting rooms: who waits for items of a queue in this process, and who of them is to ask the server next.

One event wakes one waiter, so that a hundred do not ask at once; a woken one that leaves passes its call on. Nothing
here waits or sends: flows (``protocol.waiting``) go by it, and drivers rest on a ``Ticket`` until it rings.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakSet

__all__ = ["Bell", "Hub", "Room", "Ticket", "Turn"]

AWAIT = 10.0
"""Seconds that the server holds an answer back while nothing happens."""
SLACK = 5.0
"""Seconds beyond that after which an answer counts as lost."""
SOON = 0.5
"""Seconds for which an answer is waited for, before another reader takes over."""
REPLACED = 2
"""The most readers that wait for answers nobody needs: each holds a connection."""
LINGER = 1.0
"""Seconds for which the stream stays open though nobody waits."""
LIVE_POLL = 600.0
"""About how often a queue is looked at that the stream watches: only what a stream could miss needs it."""
POLL_FIRST, POLL_MOST, POLL_IDLE = 0.01, 0.2, 5.0
"""Seconds between two looks without a stream: at first, at most when time stands still, and at most when idle."""
POLL_SHARE = 0.25
"""The share of the time a queue was empty for that passes between two looks without a stream."""
REMEMBERED = 1000
"""Items of a queue of which this process knows already when the stream tells of them."""
HOLD_BACK = 0.01
"""The most seconds that a process waits before it asks again, whose last asks came too late each time."""

Turn = Literal["ask", "look", None]
"""What a waiter is to do: claim, look whether anything is due, or rest."""


class Bell:
    """Something to rest on until it rings; it may ring before."""

    __slots__ = ("alarm", "rung")

    def __init__(self) -> None:
        self.alarm: Callable[[], None] | None = None
        self.rung = False

    def ring(self) -> None:
        """Wake who rests on it."""
        self.rung = True
        alarm, self.alarm = self.alarm, None
        if alarm is not None:
            alarm()


class Ticket(Bell):
    """A waiter's place in a room.

    Attributes:
        called: it is to ask the server.
        woken: it was at rest when it was called.
        asking: it has asked, and has not said yet that there was nothing.
        asleep: it rests.
    """

    __slots__ = ("asking", "asleep", "called", "woken")

    def __init__(self) -> None:
        super().__init__()
        self.called = self.woken = self.asking = self.asleep = False


class Room:
    """Those who wait for items of one queue, in the order they came.

    What is known without asking: until ``due`` nothing becomes eligible that was there at the last fruitless ask, and
    ``dry`` says that nothing has happened since. The first in line holds the timer.
    """

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self.name = name
        self.tickets: list[Ticket] = []
        self.dry = self.pending = False
        self.due = self.poll = math.inf
        self.left_at = self.emptied_at = time.monotonic()
        self.in_vain = self.early = 0
        self._changes = 0
        self._known: OrderedDict[Any, None] = OrderedDict()

    def enter(self, *, patient: bool) -> Ticket:
        """Take a place. Who has no ``patience`` for an event that is under way asks in any case."""
        with self._hub.lock:
            ticket = Ticket()
            ticket.called = not (patient and self.dry and self._hub.watches(self.name))
            self.tickets.append(ticket)
            return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the place up, and see to it that what it was called for is not lost; after a claim there may be more."""
        with self._hub.lock:
            if ticket not in self.tickets:
                return  # forgotten in a forked child
            first = self.tickets[0] is ticket
            self.tickets.remove(ticket)
            self.left_at = time.monotonic()
            if ticket.called or ticket.asking:
                self.dry = False
                self.call(1)
            elif first and self.tickets:
                self.tickets[0].ring()  # it holds the timer now

    def turn(self, ticket: Ticket) -> Turn:
        """Say what a waiter is to do now."""
        with self._hub.lock:
            ticket.asleep = False
            if ticket.called or self.pending:
                return "ask"
            if ticket is not self.tickets[0]:
                return None
            now = time.monotonic()
            if now >= self.due or (now >= self.poll and self.glances()):
                return "ask"
            return "look" if now >= self.poll else None

    def glances(self) -> bool:
        """Say whether the next look comes so soon that to know when the next item is due would gain nothing."""
        if self._hub.restless():
            return True
        idle = time.monotonic() - self.emptied_at
        return not self._hub.watches(self.name) and idle * POLL_SHARE <= POLL_MOST

    def begin(self, ticket: Ticket) -> int:
        """Take note that a waiter asks from now on; returns what ``nothing`` is to be told."""
        with self._hub.lock:
            ticket.called = self.pending = False
            ticket.asking = True
            if time.monotonic() >= self.due:
                self.due = math.inf
            return self._changes

    def nothing(self, ticket: Ticket, begun: int, due: float) -> None:
        """Take note that there was nothing; ``due`` says in how many seconds there will be."""
        with self._hub.lock:
            now = time.monotonic()
            ticket.asking = False
            self.in_vain, ticket.woken = self.in_vain + ticket.woken, False
            self.early = self.early + 1 if due <= 0 else 0
            floor = min(POLL_FIRST * 1.5**self.early, POLL_MOST) if self.early > 1 else 0.0
            until = now + max(due, floor)
            if begun == self._changes:
                self.due, self.dry = until, True
            else:
                self.due = min(self.due, until)
            self.poll = now + self.pause(now)

    def found(self) -> None:
        """Take note that an item was claimed."""
        with self._hub.lock:
            self.emptied_at = time.monotonic()
            self.in_vain = self.early = 0

    def pause(self, now: float) -> float:
        """Return the seconds until the next look, jittered; without a stream they grow while the queue is empty."""
        if self._hub.watches(self.name):
            return LIVE_POLL * random.uniform(0.8, 1.2)
        most = POLL_MOST if self._hub.restless() else POLL_IDLE
        share = (now - self.emptied_at) * POLL_SHARE
        return min(max(share, POLL_FIRST), most) * random.uniform(0.5, 1.0)

    def doze(self, ticket: Ticket) -> float:
        """Say for how many seconds a waiter may rest unless it rings; 0 when something has happened meanwhile."""
        with self._hub.lock:
            if ticket.called or self.pending:
                return 0.0
            ticket.rung, ticket.asleep = False, True
            self._hub.attend()
            if ticket is not self.tickets[0]:
                return math.inf
            return max(0.0, min(self.due, self.poll) - time.monotonic())

    def tell(self, due: float = 0.0, number: int = 1, key: Any = None) -> None:
        """Take note that items become eligible in so many seconds; ``key`` names one that the stream will tell of."""
        with self._hub.lock:
            if key is not None:
                self._remember(key)
            now = time.monotonic()
            self._changes += 1
            if due <= 0:
                self.dry, self.emptied_at = False, now
                self.call(number)
            elif now + due < self.due:
                self.due = now + due
                if self.tickets:
                    self.tickets[0].ring()

    def heard(self, due: float, key: Any) -> bool:
        """Take note of what the stream tells; says whether it was news."""
        with self._hub.lock:
            if key in self._known:
                del self._known[key]  # the next of that kind is another event
                return False
            self.tell(due)
            return True

    def took(self, keys: list[Any]) -> None:
        """Remember what was claimed, of which the stream may still tell."""
        with self._hub.lock:
            for key in keys[-REMEMBERED:]:
                self._remember(key)

    def _remember(self, key: Any) -> None:
        self._known[key] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def call(self, number: int) -> None:
        """Wake so many waiters that rest; when there is none, whoever asks at the moment asks once more."""
        woken = 0
        for ticket in self.tickets:
            if woken == number:
                break
            if ticket.asleep and not ticket.called:
                ticket.called = ticket.woken = True
                ticket.ring()
                woken += 1
        if not woken and self.tickets:
            self.pending = True


class Hub:
    """The waiting rooms of a broker, and what is known of the change stream that all of them share.

    Attributes:
        lock: held for moments only, never while anybody rests.
        restless: says that time may stand still, or that there is no server, so that only polling tells.
        reader: what the reader of the stream rests on while nobody rests, to be woken by it.
        ending: rings when the broker is closed.
        patience: for how many seconds the server holds an answer back while nothing happens.
        running: the number of the reader; 0 while there is none.
        deaf: the server has no change streams.
        cursor: the open stream; ``None`` while there is none.
        token: where a stream goes on that takes its place.
        covered: the queues it tells of.
        narrowed: it tells of too many.
        reading_until: the time at which the server answers the reader, whatever happens.
        replaced: how many readers still wait for an answer that nobody needs.
        since: when the stream was opened, on the monotonic clock; ``inf`` while there is none.
        alive_until: until when the stream counts as alive unless the server answers.
        closed: the broker is closed.
    """

    def __init__(self, restless: Callable[[], bool] = lambda: False) -> None:
        self.restless = restless
        self.patience = AWAIT
        self.closed = False
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self.lock = threading.RLock()
        self.rooms: dict[str, Room] = {}
        self.reader, self.ending = Bell(), Bell()
        self.running = self.readers = 0
        self.deaf = False
        self.replaced = 0
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

    def room(self, queue: str) -> Room:
        """Return the room of a queue, made at first use."""
        with self.lock:
            if queue not in self.rooms:
                self.rooms[queue] = Room(self, queue)
            return self.rooms[queue]

    def watches(self, queue: str) -> bool:
        """Say whether the stream tells of this queue."""
        return queue in self.covered and time.monotonic() < self.alive_until

    def told_since(self) -> float:
        """Return since when the stream has told of every change of a control document; ``inf`` while it does not."""
        return self.since if time.monotonic() < self.alive_until else math.inf

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
            if self.running or self.deaf or self.closed or self.restless():
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
            if self.running != reader:
                self.replaced = max(0, self.replaced - 1)
                return
            self.token = None
            self.silence()
            self.running = 0
            for room in self.rooms.values():
                room.tell()

    def widen(self, queue: str) -> tuple[int, int]:
        """See to it that the stream will tell of this queue; returns a reader to start for it, and the cursor to kill.

        The server keeps an answer back though its cursor was killed, so another reader takes over. 0 when the one there
        is will answer soon, or enough of them still wait.
        """
        with self.lock:
            if queue in self.covered or self.cursor is None:
                return 0, 0
            self.reader.ring()
            if self.reading_until - time.monotonic() < SOON or self.replaced == REPLACED:
                return 0, 0
            self.readers += 1
            self.replaced += 1
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


_all: WeakSet[Hub] = WeakSet()


def _after_fork() -> None:
    for hub in _all:
        hub.forget()


os.register_at_fork(after_in_child=_after_fork)
