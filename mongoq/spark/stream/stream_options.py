"""Options of streams that read a queue or its history, checked before any command is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Self

from mongoq.data.arguments import count, duration, queue_name
from mongoq.data.item import StageMark
from mongoq.data.stream_claim import MAX_STREAM_CLAIM_ITEMS, consumer_name
from mongoq.errors import ArgumentInvalid
from mongoq.spark.raw_options import LOCATION_OPTIONS, PATH, SETUP, Location, RawOptions
from mongoq.spark.read.read_options import EMPTY, MISSING_VALUES, READ_OPTIONS, ReadOptions
from mongoq.spark.read.views import QUEUE_OPTIONS
from mongoq.spark.types.convert import DROP, FAIL, MODES, PERMISSIVE
from mongoq.sync import Queue


@dataclass(frozen=True, slots=True)
class StageOption:
    """Settings of a stage that claims and burials need.

    Attributes:
        name: name of the stage.
        trail: True if it records its hops.
        payloads: True if hops are recorded with the payloads before them.
        dead: queue of its failures; ``None`` for none.
        limited: True if it has its own limit of retries, ``max_retries``.
        max_retries: this limit.
    """

    name: str
    trail: bool = False
    payloads: bool = False
    dead: str | None = None
    limited: bool = False
    max_retries: int | None = None

    @classmethod
    def of(cls, mark: StageMark, overriding: Mapping[str, Any]) -> Self:
        """Return the settings of a stage's handle."""
        limited, dead = "max_retries" in overriding, overriding.get("dead")
        return cls(mark.name, mark.trail, mark.payloads, dead, limited, overriding.get("max_retries"))

    @classmethod
    def parse(cls, raw: RawOptions) -> Self | None:
        """Return the option, or ``None``; raises ``ArgumentInvalid``."""
        text = raw.text("stage")
        try:
            return None if text is None else cls(**json.loads(text))._check()
        except (TypeError, ValueError, AttributeError):
            raise ArgumentInvalid("stage", "a frame stage of a pipeline sets this option; leave it out") from None

    def _check(self) -> Self:
        StageMark(self.name)
        if not all(isinstance(flag, bool) for flag in (self.trail, self.payloads, self.limited)):
            raise TypeError
        if self.dead is not None:
            queue_name(self.dead)
        if self.max_retries is not None:
            count(self.max_retries, "max_retries", least=0)
        return self

    def text(self) -> str:
        """Return the value of the option, as text."""
        return json.dumps(asdict(self))

    def mark_queue(self, queue: Queue[Any]) -> Queue[Any]:
        """Return a handle with the settings of the stage, whose burials name the stage."""
        overriding = {"dead": self.dead} | ({"max_retries": self.max_retries} if self.limited else {})
        mark = StageMark(self.name, trail=self.trail, payloads=self.payloads)
        return queue._with(overriding=overriding, stage=mark)


OTHER_STREAM = "this checkpoint belongs to another kind of stream; give this query one of its own"
STREAM_OPTIONS = (
    *LOCATION_OPTIONS,
    *QUEUE_OPTIONS,
    "view",
    "consumer",
    "maxItems",
    "partitions",
    "lease",
    "mode",
    "missing",
    "stage",
    SETUP,
    PATH,
)
CONSUMER = "a name for this query, which it keeps over restarts, such as etl"
VIEWS = ("live", "ready")
DEFAULT_ITEMS = 10_000
MIN_LEASE_SECONDS = 1.0
"""Seconds. A thread of the driver extends a lease several times within its length."""
HISTORY_ONLY = ("maxItems", "lag")
DEFAULT_HISTORY_ITEMS = 100_000
DEFAULT_LAG_SECONDS = 90.0
"""Seconds. A transaction may commit 60 s after the time of its items; the server ends it within half as much again. A
command that is sent again after a failover is late by less.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStreamOptions:
    """Options of a stream that reads a queue.

    Attributes:
        place: location of the queue.
        queue: name of the queue, the option ``queue``.
        consumer: name under which it is read, by one query at a time.
        most: items of a batch, at most; the option ``maxItems``.
        partitions: number of tasks that read a batch; ``None``: one for each 5,000 items.
        lease: how long items are reserved from each extension on; ``None``: the queue's lease.
        mode: treatment of items that do not fit their columns.
        empty_if_missing: True to wait for an unknown queue.
        stage: stage of a pipeline that reads the queue, if any.
    """

    place: Location
    queue: str
    consumer: str
    most: int
    partitions: int | None
    lease: timedelta | None
    mode: str
    empty_if_missing: bool
    stage: StageOption | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check the options of a stream, named in any case; raises ``ArgumentInvalid`` and ``QueueNameInvalid``."""
        raw = RawOptions(options, STREAM_OPTIONS)
        raw.take_path("queue")
        _check_view(raw)
        lease = raw.seconds("lease")
        if lease is not None and lease < MIN_LEASE_SECONDS:
            raise ArgumentInvalid("lease", f"{MIN_LEASE_SECONDS:g} second at least, not {raw.value('lease')!r}")
        return cls(
            place=raw.place(),
            queue=_queue(raw),
            consumer=consumer_name(raw.required("consumer", CONSUMER)),
            most=raw.whole("maxItems", most=MAX_STREAM_CLAIM_ITEMS) or DEFAULT_ITEMS,
            partitions=raw.whole("partitions"),
            lease=None if lease is None else duration(lease, "lease", zero=False),
            mode=_mode(raw),
            empty_if_missing=raw.choice("missing", MISSING_VALUES, MISSING_VALUES[0]) == EMPTY,
            stage=StageOption.parse(raw),
        )


def _queue(raw: RawOptions) -> str:
    for way in ("queues", "prefix"):
        if raw.value(way) is not None:
            raise ArgumentInvalid(way, "a stream reads one queue: give queue instead, and start a query for each")
    return queue_name(raw.required("queue", "the name of the queue to read"))


def _mode(raw: RawOptions) -> str:
    mode = raw.choice("mode", MODES, FAIL)
    if mode == DROP:
        problem = f"{FAIL} or {PERMISSIVE}, not {DROP}: what a stream leaves out would be committed unread"
        raise ArgumentInvalid("mode", problem)
    return mode


def _check_view(raw: RawOptions) -> None:
    view = raw.value("view")
    if view is not None and view.lower() not in VIEWS:
        problem = f"a stream takes what is ready in a queue, or replays its history, and cannot read view {view!r}"
        raise ArgumentInvalid("view", f"{problem}; leave this option out, or read a table with spark.read")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStreamOptions:
    """Options of a stream that reads history.

    Attributes:
        read: queues and time range, as for a batch read.
        max_items: items of a batch, at most; items of one millisecond stay together.
        lag: age of a time before it is read.
    """

    read: ReadOptions
    max_items: int
    lag: timedelta

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check the options of a stream with the view ``history``, as ``ReadOptions`` does."""
        raw = RawOptions(options, (*READ_OPTIONS, *HISTORY_ONLY))
        own = {name.lower() for name in HISTORY_ONLY}
        read = ReadOptions.parse({name: value for name, value in raw.options.items() if name not in own})
        if read.queues.prefix:
            raise ArgumentInvalid("prefix", "a stream reads one queue, or those that the option queues names")
        if read.pushdown:
            raise ArgumentInvalid("pushdown", "Spark hands filters to batch reads only; leave it out")
        lag = raw.seconds("lag", zero=True)
        return cls(
            read=read,
            max_items=raw.whole("maxItems") or DEFAULT_HISTORY_ITEMS,
            lag=duration(DEFAULT_LAG_SECONDS if lag is None else lag, "lag"),
        )
