"""History as a stream: read-only, by the time of processing, the same rows whenever a batch is read again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mongoq.drive.scan import Scan
from mongoq.errors import ArgumentInvalid
from mongoq.model.indexes import HISTORY
from mongoq.spark.clients import TASK_PATIENCE, scan_at
from mongoq.spark.jsontext import iso_text
from mongoq.spark.known import refuse_unknown
from mongoq.spark.plan import plan
from mongoq.spark.reader import read_partition
from mongoq.spark.schema import Columns
from mongoq.spark.stream_options import HistoryStreamOptions
from mongoq.spark.views import Period, next_millisecond, view_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["HistoryStream"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
BEFORE = "before"
IDLE_SECONDS = 1.0
"""How often an idle stream asks the server; Spark asks the stream every few milliseconds."""
NAP_SECONDS = 0.05


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was processed, in the order of time, and writes nothing to the collection.

    An offset is a moment: all that was processed before it has been read. A batch is a range of time, so it holds the
    same items whenever it is read again, but for those whose retention has ended. A command or a transaction may show
    what it has processed later than the time that its items carry, so a time is read when it is older than ``lag``.

    Driver and tasks have instances of their own; a task learns all it needs from its partition.
    """

    def __init__(self, options: HistoryStreamOptions, schema: StructType) -> None:
        Columns(schema, options.read.mode, options.read.fields)
        self._options = options
        self._schema = schema
        self._scan: Scan | None = None
        self._target: datetime | None = None
        self._asked = -IDLE_SECONDS

    def __repr__(self) -> str:
        return f"HistoryStream({self._options!r})"

    def initialOffset(self) -> dict[str, Any]:
        """Begin with the option ``since``, or with the oldest."""
        return _offset(self._options.read.period.since or EPOCH)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the stream is to end: what is old enough now."""
        self._target = self._frontier()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option ``maxItems``."""
        return ReadMaxRows(self._options.max_items)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or ``start`` when nothing is there; asks once a second while idle."""
        begin = _moment(start)
        if time.monotonic() - self._asked < IDLE_SECONDS:
            time.sleep(NAP_SECONDS)
            return start
        end = self._end(begin, self._target or self._frontier(), limit)
        if end is None:
            self._asked = -IDLE_SECONDS if self._target else time.monotonic()
            return start
        return _offset(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Split the items of a batch."""
        period = Period(_moment(start), _moment(end))
        options = replace(self._options.read, period=period, empty_if_missing=True)  # it was there when it was opened
        scan = self._opened()
        with scan.in_plain_words():
            return [*plan(scan, options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition in record batches."""
        return read_partition(partition, self._schema)

    def stop(self) -> None:
        """Close the client."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _opened(self) -> Scan:
        if self._scan is None:
            read = self._options.read
            self._scan = scan_at(read.place, patience=TASK_PATIENCE, preference=read.preference)
            if not read.empty_if_missing:
                with self._scan.in_plain_words():
                    refuse_unknown(self._scan, read.queues)
        return self._scan

    def _frontier(self) -> datetime:
        """Return the end of what may be read now."""
        scan, until = self._opened(), self._options.read.period.until
        with scan.in_plain_words():
            old_enough = scan.now() - self._options.lag
        return old_enough if until is None else min(until, old_enough)

    def _end(self, begin: datetime, frontier: datetime, limit: ReadLimit) -> datetime | None:
        """Return the end of a batch that begins there; ``None`` if it would be empty."""
        if frontier <= begin:
            return None
        scan, options = self._opened(), self._options.read
        keys = view_of("history", options.queues, Period(begin, frontier), frontier).keys()
        with scan.in_plain_words():
            hint = scan.index(HISTORY.keys)
            first = scan.date(keys, "processed", place=0, hint=hint)
            if first is None or isinstance(limit, ReadAllAvailable):
                return frontier if first else None
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_items
            beyond = scan.date(keys, "processed", place=rows, hint=hint)
        if beyond is None:
            return frontier
        return beyond if beyond > first else first + MILLISECOND


def _offset(moment: datetime) -> dict[str, Any]:
    return {BEFORE: iso_text(next_millisecond(moment).astimezone(UTC))}


def _moment(offset: Mapping[str, Any]) -> datetime:
    try:
        return datetime.fromisoformat(offset[BEFORE])
    except (KeyError, TypeError, ValueError):
        raise ArgumentInvalid(
            "checkpointLocation", "this checkpoint belongs to another kind of stream; give this query one of its own"
        ) from None
