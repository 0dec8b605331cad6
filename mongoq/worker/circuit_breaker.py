"""The breaker of a queue whose handler keeps failing: one item at a time is tried until one succeeds."""

from __future__ import annotations

from mongoq.model.policy import RetryPolicy

__all__ = ["CircuitBreaker"]

MAX_PAUSE_SECONDS = 30.0
"""Seconds between two tries, at most: the other side may be back."""


class CircuitBreaker:
    """Closed while the handler keeps failing; then failures are nobody's fault, and use up no attempts.

    Attributes:
        is_open: the last run has failed.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._failures = 0
        self._resume_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._failures > 0

    def record_failure(self, now: float) -> bool:
        """Take note of a failure, and say whether the attempt counts: the one that closes it does."""
        counts = not self.is_open
        self._failures += 1
        pause = self._retry.delay(self._failures).total_seconds()
        self._resume_at = now + min(pause, MAX_PAUSE_SECONDS)
        return counts

    def record_success(self) -> bool:
        """Take note of a success, and say whether it has opened."""
        was_open, self._failures = self.is_open, 0
        return was_open

    def pause(self, now: float) -> float:
        """Return in how many seconds the next item may be tried."""
        return max(0.0, self._resume_at - now) if self.is_open else 0.0
