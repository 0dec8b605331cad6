"""Attempts: failed logins of the last minute, and how long callers wait for the next one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

MAX_FAILURES = 10
"""Failed logins of one address in a minute, at most."""
MAX_FAILURES_IN_ALL = 100
"""Failed logins of all addresses in a minute, at most."""
WINDOW_SECONDS = 60.0
MAX_KNOWN = 1_000
"""Addresses that are known by a login, at most."""


class Attempts:
    """Counts failed logins, so that no caller tries many secrets.

    An address that has logged in before has its own limit only: others cannot lock it out by using up the one of all.

    Args:
        clock: returns seconds; another one only in tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: deque[tuple[float, str]] = deque(maxlen=MAX_FAILURES_IN_ALL)
        self._known: dict[str, None] = {}

    def find_wait(self, address: str) -> float:
        """Return the seconds until a login of an address is tried again; 0 for now."""
        now = self._clock()
        while self._failures and self._failures[0][0] <= now - WINDOW_SECONDS:
            self._failures.popleft()
        own = [at for at, caller in self._failures if caller == address]
        if len(own) >= MAX_FAILURES:
            return own[-MAX_FAILURES] + WINDOW_SECONDS - now
        if len(self._failures) < MAX_FAILURES_IN_ALL or address in self._known:
            return 0.0
        return self._failures[0][0] + WINDOW_SECONDS - now

    def record_failure(self, address: str) -> None:
        """Count a failed login."""
        self._failures.append((self._clock(), address))

    def record_success(self, address: str) -> None:
        """Note an address that has logged in."""
        self._known.pop(address, None)
        self._known[address] = None  # the last of the dictionary is the one that logged in last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
