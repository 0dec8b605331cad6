"""The options of a read, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from mongoq.errors import ArgumentInvalid
from mongoq.spark.given import PLACE, Given, Place
from mongoq.spark.selection import WAYS, Queues
from mongoq.spark.views import VIEWS, Period

__all__ = ["KNOWN", "ReadOptions"]

DEFAULT_VIEW = "live"
KNOWN = (*PLACE, *WAYS, "view", "since", "until", "partitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how to split it."""

    place: Place
    queues: Queues
    view: str
    period: Period
    partitions: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check the options of a Spark reader; their names come in any case.

        Raises:
            ArgumentInvalid: an option that is unknown, missing, or has a value out of its range.
            QueueNameInvalid: no queue has this name.
        """
        given = Given(options, KNOWN)
        return cls(
            place=given.place(),
            queues=Queues.parse(given.options),
            view=given.choice("view", VIEWS, DEFAULT_VIEW),
            period=_period(given.moment("since"), given.moment("until")),
            partitions=given.whole("partitions"),
        )


def _period(since: datetime | None, until: datetime | None) -> Period:
    if since is not None and until is not None and until < since:
        raise ArgumentInvalid("until", f"it is before since: {until.isoformat()} and {since.isoformat()}")
    return Period.between(since, until)
