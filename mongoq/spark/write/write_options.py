"""Options of a write, checked before any command is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from mongoq.data.arguments import duration, queue_name, text
from mongoq.data.push_options import DEFAULT_REMEMBER
from mongoq.errors import ArgumentInvalid
from mongoq.spark.raw_options import LOCATION_OPTIONS, PATH, SETUP, Location, RawOptions

CARRIED = ("when", "key", "priority", "headers")
"""Values of an item that was read, which ``carry`` may take over."""
LOST_VALUES = ("ignore", "fail")
WRITE_OPTIONS = (
    *LOCATION_OPTIONS, "to", "delay", "when", "priority", "expires", "fields", "idColumn", "label", "once", "carry",
    "settle", "lost", "batchSize", SETUP, PATH,
)  # fmt: skip
SPARK_OPTIONS = ("checkpointLocation", "queryName")
"""Options that Spark adds to the options of a stream."""
LABEL_BYTES = 100
BATCH_SIZE = 10_000
PRIORITIES = range(-100, 101)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write.

    | option | meaning |
    |---|---|
    | `uri`, `database`, `collection` | as for reading |
    | `to` | the queue that rows are pushed or moved to; the path of `save` and `start` means the same; for one row: \
column `_to` |
    | `delay` | seconds from now, before which items are not handed out; column `_delay` |
    | `when` | or a time before which they are not handed out, in ISO 8601 with an offset; column `_when` |
    | `priority` | from -100 (first) to 100 (last), default 0; column `_priority` |
    | `expires` | seconds from its push or move, within which an item must be started, or it never runs; \
column `_start_by` |
    | `fields` | the columns that make the payload, a JSON list such as `["customer", "total"]`; default: `payload` if \
there is one, else all that do not belong to the envelope |
    | `idColumn` | the column whose value makes the id of a push: the same value again pushes nothing |
    | `label` | the name of this write: the same write again, under the same name, pushes nothing twice |
    | `once` | seconds for which the ids of pushes are remembered, default 604800, seven days |
    | `carry` | the values that rows read from a queue keep, a JSON list of `when`, `key`, `priority`, `headers` |
    | `settle` | `true`: rows with a `_token` are moved or committed under that fence; `false`: they are pushed like \
others; default: `true` in a stream, and in a batch an error that asks |
    | `lost` | rows whose reservation is lost: `ignore` (default), with a warning in the log, or `fail` |
    | `batchSize` | rows of one command, from 1 to 10,000, the default; also limited to 16 MiB |
    | `setup` | the import path of a function that each Python process of Spark calls with its broker, such as \
`shop.telemetry:configure` |
    """

    place: Location
    to: str | None
    delay: timedelta | None
    when: datetime | None
    priority: int | None
    expires: timedelta | None
    fields: tuple[str, ...] | None
    id_column: str | None
    label: str
    once: timedelta
    carry: frozenset[str]
    settle: bool | None
    lost: str
    batch_size: int

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool = False) -> Self:
        """Check the options of a writer, named in any case; raises ``ArgumentInvalid`` and ``QueueNameInvalid``."""
        raw = RawOptions(options, (*WRITE_OPTIONS, *SPARK_OPTIONS) if stream else WRITE_OPTIONS)
        raw.take_path("to")
        to, delay, once = raw.value("to"), raw.seconds("delay", zero=True), raw.seconds("once")
        if raw.value("delay") is not None and raw.value("when") is not None:
            raise ArgumentInvalid("when", "delay and when say both when items are due; give one of them")
        return cls(
            place=raw.place(),
            to=None if to is None else queue_name(to, "to"),
            delay=None if delay is None else duration(delay, "delay"),
            when=raw.moment("when"),
            priority=_priority(raw),
            expires=_expires(raw, delay),
            fields=raw.names("fields", '["customer", "total"]') or None,
            id_column=raw.text("idColumn"),
            label=text(raw.value("label") or "", "label", LABEL_BYTES),
            once=DEFAULT_REMEMBER if once is None else duration(once, "once", zero=False),
            carry=_carry(raw),
            settle=raw.truth("settle", default=True if stream else None),
            lost=raw.choice("lost", LOST_VALUES, "ignore"),
            batch_size=raw.whole("batchSize", most=BATCH_SIZE) or BATCH_SIZE,
        )


def _priority(raw: RawOptions) -> int | None:
    value = raw.value("priority")
    if value is None:
        return None
    priority = int(value) if re.fullmatch("-?[0-9]{1,3}", value) else PRIORITIES.stop
    if priority not in PRIORITIES:
        raise ArgumentInvalid("priority", f"a whole number from -100 (first) to 100 (last), not {value!r}")
    return priority


def _expires(raw: RawOptions, delay: float | None) -> timedelta | None:
    value = raw.seconds("expires")
    if value is None:
        return None
    length = duration(value, "expires", zero=False)
    if delay and duration(delay, "delay") >= length:
        raise ArgumentInvalid("expires", f"items wait {delay} seconds, and so could never start; give a longer time")
    return length


def _carry(raw: RawOptions) -> frozenset[str]:
    names = raw.names("carry", '["key", "headers"]')
    for each in names:
        if each not in CARRIED:
            raise ArgumentInvalid("carry", f"some of {', '.join(CARRIED)}, not {each[:60]!r}")
    return frozenset(names)
