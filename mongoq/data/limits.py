"""State of the limits of a queue at one time: what is in use, by which workers, and when the next item may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mongoq.data.encoding.extended_json import time_text


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
            **{name: getattr(self, name) for name in ("max_running", "rate", "burst", "permits")},
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


# --- permits -------------------------------------------------------------------------------------

TENURE = timedelta(seconds=2)
"""Time for which a worker comes before others that ask for the same permits; then another one has its turn."""


@dataclass(frozen=True, slots=True)
class PermitHolder:
    """A worker that holds permits of a queue, or asks for some; part of ``queue.limits()``.

    Attributes:
        by: name of the worker, as in ``broker.workers()``.
        number: permits that it holds: runs that it may have at a time.
        wanted: permits that it could use.
        since: time since which it asks, or since which it has its present turn.
        until: end of the lease of its permits, or of its request.
    """

    by: str
    number: int
    wanted: int
    since: datetime
    until: datetime

    def to_document(self) -> dict[str, Any]:
        """Return the holder as it is stored."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_holders(document: Mapping[str, Any] | None, now: datetime) -> list[PermitHolder]:
    """Return the workers with leases that have not ended."""
    stored = (document or {}).get("holders", [])
    holders = [PermitHolder(*(entry[name] for name in PermitHolder.__slots__)) for entry in stored]
    return [holder for holder in holders if holder.until > now]


def plan_permits(
    limit: int, others: Sequence[PermitHolder], mine: PermitHolder | None, *, occupied: int, wanted: int, now: datetime
) -> tuple[int, datetime]:
    """Return how many permits a worker may hold now, and its place in the line, by the time since which it asks.

    It may hold at least one for each of its ``occupied`` runs, which go on.

    A worker that holds more than its share, while others ask, takes no permit again; its runs give them back as they
    end. Those that ask longest come first where permits cannot be divided: of more workers than permits, and of the
    rest of the division. After ``TENURE`` the worker that has such a permit goes behind the others.
    """
    free = max(limit - sum(holder.number for holder in others), 0)
    since = now if mine is None else mine.since
    share = _find_share(limit, others, since, wanted)
    if mine is not None and mine.number:
        began = max([since, *(holder.since for holder in others if holder.number)])
        last = _find_share(limit, others, now, wanted)
        if now - began >= TENURE and last < share:
            since, share = now, last
    return max(occupied, min(wanted, free, share)), since


def _find_share(limit: int, others: Sequence[PermitHolder], since: datetime, wanted: int) -> int:
    """Return the share of a worker that asks since a time; at the same time the others come behind it.

    Each worker gets what it wants, or as much as the others; the first ones get what cannot be divided.
    """
    order = sorted([*((holder.since, 1, holder.wanted) for holder in others), (since, 0, wanted)])
    shares, own = [0] * len(order), order.index((since, 0, wanted))
    asking = [place for place, (_, _, number) in enumerate(order) if number > 0]
    while asking and limit > 0:
        each = limit // len(asking)
        if each == 0:
            return shares[own] + (own in asking[:limit])
        for place in asking:
            more = min(each, order[place][2] - shares[place])
            shares[place] += more
            limit -= more
        asking = [place for place in asking if shares[place] < order[place][2]]
    return shares[own]
