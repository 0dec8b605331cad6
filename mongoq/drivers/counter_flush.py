"""Counter flush: a driver writes counters some seconds after callers have counted."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pymongo

from mongoq.drivers import backend
from mongoq.model.process import Counters
from mongoq.protocol.flow import Flow

__all__ = ["FLUSH_INTERVAL_SECONDS", "AioCounterFlush", "CounterFlush"]

logger = logging.getLogger("mongoq.drive")

FLUSH_INTERVAL_SECONDS = 5.0
"""Seconds from the first count to the write of the counters."""
FLUSH_TIMEOUT_SECONDS = 2.0
"""Seconds that the write may take: a broker has to close in good time even if its server has gone."""


class CounterFlush(ABC):
    """Writes counters some seconds after the first count; each kind of driver has its own timer.

    Attributes:
        armed: True while a write of the counters is scheduled.
    """

    def __init__(self, counters: Counters, flush: Callable[[], Flow[None]]) -> None:
        self._counters = counters
        self.flush = flush
        self.armed = self._stopped = False
        backend.register(self)

    def arm(self) -> None:
        """Schedule a write, if none is. Called before each operation, so that a failure here cannot fail one."""
        if not self.armed and not self._stopped:
            self.armed = True
            try:
                self._arm(FLUSH_INTERVAL_SECONDS)
            except RuntimeError as error:  # no thread can be started just now
                self.armed = False
                logger.debug("counters will be written later: %r", error)

    def rearm(self) -> None:
        """Schedule a write of counts that an operation has left; it may outlast the write scheduled by ``arm``."""
        if not self.armed and self._counters:
            self.arm()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write the counters in this block; counts that cannot be written stay for the next time."""
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
        """Schedule a write of the counters."""

    def stop(self) -> None:
        """Schedule no further write: the driver closes, and writes the rest itself."""
        self._stopped = True
        self._disarm()

    @abstractmethod
    def _disarm(self) -> None:
        """Cancel the scheduled write."""

    def forget(self) -> None:
        """Reset in a forked child: the parent writes its own counts."""
        self._counters.take()
        self.armed = False


class AioCounterFlush(CounterFlush):
    """Writes counters from a task of the driver, started by a timer of the event loop."""

    def __init__(
        self,
        counters: Counters,
        flush: Callable[[], Flow[None]],
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        run: Callable[[Flow[None]], Awaitable[None]],
    ) -> None:
        super().__init__(counters, flush)
        self._own = own
        self._run = run
        self._timer: asyncio.TimerHandle | None = None

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._own(self.write()).add_done_callback(self._disarm_if_cancelled)

    def _disarm_if_cancelled(self, task: asyncio.Task[None]) -> None:
        """Let the next operation arm the timer again, after a task that was cancelled before its first step."""
        if task.cancelled():
            self.armed = False

    async def write(self) -> None:
        """Write the counters."""
        with self.writing():
            await self._run(self.flush())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
