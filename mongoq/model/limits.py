"""State of the limits of a queue at one time: what is in use, by which workers, and when the next item may start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mongoq.model.clock import milliseconds, time_of
from mongoq.model.encoding.extended_json import time_text
from mongoq.model.permits import PermitHolder, read_holders
from mongoq.model.rate import Pace
from mongoq.model.settings import QueueSettings


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a queue, and what is used of them; made by ``queue.limits()``.

    Attributes:
        queue: name of the queue.
        read_at: time of the read, on the server's clock.
        max_running: items that may run at a time, over the workers of all processes; ``None`` for no limit.
        rate: items that may start in a time, such as ``"100/m"``; ``None`` for no limit.
        burst: items that may start at once under the rate; ``None`` for the default of the rate.
        holders: workers that hold permits of ``max_running``, or ask for some (their ``number`` is 0).
        next_start: time of the first start under the rate that no worker has taken; ``None`` if an item may start now.
            Where the consumer has a ``rate_key``, each key has a rate to itself, and items that wait are scheduled.
    """

    queue: str
    read_at: datetime
    max_running: int | None = None
    rate: str | None = None
    burst: int | None = None
    holders: tuple[PermitHolder, ...] = ()
    next_start: datetime | None = None

    @property
    def permits(self) -> int:
        """Number of permits that workers hold: items that may run now."""
        return sum(holder.number for holder in self.holders)

    @property
    def reason(self) -> str | None:
        """Why no further item starts now, as text; ``None`` if the limits let one start."""
        reasons = []
        if self.max_running is not None and self.permits >= self.max_running:
            reasons.append(f"workers hold {self.permits} of {self.max_running} permits")
        if self.next_start is not None:
            reasons.append(f"the next start under {self.rate} is at {time_text(self.next_start)}")
        return "; ".join(reasons) or None

    def to_document(self) -> dict[str, Any]:
        """Return the limits as values of JSON."""
        return {
            "max_running": self.max_running,
            "rate": self.rate,
            "burst": self.burst,
            "permits": self.permits,
            "holders": [
                {
                    "worker": holder.by,
                    "permits": holder.number,
                    "wanted": holder.wanted,
                    "until": time_text(holder.until),
                }
                for holder in self.holders
            ],
            "next_start": None if self.next_start is None else time_text(self.next_start),
            "reason": self.reason,
        }


def describe_start(limits: QueueLimits, *, paused: bool, consumers: int) -> str:
    """Return in a line for people whether an item of the queue may start now, and else why none does.

    ``paused`` is True while claims of the queue are stopped; ``consumers`` counts its live workers.
    """
    reasons = ["the queue is paused"] if paused else []
    if consumers == 0 and limits.permits == 0:  # a worker may hold permits before its first heartbeat
        reasons.append("no worker consumes the queue")
    if limits.reason is not None:
        reasons.append(limits.reason)
    return "; ".join(reasons) or "an item may start now"


def make_limits(
    settings: QueueSettings,
    permits: Mapping[str, Any] | None,
    bucket: Mapping[str, Any] | None,
    now: datetime,
    *,
    exact: bool = False,
) -> QueueLimits:
    """Return the limits of a queue by its settings and its control documents, ``None`` where there is none.

    What another program has stored there in another form counts as nothing. ``exact`` for a clock that stands still.
    """
    return QueueLimits(
        settings.name,
        now,
        settings.max_running,
        settings.rate,
        settings.burst,
        () if settings.max_running is None else _find_holders(permits, now),
        _find_next_start(settings.make_pace(exact=exact), bucket, now),
    )


def _find_holders(document: Mapping[str, Any] | None, now: datetime) -> tuple[PermitHolder, ...]:
    try:
        holders = read_holders(document, now)
        return tuple(sorted(holders, key=lambda holder: (-holder.number, holder.since, holder.by)))
    except (AttributeError, KeyError, TypeError):
        return ()


def _find_next_start(pace: Pace | None, bucket: Mapping[str, Any] | None, now: datetime) -> datetime | None:
    if pace is None or bucket is None:
        return None
    try:
        # A bucket that was written under another rate: the interval of this one holds for its next start.
        first = float(bucket["next"]) - float(bucket["interval"]) + pace.interval
        return time_of(math.ceil(first)) if first > milliseconds(now) else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
