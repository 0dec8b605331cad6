"""The callers of this process that wait for items of one queue, and which of them asks the server next.

One change wakes one waiter, so that a hundred waiters do not send a hundred claims. A woken waiter that leaves passes
its call on. Nothing here waits or sends: the flow of ``protocol.wait.wait`` does, by what this module decides.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from threading import RLock
from typing import Any, Literal, Protocol

from mongoq.model.process import dice
from mongoq.protocol.flow import Waiter

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

Turn = Literal["ask", "look", None]
"""What a waiter does next: claim, read when the next item is due, or (``None``) sleep."""


class ChangeWatch(Protocol):
    """What a wait queue needs of the registry that holds it."""

    lock: RLock

    def watches(self, queue: str) -> bool: ...

    def restless(self) -> bool: ...

    def attend(self) -> None: ...


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
    """

    def __init__(self, registry: ChangeWatch, name: str) -> None:
        self._registry = registry
        self.name = name
        self.waiters: list[Waiter] = []
        self.dry = self.pending = False
        self.due = self.poll = math.inf
        self.left_at = self.emptied_at = time.monotonic()
        self.in_vain = self.early = 0
        self._changes = 0
        self._known: OrderedDict[Any, float] = OrderedDict()

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
        """Record that a waiter sends a claim now; return the change count to hand to ``nothing``."""
        with self._registry.lock:
            waiter.called = self.pending = False
            waiter.asking = True
            # This claim takes the item that was due: what is known of later ones comes with its result.
            if time.monotonic() >= self.due:
                self.due, self.dry = math.inf, False
            return self._changes

    def seconds_until_due(self, changes: int) -> float | None:
        """Return the seconds until the next item is due, or ``None`` when something has changed since that was read."""
        with self._registry.lock:
            if not (self.dry and changes == self._changes and self._registry.watches(self.name)):
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
            if changes == self._changes:
                self.due, self.dry = until, True
            else:
                self.due = min(self.due, until)
            self.poll = now + self.pause(now)

    @property
    def changes(self) -> int:
        """The number of changes so far; a claim that began before a change may have missed it."""
        return self._changes

    def record_poll(self, changes: int, due: float) -> None:
        """Record when the next item is due, as a poll for several queues has read it."""
        with self._registry.lock:
            now = time.monotonic()
            self.poll = now + self.pause(now)
            if due <= 0:
                self.call(1)
            elif changes == self._changes or now + due < self.due:
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
            self._registry.attend()
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
            self._changes += 1
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
            if self._known.pop(key, -math.inf) > time.monotonic():  # the next of that kind is another event
                return False
            self.tell(due)
            return True

    def forget_changes(self) -> None:
        """Forget which items this process has changed or claimed: their next stream events wake waiters."""
        with self._registry.lock:
            self._known.clear()

    def took(self, keys: list[Any]) -> None:
        """Remember claimed items whose stream events may still arrive."""
        with self._registry.lock:
            for key in keys[-REMEMBERED:]:
                self._remember(key)

    def _remember(self, key: Any) -> None:
        if not self._registry.watches(self.name):
            return  # no event will come, and one of a later rollback would have the same key
        self._known[key] = time.monotonic() + REMEMBERED_FOR
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

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
