"""Permits: how many runs of a queue each worker may hold under ``max_running``, divided fairly between workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

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
        return {
            "by": self.by,
            "number": self.number,
            "wanted": self.wanted,
            "since": self.since,
            "until": self.until,
        }


def read_holders(document: Mapping[str, Any] | None, now: datetime) -> list[PermitHolder]:
    """Return the workers with leases that have not ended."""
    stored = (document or {}).get("holders", [])
    holders = [PermitHolder(*(entry[name] for name in PermitHolder.__slots__)) for entry in stored]
    return [holder for holder in holders if holder.until > now]


def share_permits(limit: int, wanted: Sequence[int]) -> list[int]:
    """Divide permits: each gets what it wants, or as much as the others; the first ones get what cannot be divided."""
    shares = [0] * len(wanted)
    asking = [place for place, number in enumerate(wanted) if number > 0]
    while asking and limit > 0:
        each = limit // len(asking)
        if each == 0:
            for place in asking[:limit]:
                shares[place] += 1
            break
        for place in asking:
            more = min(each, wanted[place] - shares[place])
            shares[place] += more
            limit -= more
        asking = [place for place in asking if shares[place] < wanted[place]]
    return shares


class PermitPlan(NamedTuple):
    """What a worker may have now: a number of permits, and its place in the line, by the time since which it asks."""

    number: int
    since: datetime


def plan_permits(
    limit: int, others: Sequence[PermitHolder], mine: PermitHolder | None, *, occupied: int, wanted: int, now: datetime
) -> PermitPlan:
    """Return how many permits a worker may hold now: at least one for each of its ``occupied`` runs, which go on.

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
    return PermitPlan(max(occupied, min(wanted, free, share)), since)


def _find_share(limit: int, others: Sequence[PermitHolder], since: datetime, wanted: int) -> int:
    """Return the share of a worker that asks since a time; at the same time the others come behind it."""
    order = sorted([*((holder.since, 1, holder.wanted) for holder in others), (since, 0, wanted)])
    return share_permits(limit, [number for _, _, number in order])[order.index((since, 0, wanted))]
