"""History as a stream: read-only, by the time of processing; a batch that is read again has the same rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mongoq.data.indexes import HISTORY
from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import TASK_TIMEOUT_SECONDS, scan_at
from mongoq.spark.read.reader import PARTITION_ITEMS, ScanPartition, parts_of, read_partition
from mongoq.spark.read.schema import Columns
from mongoq.spark.read.views import Period, View, next_millisecond, refuse_unknown, view_of
from mongoq.spark.scan import Scan
from mongoq.spark.stream.stream_options import OTHER_STREAM, HistoryStreamOptions
from mongoq.spark.types.json_text import iso_text

if TYPE_CHECKING:
    from pyarrow import RecordBatch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
BEFORE, CUTS = "before", "cuts"
IDLE_SECONDS = 1.0
"""Seconds between two queries of an idle stream; Spark asks the stream every few milliseconds."""
NAP_SECONDS = 0.05


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads processed items in the order of time, and writes nothing to the collection.

    An offset is a time: all items processed before it have been read. A batch is a time range, so it has the same items
    whenever it is read again, except items whose retention has ended. A command or a transaction may become visible
    later than the time of its items, so a time is read when it is older than ``lag``.

    A large batch is split by time as well, and its offset has the split times. Ids of items that the sink pushes depend
    on the part that a row is in, so a batch that is read again must have the same parts, even if items were added or
    removed since.

    Driver and tasks have instances of their own; a task has everything it needs in its partition.
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
        """Begin with the option ``since``, or with the oldest item."""
        return _offset(self._options.read.period.since or EPOCH)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the end of the stream: the latest time that is old enough now."""
        self._target = self._frontier()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option ``maxItems``."""
        return ReadMaxRows(self._options.max_items)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or ``start`` if there are no items; queries once a second while idle."""
        begin, _ = _read_offset(start)
        # Spark calls this every few milliseconds: the nap keeps an idle stream from using the CPU.
        if time.monotonic() - self._asked < IDLE_SECONDS:
            time.sleep(NAP_SECONDS)
            return start
        end = self._end(begin, self._target or self._frontier(), limit)
        if end is None:
            self._asked = -IDLE_SECONDS if self._target else time.monotonic()
            return start
        return _offset(end, self._cut(begin, end, limit))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the parts of a batch, from its offset; users see the same times in the checkpoint."""
        (until, cuts), read = _read_offset(end), self._options.read
        times = [_read_offset(start)[0], *cuts, until]
        with self._scanning() as scan:
            hint = scan.index(HISTORY.keys)
        return [
            ScanPartition(read, self._view(*time).documents(), hint, until, f"{place} of {len(times) - 1}")
            for place, time in enumerate(pairwise(times), 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition in record batches."""
        return read_partition(partition, self._schema)

    def stop(self) -> None:
        """Close the client."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    @contextmanager
    def _scanning(self) -> Iterator[Scan]:
        """Open the client at the first call; errors are raised in plain words."""
        read = self._options.read
        if self._scan is None:
            self._scan = scan_at(read.place, patience=TASK_TIMEOUT_SECONDS, preference=read.preference)
            if not read.empty_if_missing:
                with self._scan.in_plain_words():
                    refuse_unknown(self._scan, read.queues)
        with self._scan.in_plain_words():
            yield self._scan

    def _frontier(self) -> datetime:
        """Return the latest time that may be read now."""
        with self._scanning() as scan:
            old_enough = scan.now() - self._options.lag
        return min(old_enough, self._options.read.period.until or old_enough)

    def _end(self, begin: datetime, frontier: datetime, limit: ReadLimit) -> datetime | None:
        """Return the end of a batch that begins at this time; ``None`` if it would be empty."""
        if frontier <= begin:
            return None
        if isinstance(limit, ReadAllAvailable):
            return frontier if self._place(begin, frontier, 0) else None
        items = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_items
        return self._after(begin, frontier, items)

    def _after(self, begin: datetime, frontier: datetime, items: int) -> datetime | None:
        """Return the time by which ``items`` items were processed, or the end of the first time if it has more items.

        ``None`` if there are no items.
        """
        first = self._place(begin, frontier, 0)
        if first is None:
            return None
        beyond = self._place(begin, frontier, items)
        if beyond is None:
            return frontier
        # More items have the first time than a batch may hold: one time is never split, so take all of them.
        return beyond if beyond > first else first + MILLISECOND

    def _cut(self, begin: datetime, end: datetime, limit: ReadLimit) -> list[datetime]:
        """Return the times between the two at which their items are split, into parts of about equal count."""
        wanted, cuts = self._options.read.partitions, [begin]
        # The batch fits into one part, so no count is needed.
        if wanted is None and isinstance(limit, ReadMaxRows) and limit.max_rows <= PARTITION_ITEMS:
            return []
        with self._scanning() as scan:
            count = scan.count(self._view(begin, end).keys(), scan.index(HISTORY.keys))
        share = -(-count // parts_of(count, wanted))
        while (cut := self._after(cuts[-1], end, share)) is not None and cut < end:
            cuts.append(cut)
        return cuts[1:]

    def _place(self, begin: datetime, end: datetime, place: int) -> datetime | None:
        """Return the processing time of the item at a position between the two times, from the keys of the index."""
        with self._scanning() as scan:
            hint = scan.index(HISTORY.keys)
            return scan.date(self._view(begin, end).keys(), "processed", place=place, hint=hint)

    def _view(self, begin: datetime, end: datetime) -> View:
        return view_of("history", self._options.read.queues, Period(begin, end), end)


def _offset(moment: datetime, cuts: Sequence[datetime] = ()) -> dict[str, Any]:
    offset = {BEFORE: _text(moment)}
    return offset | {CUTS: " ".join(map(_text, cuts))} if cuts else offset


def _text(moment: datetime) -> str:
    return iso_text(next_millisecond(moment).astimezone(UTC))


def _read_offset(offset: Mapping[str, Any]) -> tuple[datetime, list[datetime]]:
    """Return the end of a batch, and the times at which it is split."""
    try:
        return datetime.fromisoformat(offset[BEFORE]), list(map(datetime.fromisoformat, offset.get(CUTS, "").split()))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ArgumentInvalid("checkpointLocation", OTHER_STREAM) from None
