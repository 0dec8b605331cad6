"""The course of a worker: what all its consumers go by together. Decisions, and no I/O."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

from mongoq.errors import BrokerClosed, CollectionUnsuitable
from mongoq.protocol.bells import Bell
from mongoq.protocol.hub import Hub
from mongoq.worker.backlog import Backlog

__all__ = ["Course"]

logger = logging.getLogger("mongoq.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds of rest after an error of the server's, at first and at most."""
ALONE = 10.0
"""Seconds for which one consumer may keep the others from working."""


class _Station(Protocol):
    backlog: Backlog


class Course:
    """What all consumers of a worker go by.

    Attributes:
        stations: the consumers at work.
        hub: who waits for items in this process, to be woken.
        emptied: rings when a consumer holds nothing any more.
        changed: rings when the worker's main loop is to look.
        settled: how many items were settled, by any consumer.
        halted: the worker waits for nobody any more.
        failure: why it cannot go on.
    """

    def __init__(self, hub: Hub) -> None:
        self.stations: Sequence[_Station] = ()
        self.hub = hub
        self.emptied, self.changed = Bell(), Bell()
        self.settled = 0
        self.halted = False
        self.failure: Exception | None = None
        self._lock = Lock()
        self._alone: Any = None
        self._alone_since = self._tired_until = float("-inf")
        self._troubled: tuple[type[Exception], float] | None = None
        self._pause = FIRST_PAUSE

    def holds_anything(self) -> bool:
        """Say whether any consumer holds an item."""
        return any(station.backlog.held for station in self.stations)

    # --- one by itself ---------------------------------------------------------------------------

    def is_hushed(self, station: Any) -> bool:
        """Say whether a consumer is to leave the worker to another one for a moment."""
        alone = self._alone
        return alone is not None and alone is not station

    def hush(self, station: Any) -> bool:
        """Let one consumer have the worker to itself, if no other one has: what was not started goes back."""
        with self._lock:
            if self._alone is not None:
                return False
            self._alone, self._alone_since = station, time.monotonic()
        for one in self.stations:
            one.backlog.release_waiting()
        self.hub.wake()
        return True

    def unhush(self) -> None:
        """Let the others work again, for as long as they had to wait at least."""
        with self._lock:
            now = time.monotonic()
            self._alone, self._tired_until = None, now + now - self._alone_since
        for one in self.stations:
            one.backlog.fetching.ring()

    def is_tired(self) -> bool:
        """Say whether the others are to have their turn."""
        now = time.monotonic()
        return now < self._tired_until or (self._alone is not None and now > self._alone_since + ALONE)

    # --- the server ------------------------------------------------------------------------------

    def trouble(self, error: Exception) -> float | None:
        """Take note of an error of the server's; returns the seconds to rest, or ``None`` when it is no use.

        It is logged once, until it is over or of another kind.
        """
        if isinstance(error, BrokerClosed | CollectionUnsuitable):
            self.fail(error)
            return None
        with self._lock:
            kind, since = self._troubled or (None, time.monotonic())
            if kind is not type(error):
                logger.warning("the server does not answer as it should, and the worker tries again: %r", error)
            self._troubled = type(error), since
            pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)

    def fail(self, error: Exception) -> None:
        """Take note of what the worker cannot go on with."""
        self.failure = self.failure or error
        self.changed.ring()

    def well(self) -> None:
        """Take note that the server answers."""
        if self._troubled is None:
            return
        with self._lock:
            troubled, self._troubled, self._pause = self._troubled, None, FIRST_PAUSE
        if troubled is not None:
            logger.warning("the server answers again, after %.1f s", time.monotonic() - troubled[1])
