"""Health of a broker: errors of a check in words, and checks that are repeated to report changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any

from pymongo.errors import PyMongoError

from mongoq.data.process import Health
from mongoq.drivers.backend import is_outage
from mongoq.drivers.errors import describe_refused_user, is_refused_user
from mongoq.errors import BrokerClosed, MongoqError

logger = logging.getLogger("mongoq.health")

CHECK_ERRORS = (MongoqError, PyMongoError, OSError)
"""Errors of a check that are reasons; others are faults of the caller, such as a foreign event loop."""

StartLater = Callable[[float, Callable[[], Any], Callable[[], None]], Callable[[], None]]


def describe_trouble(error: Exception, seconds: float) -> str:
    """Return what keeps a broker from working, without credentials and values of documents."""
    if isinstance(error, BrokerClosed):
        return "the broker is closed"
    if isinstance(error, MongoqError):
        return str(error)
    kind, code = type(error).__name__, getattr(error, "code", None)
    if is_refused_user(error):
        return f"the server {describe_refused_user(error)}"
    if is_outage(error) or getattr(error, "timeout", False):
        return f"no server that takes writes answered within {seconds:g} s ({kind})"
    return f"the server answers with an error: {kind}" + ("" if code is None else f", code {code}")


class HealthWatch:
    """Checks a broker's health again and again, and calls a function at each change; it begins as healthy.

    Args:
        check: checks once and calls ``report``; a coroutine function on asyncio.
        start_later: starts the check after some seconds, and returns a function that cancels it.
        every: seconds between two checks.
        callback: function of the user, called with the health.
    """

    def __init__(
        self,
        check: Callable[[HealthWatch], Any],
        start_later: StartLater,
        *,
        every: float,
        callback: Callable[[Health], Any],
    ) -> None:
        self._check = check
        self._start_later = start_later
        self._every = every
        self._callback = callback
        self._healthy = True
        self._stopped = False
        # A check may end, and schedule the next one, before the caller that has started it goes on.
        self._lock = Lock()
        with self._lock:
            self._cancel: Callable[[], None] = self._schedule(0.0)

    def report(self, health: Health) -> Any:
        """Call the callback if the health has changed, and return its result."""
        if self._stopped or health.healthy == self._healthy:
            return None
        self._healthy = health.healthy
        return self._callback(health)

    def stop(self) -> None:
        """Check no more; a check under way reports nothing. Idempotent."""
        with self._lock:
            self._stopped = True
            cancel = self._cancel
        cancel()

    def _schedule(self, seconds: float) -> Callable[[], None]:
        return self._start_later(seconds, lambda: self._check(self), self._repeat)

    def _repeat(self) -> None:
        with self._lock:
            if self._stopped:
                return
            try:
                self._cancel = self._schedule(self._every)
            except RuntimeError as error:  # no thread can be started, or the event loop has ended
                logger.warning("the health is watched no more: %s", type(error).__name__)
