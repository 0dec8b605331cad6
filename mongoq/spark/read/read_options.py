"""Options of a read, checked before any command is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from mongoq.errors import ArgumentInvalid
from mongoq.spark.raw_options import LOCATION_OPTIONS, PATH, Location, RawOptions
from mongoq.spark.read.views import QUEUE_OPTIONS, VIEWS, Period, QueueSelection
from mongoq.spark.scan import PREFERENCES
from mongoq.spark.types.convert import FAIL, MODES

DEFAULT_VIEW = "live"
DEFAULT_SAMPLE = 1_000
MAX_SAMPLE = 100_000
MAX_PARTITION_OPTION = 100_000
EMPTY = "empty"
MISSING_VALUES = ("fail", EMPTY)
PREFERENCE = "readPreference"
FIELDS = '["customer", "total"]'
READ_OPTIONS = (
    *LOCATION_OPTIONS, *QUEUE_OPTIONS, "view", "since", "until", "fields", "mode", "inferSchema", "sampleSize",
    "pushdown", "partitions", "missing", PREFERENCE, PATH,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a read: the items, the split, and the treatment of values that do not fit.

    Attributes:
        place: location of the queues.
        queues: queues to read.
        view: view of their items.
        period: time range.
        fields: fields of the payload to read; empty for all.
        mode: one of ``mongoq.spark.types.convert.MODES``.
        sample: number of items to infer the schema from; ``None``: it is not inferred.
        pushdown: True if filters are passed to the server.
        partitions: number of tasks that read, at most; ``None``: by the number of items.
        empty_if_missing: True if an unknown queue is an empty table, not an error.
        preference: read preference, if not the URI's.
    """

    place: Location
    queues: QueueSelection
    view: str
    period: Period
    fields: tuple[str, ...]
    mode: str
    sample: int | None
    pushdown: bool
    partitions: int | None
    empty_if_missing: bool
    preference: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check the options of a reader, named in any case; raises ``ArgumentInvalid`` and ``QueueNameInvalid``."""
        raw = RawOptions(options, READ_OPTIONS)
        raw.take_path("queue")
        return cls(
            place=raw.place(),
            queues=QueueSelection.parse(raw),
            view=raw.choice("view", VIEWS, DEFAULT_VIEW),
            period=_period(raw.moment("since"), raw.moment("until")),
            fields=raw.names("fields", FIELDS),
            mode=raw.choice("mode", MODES, FAIL),
            sample=_sample(raw),
            pushdown=raw.truth("pushdown", default=False),
            partitions=raw.whole("partitions", most=MAX_PARTITION_OPTION),
            empty_if_missing=raw.choice("missing", MISSING_VALUES, MISSING_VALUES[0]) == EMPTY,
            preference=None if raw.value(PREFERENCE) is None else raw.choice(PREFERENCE, PREFERENCES, "primary"),
        )


def _period(since: datetime | None, until: datetime | None) -> Period:
    if since is not None and until is not None and until < since:
        raise ArgumentInvalid("until", f"it is before since: {until.isoformat()} and {since.isoformat()}")
    return Period.between(since, until)


def _sample(raw: RawOptions) -> int | None:
    size = raw.whole("sampleSize", most=MAX_SAMPLE)
    if raw.truth("inferSchema", default=False):
        return size or DEFAULT_SAMPLE
    if size is not None:
        raise ArgumentInvalid("sampleSize", "it says how many items to infer the schema from; say inferSchema=true")
    return None
