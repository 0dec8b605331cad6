"""Stream reader of a queue: numbered claims on the driver, their items in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from bson.errors import InvalidBSON
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mongoq.data.item import id_key
from mongoq.data.stream_claim import StreamClaim, pack, unpack
from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import broker_at
from mongoq.spark.errors import ColumnMismatch
from mongoq.spark.raw_options import Location
from mongoq.spark.read.schema import Columns
from mongoq.spark.stream.queue_run import QueueRun, end_run, run_of
from mongoq.spark.stream.stream_options import OTHER_STREAM, QueueStreamOptions
from mongoq.sync.operations import read_held_documents

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CLAIM = "claim"
TOKEN = "token"
"""Keys of an offset: number and token of the last claim before it. Claims of two consumers may have equal numbers, but
not equal tokens. The first offset has no token.
"""
PARTITION_ITEMS = 5_000
"""Items of a partition, unless the option ``partitions`` is given."""
RECORD_BATCH_ROWS = 5_000
"""Rows of a record batch, at most; fewer if they are more than the 16 MB of a server's reply."""


@dataclass(eq=False)
class ClaimPartition(InputPartition):
    """A part of a claim, for one task, with packed ids. It is sent with the URI and never shows it."""

    place: Location
    token: ObjectId
    ids: tuple[Any, ...]
    now: datetime
    part: str

    def __repr__(self) -> str:
        return f"ClaimPartition({self.part})"


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue in batches of one claim each; the offsets are the claims' numbers."""

    def __init__(self, options: QueueStreamOptions, schema: StructType) -> None:
        Columns(schema, options.mode)
        self._options = options
        self._schema = schema

    def __repr__(self) -> str:
        return f"QueueStreamReader({self._options!r})"

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option ``maxItems``."""
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Restrict the stream to items that are eligible now; later items are left to other runs."""
        run_of(self._options).stop_at_now()

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning of a new checkpoint: it begins with an unsettled claim, so that no item is skipped.

        Spark asks again when it plans the first batch, also after a restart, and gets the same answer.
        """
        return {CLAIM: run_of(self._options).last()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle the batch before, which Spark has finished, and claim the next one.

        If the queue is empty, the call waits up to half a second for an item: Spark asks again at once.
        """
        most = self._options.most
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        run, before = self._find_run(start)
        number = run.latest(before, most)
        return start if number == before else {CLAIM: number, TOKEN: run.token}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Split a claim; a restart gives the same parts, without items that were settled or taken since."""
        run, last = self._find_run(end)
        claim, held_ids = run.find_held(_number(start), last)
        return [] if claim is None else self._split(claim, {id_key(id) for id in held_ids}, run.now())

    def _split(self, claim: StreamClaim, held_keys: Set[Any], now: datetime) -> list[InputPartition]:
        """Split all ids of the claim, including the ids that it no longer holds.

        An item is in the same part whenever the batch is read, because ids of items that the sink pushes depend on it.
        """
        ids = claim.ids or []
        parts = min(self._options.partitions or -(-len(ids) // PARTITION_ITEMS), len(ids))
        places = [len(ids) * part // parts for part in range(parts + 1)] if parts else []
        return [
            ClaimPartition(
                self._options.place,
                claim.token,
                pack([id for id in ids[low:high] if id_key(id) in held_keys]),
                now,
                f"{part} of {parts} of claim {claim.number}",
            )
            for part, (low, high) in enumerate(pairwise(places), 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition in record batches, in the order of the claim, with majority read concern."""
        if not isinstance(partition, ClaimPartition):
            return  # Spark's own partition, for a batch without items
        columns = Columns(self._schema, self._options.mode)
        yield from columns.batches(_documents(partition, columns.projection()), partition.now)

    def commit(self, end: dict[str, Any]) -> None:
        """Settle the batch, if it is unsettled: most likely it is, because Spark asks for the next batch first."""
        run, number = self._find_run(end)
        run.settle(number)

    def stop(self) -> None:
        """Give the run back at once; Spark calls this when its JVM has ended."""
        end_run(self._options)

    def _find_run(self, offset: Mapping[str, Any]) -> tuple[QueueRun, int]:
        """Return the run, and the number of an offset in it."""
        run, number = run_of(self._options), _number(offset)
        run.renumber_foreign_claim(number, offset.get(TOKEN))
        return run, number


def _number(offset: Mapping[str, Any]) -> int:
    number = offset.get(CLAIM)
    if not isinstance(number, int):
        raise ArgumentInvalid("checkpointLocation", OTHER_STREAM)
    return number


def _documents(partition: ClaimPartition, projection: dict[str, int]) -> Iterator[list[dict[str, Any]]]:
    """Yield the documents that the claim still holds, some thousand items or 16 MB at a time.

    They are read from the primary, whatever the URI says: a secondary may not have a new reservation yet. Raises
    ``ColumnMismatch``, with the item's id, for text that is not UTF-8.
    """
    broker = broker_at(partition.place)
    ids, start, size = unpack(*partition.ids), 0, RECORD_BATCH_ROWS
    while start < len(ids):
        some = ids[start : start + size]
        try:
            documents = broker._run(read_held_documents, partition.token, some, projection)
        except InvalidBSON:
            # Any document of the reply may have the text: smaller reads lead to the item.
            if len(some) == 1:
                raise ColumnMismatch(some[0], "payload", "string", "text that is not UTF-8") from None
            documents = None
        # None also for a reply that would be too large.
        if documents is None:
            size = max(1, len(some) // 4)
            continue
        start += size
        if documents:
            yield documents
