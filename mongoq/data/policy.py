"""Retry policies: the time that a failed item waits for its next run. Pure functions, except for the random jitter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any

from mongoq.data.arguments import LONGEST_DURATION, Duration, count, duration
from mongoq.data.process import dice as own
from mongoq.errors import ArgumentInvalid


@dataclass(frozen=True, slots=True)
class RetryPolicy(ABC):
    """Defines how long a failed item waits; the three policies differ in the growth of the delay.

    Attributes:
        base: delay before the first retry, a ``timedelta`` or seconds.
        cap: longest delay, a ``timedelta`` or seconds; ``None`` for no bound of its own.
        jitter: each delay is random, up to this share shorter or longer (0 to 1), so that items that failed together do
            not come back together. A delay may exceed ``cap`` by that share.

    Raises:
        ArgumentInvalid: a value cannot be used; the message names it.
    """

    base: Duration = 1
    _: KW_ONLY
    cap: Duration | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        duration(self.base, "base")
        if self.cap is not None:
            duration(self.cap, "cap")
        _number(self.jitter, "jitter", least=0, most=1)

    def delay(self, retry: int, dice: Callable[[], float] = own.random) -> timedelta:
        """Return the delay before a retry.

        Args:
            retry: number of the retry; the first is 1.
            dice: returns a number from 0 to 1, for the jitter.

        Raises:
            ArgumentInvalid: ``retry`` is not a whole number from 1 up.
        """
        seconds = self._seconds(duration(self.base, "base").total_seconds(), count(retry, "retry"))
        if self.cap is not None:
            seconds = min(seconds, duration(self.cap, "cap").total_seconds())
        if self.jitter:
            seconds *= 1 + self.jitter * (2 * dice() - 1)
        return duration(min(seconds, LONGEST_DURATION.total_seconds()), "delay")

    @abstractmethod
    def _seconds(self, base: float, retry: int) -> float:
        """Return the delay before cap and jitter are applied."""


@dataclass(frozen=True, slots=True)
class Fixed(RetryPolicy):
    """The same delay before every retry: ``base``, default one second."""

    def _seconds(self, base: float, retry: int) -> float:
        return base


@dataclass(frozen=True, slots=True)
class Linear(RetryPolicy):
    """``base``, then twice, then three times as long, and so on."""

    def _seconds(self, base: float, retry: int) -> float:
        return base * retry


@dataclass(frozen=True, slots=True)
class Exponential(RetryPolicy):
    """``base``, then ``factor`` times as long each time; bounded by ``cap``, default one hour.

    Attributes:
        factor: growth per retry, from 1 up.
    """

    _: KW_ONLY
    cap: Duration | None = 3600
    jitter: float = 0.1
    factor: float = 2.0

    def __post_init__(self) -> None:
        RetryPolicy.__post_init__(self)
        _number(self.factor, "factor", least=1, most=1e9)

    def _seconds(self, base: float, retry: int) -> float:
        try:
            return float(base * self.factor ** (retry - 1))
        except OverflowError:
            # Beyond the range of a float; ``delay`` cuts it to the cap. A base of 0 stays 0.
            return LONGEST_DURATION.total_seconds() if base else 0.0


def _number(value: Any, argument: str, *, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentInvalid(argument, f"a number from {least} to {most:g}, not {value!r}")
