"""One clock for all processes: the server's, computed from a local clock and an offset.

Eligibility and leases are dates that several machines compare, so each of them must mean the same by "now".
``ServerClock`` keeps the offset between the server's clock and a local clock that goes on while the machine sleeps. It
does no I/O: the core measures and passes the samples in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from mongoq.data.arguments import Duration, duration, moment
from mongoq.errors import ServerUnavailable

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Zero of BSON's dates."""
MILLISECOND = timedelta(milliseconds=1)
CLOCK_REFRESH_SECONDS = 60.0
"""Seconds after which an offset is measured again."""
REMEASURE_SECONDS = 1.0
"""Seconds after which a failed measurement is tried again."""
MAX_DRIFT_SECONDS = 0.25
"""Seconds of difference between wall and local clock after which the offset is measured again."""
NEVER_MEASURED = "the server's clock was never measured: no server has answered this broker yet"
SLEW_RATE = 0.5
"""Share of normal speed at which the clock runs while it is ahead, so that it never runs backwards."""


def milliseconds(time: datetime) -> int:
    """Return a time in milliseconds since 1970."""
    return (time - EPOCH) // MILLISECOND


def time_of(milliseconds: int) -> datetime:
    """Return the time of a number of milliseconds since 1970."""
    return EPOCH + milliseconds * MILLISECOND


_LOCAL = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

local_seconds: Callable[[], float] = time.monotonic if _LOCAL is None else partial(time.clock_gettime, _LOCAL)
"""Seconds of a local clock that goes on while the machine sleeps, if the system has one."""


class Clock:
    """The clock that the core needs. Times are aware, in UTC, in whole milliseconds."""

    def now(self) -> datetime:
        """Return the server's time, as well as it is known."""
        raise NotImplementedError

    def stamp(self) -> datetime:
        """Return a time that no other process can still see in the future; never runs backwards."""
        return self.now()

    def now_milliseconds(self) -> int:
        """Return a ``stamp`` in milliseconds since 1970, as BSON holds it: a ``datetime`` takes long to make."""
        return milliseconds(self.now())

    def due(self) -> bool:
        """Return whether the offset should be measured before the next command; never without a server."""
        return False


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the server's time: local seconds before and after, and the server's answer."""

    sent_at: float
    received: float
    server: datetime

    @property
    def round_trip(self) -> float:
        """Seconds between question and answer."""
        return self.received - self.sent_at

    @property
    def offset(self) -> float:
        """Server seconds minus local seconds; the answer is cut to milliseconds, so half of one is added."""
        return (self.server - EPOCH).total_seconds() + 0.0005 - (self.sent_at + self.received) / 2

    @property
    def uncertainty(self) -> float:
        """Seconds by which ``offset`` can be wrong, at most."""
        return self.round_trip / 2 + 0.0005


@dataclass(frozen=True, slots=True)
class _Reckoning:
    """All values of one correction, replaced as a whole so that threads never see half of a correction.

    There is no lock, which a fork could leave locked in the child: the step from one correction to the next never goes
    backwards.

    Attributes:
        offset: server seconds minus local seconds.
        uncertainty: seconds by which the offset can be wrong.
        ahead: seconds by which the clock was ahead at ``since``; it loses them at half speed.
        since: local seconds of the correction.
        wall_gap: wall seconds minus local seconds at the correction.
    """

    offset: float
    uncertainty: float
    ahead: float
    since: float
    wall_gap: float

    def milliseconds(self, local: float) -> float:
        ahead = max(0.0, self.ahead - (local - self.since) * (1 - SLEW_RATE))
        return (local + self.offset + ahead) * 1000


class ServerClock(Clock):
    """The server's clock, computed locally between measurements.

    Within a process it never runs backwards: a correction forward takes effect at once. For a correction backward, it
    runs at half speed until the server has caught up.
    """

    def __init__(self, *, local: Callable[[], float] = local_seconds, wall: Callable[[], float] = time.time) -> None:
        self.local = local
        self._wall = wall
        self._reckoning: _Reckoning | None = None
        self._disturbed = True
        self._last = self._last_stamp = self._not_before = -math.inf

    def due(self) -> bool:
        """Return whether to measure: at first, every minute, after a failover, and when a clock has jumped."""
        reckoning = self._reckoning
        if reckoning is None:
            return True
        local = self.local()
        if local < self._not_before:
            return False
        old = self._disturbed or local - reckoning.since > CLOCK_REFRESH_SECONDS
        return old or not -MAX_DRIFT_SECONDS <= self._wall() - local - reckoning.wall_gap <= MAX_DRIFT_SECONDS

    def disturb(self) -> None:
        """Request a measurement before the next command: another server may be primary now."""
        self._disturbed = True

    def postpone(self) -> None:
        """Keep the known offset for a moment after a failed measurement."""
        self._not_before = self.local() + REMEASURE_SECONDS

    def adopt(self, samples: Sequence[Sample]) -> None:
        """Use the offset of the sample with the shortest round trip from now on."""
        best = min(samples, key=lambda sample: sample.round_trip)
        local = self.local()
        before = self._reckoning.milliseconds(local) if self._reckoning else -math.inf
        # A correction backward: the clock keeps its time, and loses the difference slowly.
        ahead = max(0.0, before / 1000 - (local + best.offset))
        self._reckoning = _Reckoning(best.offset, best.uncertainty, ahead, local, self._wall() - local)
        self._disturbed = False

    def now(self) -> datetime:
        """Return the server's time; raises ``ServerUnavailable`` when it was never measured."""
        if self._reckoning is None:
            raise ServerUnavailable(NEVER_MEASURED)
        self._last = max(self._last, self._reckoning.milliseconds(self.local()))
        return time_of(int(self._last))

    def stamp(self) -> datetime:
        """Return ``now`` minus the uncertainty of both ends, so that a consumer woken by a push finds the item."""
        return time_of(self.now_milliseconds())

    def now_milliseconds(self) -> int:
        """Return ``stamp`` in milliseconds since 1970."""
        reckoning = self._reckoning
        if reckoning is None:
            raise ServerUnavailable(NEVER_MEASURED)
        early = reckoning.milliseconds(self.local()) - 2000 * reckoning.uncertainty
        self._last_stamp = max(self._last_stamp, early)
        return int(self._last_stamp)


class LocalClock(Clock):
    """The clock of this machine, for a collection that has no server (mongomock)."""

    def now(self) -> datetime:
        """Return the machine's time."""
        return time_of(int(time.time() * 1000))


class VirtualClock(Clock):
    """A clock for tests that stands still until ``advance`` moves it."""

    def __init__(self, start: datetime = datetime(2024, 1, 1, tzinfo=UTC)) -> None:
        self._now = moment(start, "start")

    def now(self) -> datetime:
        """Return the time it was set to."""
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Move on by a duration, such as ``60`` (seconds) or ``"5m"``, and return the new time."""
        self._now = moment(self._now + duration(by, "by"), "by")
        return self._now


def roughly_now(clock: Clock) -> datetime:
    """Return the time by a clock, or by this machine's where no server has answered yet."""
    try:
        return clock.now()
    except ServerUnavailable:
        return datetime.now(UTC)
