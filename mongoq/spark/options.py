"""The options of a read, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from mongoq.errors import ArgumentInvalid
from mongoq.spark.selection import Queues
from mongoq.spark.views import VIEWS, Period

__all__ = ["ReadOptions"]

DEFAULT_COLLECTION = "mongoq"
DEFAULT_VIEW = "live"
KNOWN = ("uri", "database", "collection", "queue", "queues", "prefix", "view", "since", "until", "partitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how to split it. The URI holds credentials and is never shown."""

    uri: str = field(repr=False)
    database: str | None
    collection: str
    queues: Queues
    view: str
    period: Period
    partitions: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check the options of a Spark reader; their names come in any case.

        Raises:
            ArgumentInvalid: an option that is unknown, missing, or has a value out of its range.
            QueueNameInvalid: no queue has this name.
        """
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            if name not in KNOWN:
                raise ArgumentInvalid(name, f"not an option of format mongoq, which has {', '.join(KNOWN)}")
        return cls(
            uri=_text(options, "uri") or _present(options, "uri", "such as mongodb://localhost:27017"),
            database=_text(options, "database"),
            collection=_text(options, "collection") or DEFAULT_COLLECTION,
            queues=Queues.parse(options),
            view=_view(options.get("view", DEFAULT_VIEW)),
            period=_period(_moment(options, "since"), _moment(options, "until")),
            partitions=_partitions(options.get("partitions")),
        )


def _present(options: Mapping[str, str], name: str, what: str) -> str:
    if options.get(name) is None:
        raise ArgumentInvalid(name, f"this option is missing: {what}")
    return options[name]


def _text(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not value.strip():
        raise ArgumentInvalid(name, "this option is empty")
    return value


def _view(value: str) -> str:
    view = value.lower()
    if view not in VIEWS:
        raise ArgumentInvalid("view", f"one of {', '.join(VIEWS)}, not {value!r}")
    return view


def _moment(options: Mapping[str, str], name: str) -> datetime | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ArgumentInvalid(name, f"a time in ISO 8601 with an offset, such as 2026-11-20T08:30:00Z, not {value!r}")
    return moment


def _period(since: datetime | None, until: datetime | None) -> Period:
    if since is not None and until is not None and until < since:
        raise ArgumentInvalid("until", f"it is before since: {until.isoformat()} and {since.isoformat()}")
    return Period(since, until)


def _partitions(value: str | None) -> int | None:
    if value is None:
        return None
    number = int(value) if value.isascii() and value.isdigit() else 0
    if number < 1:
        raise ArgumentInvalid("partitions", f"a whole number from 1 up, not {value!r}")
    return number
