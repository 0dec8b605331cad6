"""Counter flush: a driver writes counters some seconds after callers have counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from mongoq.data.process import Counters
from mongoq.drivers import backend

logger = logging.getLogger("mongoq.drive")

FLUSH_INTERVAL_SECONDS = 5.0
"""Seconds from the first operation to the write of the counters."""
FLUSH_TIMEOUT_SECONDS = 2.0
"""Seconds that the write may take: a broker has to close in good time even if its server has gone."""

Write = Callable[[], Any]
StartLater = Callable[[float, Write, Callable[[], None]], Callable[[], None]]
"""Starts a write after some seconds, with a function to be called at its end; returns a function that cancels it."""


class CounterFlush:
    """Writes counters some seconds after the first operation.

    Attributes:
        write: writes the counters now; a coroutine function on asyncio.
        armed: True while a write of the counters is scheduled.
    """

    def __init__(self, counters: Counters, write: Write, start_later: StartLater) -> None:
        self._counters = counters
        self.write = write
        self._start_later = start_later
        self._cancel: Callable[[], None] | None = None
        self.armed = self._stopped = False
        backend.register(self)

    def arm(self) -> None:
        """Schedule a write, if none is. Called before each operation, so that a failure here cannot fail one."""
        if not self.armed and not self._stopped:
            self.armed = True
            try:
                self._cancel = self._start_later(FLUSH_INTERVAL_SECONDS, self.write, self._finish)
            except RuntimeError as error:  # no thread can be started just now
                self.armed = False
                logger.debug("counters will be written later: %r", error)

    def rearm(self) -> None:
        """Schedule a write of counts that an operation has left; it may outlast the write scheduled by ``arm``."""
        if not self.armed and self._counters:
            self.arm()

    def _finish(self) -> None:
        """End a scheduled write; callers may have counted meanwhile."""
        self.armed = False
        self.rearm()

    def stop(self) -> None:
        """Schedule no further write: the driver closes, and writes the rest itself."""
        self._stopped = True
        if self._cancel is not None:
            self._cancel()

    def forget(self) -> None:
        """Reset in a forked child: the parent writes its own counts."""
        self._counters.take()
        self.armed = False
        self._cancel = None
