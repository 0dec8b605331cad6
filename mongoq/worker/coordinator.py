"""The course of a worker: what all its consumers go by together. Decisions, and no I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from mongoq.drivers.errors import UNAUTHORIZED, missing_right
from mongoq.errors import BrokerClosed, CollectionUnsuitable
from mongoq.model.encoding.error_text import spoken
from mongoq.model.item import Item
from mongoq.model.process.jitter import dice
from mongoq.protocol.flow.event import WakeEvent
from mongoq.protocol.state.waiter_registry import WaiterRegistry
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer

__all__ = ["Coordinator"]

logger = logging.getLogger("mongoq.worker")

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
"""Seconds of rest after an error of the server's, at first and at most."""
MAX_EXCLUSIVE_SECONDS = 10.0
"""Seconds for which one consumer may keep the others from working."""


QUIET_WAIT_SECONDS = 2.0
"""Seconds for which one consumer waits at first until the others have ended what they run."""


@dataclass(slots=True)
class _Outage:
    """What is wrong with one kind of command."""

    since: float
    kinds: set[type[Exception]] = field(default_factory=set)
    pause: float = MIN_BACKOFF_SECONDS


class _ConsumerLoop(Protocol):
    backlog: Backlog
    claiming: bool
    consumer: Consumer
    halted: tuple[Item[Any], BaseException | str | None] | None


class Coordinator:
    """What all consumers of a worker go by.

    Attributes:
        loops: the consumers at work.
        hub: who waits for items in this process, to be woken.
        emptied: rings when a consumer holds nothing any more.
        changed: rings when the worker's main loop is to look.
        settled: how many items were settled, by any consumer.
        halted: the worker waits for nobody any more.
        quiet_wait: for how many seconds one consumer waits for the others to have nothing left.
        failure: why it cannot go on.
    """

    def __init__(self, hub: WaiterRegistry) -> None:
        self.loops: Sequence[_ConsumerLoop] = ()
        self.hub = hub
        self.emptied, self.changed = WakeEvent(), WakeEvent()
        self.settled = 0
        self.halted = False
        self.failure: BaseException | None = None
        self._lock = Lock()
        self._exclusive: Any = None
        self._exclusive_since = self._others_until = float("-inf")
        self.quiet_wait = QUIET_WAIT_SECONDS
        self._outages: dict[str, _Outage] = {}

    def holds_anything(self) -> bool:
        """Say whether any consumer holds an item, or runs one that it has lost."""
        return any(loop.backlog.is_at_work for loop in self.loops)

    def is_at_work(self) -> bool:
        """Say whether any consumer holds an item, or may be about to."""
        return self.holds_anything() or any(loop.claiming for loop in self.loops)

    # --- one by itself ---------------------------------------------------------------------------

    def is_paused(self, loop: Any) -> bool:
        """Say whether a consumer is to leave the worker to another one for a moment."""
        alone = self._exclusive
        return alone is not None and alone is not loop

    def pause_others(self, loop: Any) -> bool:
        """Let one consumer have the worker to itself, if no other one has: what was not started goes back."""
        with self._lock:
            if self._exclusive is not None:
                return False
            self._exclusive, self._exclusive_since = loop, time.monotonic()
        for one in self.loops:
            one.backlog.release_waiting()
        self.hub.wake()
        return True

    def resume_others(self, *, in_vain: bool) -> None:
        """Let the others work again, for as long as they had to wait at least.

        When some of them ran for so long that the one has waited ``in_vain``, it waits for twice as long next time.
        """
        with self._lock:
            now = time.monotonic()
            waited = now - self._exclusive_since
            self._exclusive, self._others_until = None, max(self._others_until, now + waited * (2 if in_vain else 1))
            self.quiet_wait = self.quiet_wait * 2 if in_vain else QUIET_WAIT_SECONDS
        for one in self.loops:
            one.backlog.fetch_event.ring()

    def is_turn_of_others(self) -> bool:
        """Say whether the others are to have their turn."""
        now = time.monotonic()
        return now < self._others_until or (
            self._exclusive is not None and now > self._exclusive_since + MAX_EXCLUSIVE_SECONDS
        )

    # --- the server ------------------------------------------------------------------------------

    def report_error(self, what: str, error: Exception) -> float | None:
        """Take note of an error of the server's; returns the seconds to rest, or ``None`` when it is no use.

        Until that is over, it is logged once for ``what`` was tried and each kind of error: a driver that
        looks for a server again and again meets two or three of them by turns.
        """
        if isinstance(error, BrokerClosed | CollectionUnsuitable):
            self.fail(error)
            return None
        with self._lock:
            outage = self._outages.setdefault(what, _Outage(time.monotonic()))
            if type(error) not in outage.kinds:
                outage.kinds.add(type(error))
                logger.warning(
                    "the server does not %s as it should, and the worker tries again: %s", what, _error_text(error)
                )
            pause, outage.pause = outage.pause, min(outage.pause * 2, MAX_BACKOFF_SECONDS)
        return pause * dice.uniform(0.5, 1.0)

    @property
    def is_cut_off(self) -> bool:
        """Say whether the broker was closed: nothing can be settled any more."""
        return isinstance(self.failure, BrokerClosed)

    def fail(self, error: BaseException) -> None:
        """Take note of what the worker cannot go on with."""
        self.failure = self.failure or error
        self.changed.ring()

    def report_recovery(self, what: str) -> None:
        """Take note that something is done again."""
        if not self._outages:
            return
        with self._lock:
            outage = self._outages.pop(what, None)
        if outage is not None:
            logger.warning("the server does %s again, after %.1f s", what, time.monotonic() - outage.since)


def _error_text(error: Exception) -> str:
    """Say what is wrong with the server; what it says of a refused document or command may quote payloads."""
    code = getattr(error, "code", None)
    if code is None:
        return spoken(error)
    right = f": the server {missing_right(error)}" if code == UNAUTHORIZED else ""
    return f"{type(error).__name__}, code {code}{right}"
