"""Circuit breaker of a consumer: while its handler keeps failing, one item at a time is tried until one succeeds."""

from __future__ import annotations

from mongoq.model.policy import RetryPolicy

__all__ = ["CircuitBreaker"]

MAX_PAUSE_SECONDS = 30.0
"""Longest pause between two tries, in seconds: the remote system may be back."""


class CircuitBreaker:
    """Open while the handler keeps failing. Failures do not use up attempts then: the items are not at fault.

    Attributes:
        is_open: True when the last run has failed.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._failures = 0
        self._resume_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._failures > 0

    def record_failure(self, now: float) -> bool:
        """Record a failure; returns whether the attempt counts. The failure that opens the breaker does."""
        counts = not self.is_open
        self._failures += 1
        pause = self._retry.delay(self._failures).total_seconds()
        self._resume_at = now + min(pause, MAX_PAUSE_SECONDS)
        return counts

    def record_success(self) -> bool:
        """Record a success; returns whether the breaker was open."""
        was_open, self._failures = self.is_open, 0
        return was_open

    def pause(self, now: float) -> float:
        """Return the seconds until the next item may be tried."""
        return max(0.0, self._resume_at - now) if self.is_open else 0.0
