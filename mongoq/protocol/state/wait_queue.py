"""Waiting rooms: who waits for items of a queue in this process, and who of them is to ask the server next.

One event wakes one waiter, so that a hundred do not ask at once; a woken one that leaves passes its call on. Nothing
here waits or sends: flows (``protocol.waiting``) go by it.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from threading import RLock
from typing import Any, Literal, Protocol

from mongoq.model.process.jitter import dice
from mongoq.protocol.flow.event import Waiter

__all__ = ["LIVE_POLL", "POLL_IDLE", "Turn", "WaitQueue"]

LIVE_POLL = 600.0
"""About how often a queue is looked at that the stream watches: only what a stream could miss needs it."""
POLL_FIRST, POLL_MOST, POLL_IDLE = 0.01, 0.2, 5.0
"""Seconds between two looks without a stream: at first, at most when time stands still, and at most when idle."""
POLL_SHARE = 0.25
"""The share of the time a queue was empty for that passes between two looks without a stream."""
REMEMBERED, REMEMBERED_FOR = 1000, 1.0
"""How many items of a queue are known of already when the stream tells of them, and for how many seconds."""
HOLD_BACK_FIRST, HOLD_BACK = 0.001, 0.01
"""The most seconds that a process waits before it asks, whose asks came too late: twice as long each time."""

Turn = Literal["ask", "look", None]
"""What a waiter is to do: claim, look whether anything is due, or rest."""


class ChangeWatch(Protocol):
    """What a room asks of the hub that it belongs to."""

    lock: RLock

    def watches(self, queue: str) -> bool: ...

    def restless(self) -> bool: ...

    def attend(self) -> None: ...


class WaitQueue:
    """Those who wait for items of one queue, in the order they came.

    What is known without asking: until ``due`` nothing becomes eligible that was there at the last fruitless ask, and
    ``dry`` says that nothing has happened since. The first in line holds the timer.
    """

    def __init__(self, hub: ChangeWatch, name: str) -> None:
        self._hub = hub
        self.name = name
        self.tickets: list[Waiter] = []
        self.dry = self.pending = False
        self.due = self.poll = math.inf
        self.left_at = self.emptied_at = time.monotonic()
        self.in_vain = self.early = 0
        self._changes = 0
        self._known: OrderedDict[Any, float] = OrderedDict()

    def enter(self, *, patient: bool) -> Waiter:
        """Take a place. Who has no ``patience`` for an event that is under way asks in any case."""
        with self._hub.lock:
            ticket = Waiter()
            ticket.called = not (patient and self.dry and self._hub.watches(self.name))
            self.tickets.append(ticket)
            return ticket

    def leave(self, ticket: Waiter) -> None:
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

    def turn(self, ticket: Waiter) -> Turn:
        """Say what a waiter is to do now."""
        with self._hub.lock:
            ticket.asleep = ticket.rung = False
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

    def begin(self, ticket: Waiter) -> int:
        """Take note that a waiter asks from now on; returns what ``nothing`` is to be told."""
        with self._hub.lock:
            ticket.called = self.pending = False
            ticket.asking = True
            if time.monotonic() >= self.due:
                self.due, self.dry = math.inf, False
            return self._changes

    def known(self, begun: int) -> float | None:
        """Return in how many seconds the next item is due, if that was known before and nothing has happened since."""
        with self._hub.lock:
            if not (self.dry and begun == self._changes and self._hub.watches(self.name)):
                return None
            return max(0.0, self.due - time.monotonic())

    def nothing(self, ticket: Waiter, begun: int, due: float) -> None:
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

    @property
    def changes(self) -> int:
        """How often something has happened here."""
        return self._changes

    def looked(self, begun: int, due: float) -> None:
        """Take note of what another room's look has found of this queue as well."""
        with self._hub.lock:
            now = time.monotonic()
            self.poll = now + self.pause(now)
            if due <= 0:
                self.call(1)
            elif begun == self._changes or now + due < self.due:
                self.due = now + due
                if self.tickets:
                    self.tickets[0].ring()

    def held_back(self) -> float:
        """Return for how many seconds to let others ask first, who are faster every time."""
        if self.in_vain < 2:
            return 0.0
        return dice.uniform(0, min(HOLD_BACK_FIRST * 2 ** min(self.in_vain, 10), HOLD_BACK))

    def found(self) -> None:
        """Take note that an item was claimed."""
        with self._hub.lock:
            self.emptied_at = time.monotonic()
            self.in_vain = self.early = 0

    def pause(self, now: float) -> float:
        """Return the seconds until the next look, jittered; without a stream they grow while the queue is empty."""
        if self._hub.watches(self.name):
            return LIVE_POLL * dice.uniform(0.8, 1.2)
        most = POLL_MOST if self._hub.restless() else POLL_IDLE
        share = (now - self.emptied_at) * POLL_SHARE
        return min(max(share, POLL_FIRST), most) * dice.uniform(0.5, 1.0)

    def doze(self, ticket: Waiter) -> float:
        """Say for how many seconds a waiter may rest unless it rings, or has rung since its turn; 0 if it is to ask."""
        with self._hub.lock:
            if ticket.called or self.pending:
                return 0.0
            ticket.asleep = True
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
            if self._known.pop(key, -math.inf) > time.monotonic():  # the next of that kind is another event
                return False
            self.tell(due)
            return True

    def took(self, keys: list[Any]) -> None:
        """Remember what was claimed, of which the stream may still tell."""
        with self._hub.lock:
            for key in keys[-REMEMBERED:]:
                self._remember(key)

    def _remember(self, key: Any) -> None:
        if not self._hub.watches(self.name):
            return  # nobody will tell of it, and when it is handed back it may look just the same
        self._known[key] = time.monotonic() + REMEMBERED_FOR
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
