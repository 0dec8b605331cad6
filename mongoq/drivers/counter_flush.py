"""What a driver does by itself a while after its callers gave it something to do."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pymongo

from mongoq.drivers import fork
from mongoq.model.process.counters import Counters
from mongoq.protocol.flow.commands import Flow

__all__ = ["FLUSH_INTERVAL_SECONDS", "CounterFlush"]

logger = logging.getLogger("mongoq.drive")

FLUSH_INTERVAL_SECONDS = 5.0
"""Seconds after which counters are written."""
FLUSH_TIMEOUT_SECONDS = 2.0
"""Seconds that writing them may take: a broker closes in good time though its server has gone."""


class CounterFlush(ABC):
    """Writes counters down some seconds after the first of them; each kind of driver has a clock of its own.

    Attributes:
        armed: what is counted now will be written, and there is nothing to see to.
    """

    def __init__(self, counters: Counters, flush: Callable[[], Flow[None]]) -> None:
        self._counters = counters
        self.flush = flush
        self.armed = self._stopped = False
        fork.register(self)

    def arm(self) -> None:
        """See to it that what an operation counts will be written; called before each, so that it can fail nothing."""
        if not self.armed and not self._stopped:
            self.armed = True
            try:
                self._arm(FLUSH_INTERVAL_SECONDS)
            except RuntimeError as error:  # no thread can be started just now
                self.armed = False
                logger.debug("counters will be written later: %r", error)

    def rearm(self) -> None:
        """See to what an operation counted; called after each, since it may outlast what ``arm`` had armed."""
        if not self.armed and self._counters:
            self.arm()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write what was counted, in here; what cannot be written stays for the next time."""
        try:
            with pymongo.timeout(FLUSH_TIMEOUT_SECONDS):
                yield
        except Exception as error:
            logger.debug("counters could not be written: %r", error)
        finally:
            self.armed = False
            self.rearm()  # something may have been counted meanwhile

    @abstractmethod
    def _arm(self, seconds: float) -> None:
        """Have what was counted written after so many seconds."""

    def stop(self) -> None:
        """Start nothing any more: the driver closes, and writes the rest itself."""
        self._stopped = True
        self._disarm()

    @abstractmethod
    def _disarm(self) -> None:
        """Let what was armed not happen."""

    def forget(self) -> None:
        """Start afresh in a forked child: what was counted is the parent's to write."""
        self._counters.take()
        self.armed = False
