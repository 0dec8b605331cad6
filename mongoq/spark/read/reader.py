"""The batch reader: plans on the driver, reads in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mongoq.spark.clients import TASK_TIMEOUT_SECONDS, scan_at
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.schema import Columns
from mongoq.spark.read.views import find_letters, refuse_unknown, view_of
from mongoq.spark.scan import Scan
from mongoq.spark.types.envelope_columns import default_schema

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PARTITION_ITEMS = 125_000
"""Items of a partition, unless the option ``partitions`` is given."""
MAX_PARTITIONS = 200
RECORD_BATCH_ROWS = 10_000
"""Rows of a record batch, at most; it has 4 MB of BSON at most as well."""
ID_INDEX = "_id_"
FOREIGN = 8
Condition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """Conditions for the server; all of them must hold.

    Attributes:
        keys: conditions that the index of the view decides.
        document_conditions: conditions that need the documents.
        ids: True if a condition is on ids.
    """

    keys: tuple[Condition, ...] = ()
    document_conditions: tuple[Condition, ...] = ()
    ids: bool = False


EMPTY_FILTER = ServerFilter()


@dataclass(eq=False)
class ScanPartition(InputPartition):
    """Everything that one task needs, in any process. It is sent with the URI and never shows it."""

    options: ReadOptions
    filter: dict[str, Any]
    hint: str | None
    now: datetime
    place: str

    def __repr__(self) -> str:
        return f"ScanPartition({self.options.queues}, {self.options.view}, {self.place})"


def plan(scan: Scan, options: ReadOptions, pushed: ServerFilter = EMPTY_FILTER) -> list[ScanPartition]:
    """Split the view, without the items that the conditions exclude, into partitions, at least one.

    Partitions have equal counts as far as the keys of the index show. The server's time is read once, so that all
    partitions show the states of one moment.

    Raises:
        ArgumentInvalid: the queue does not exist.
    """
    options = with_letters(scan, options)
    if not options.empty_if_missing:
        refuse_unknown(scan, options.queues)
    # The server's clock, not the driver's: the dates of items come from it.
    now = scan.now()
    view = view_of(options.view, options.queues, options.period, now)
    indexes = [None if pushed.ids else scan.index(branch.index.keys) for branch in view.branches]
    keys = [(_all(branch.keys(), pushed.keys), hint) for branch, hint in zip(view.branches, indexes, strict=True)]
    count = sum(scan.count(filter, hint) for filter, hint in keys)
    hint = indexes[0] if len(indexes) == 1 else None
    parts = parts_of(count, options.partitions)
    # A single part needs no boundaries, and no second query.
    cuts = scan.boundaries(_all(view.keys(), pushed.keys), hint, count=count, parts=parts) if parts > 1 else []
    ranges = id_ranges(cuts)
    if prefer_ids(scan.size(), count, len(ranges)):
        hint = ID_INDEX
    documents = _all(view.documents(), (*pushed.keys, *pushed.document_conditions))
    return [
        ScanPartition(options, documents | ({"_id": ids} if ids else {}), hint, now, f"{place} of {len(ranges)}")
        for place, ids in enumerate(ranges, 1)
    ]


def with_letters(scan: Scan, options: ReadOptions) -> ReadOptions:
    """Return the options with the queues of the view ``dead`` looked for."""
    return replace(options, queues=find_letters(scan, options.queues)) if options.view == "dead" else options


def parts_of(count: int, wanted: int | None) -> int:
    """Return the number of partitions for ``count`` items."""
    return wanted or min(MAX_PARTITIONS, max(1, -(-count // PARTITION_ITEMS)))


def id_ranges(ids: Sequence[ObjectId]) -> list[dict[str, Any]]:
    """Return conditions on ``_id``; every id, of any type, meets exactly one of them.

    ``$gte`` and ``$lt`` compare within one BSON type. So the first range is everything *not* at or above the first
    boundary: lower ObjectIds, and every id that is no ObjectId.
    """
    if not ids:
        return [{}]
    middle = [{"$gte": low, "$lt": high} for low, high in pairwise(ids)]
    return [{"$not": {"$gte": ids[0]}}, *middle, {"$gte": ids[-1]}]


def prefer_ids(collection: int, items: int, parts: int) -> bool:
    """Return whether to read by the index on ``_id`` instead of the queue's own index.

    No index begins with ``q, _id``. By ``_id``, the server also fetches the documents of other queues, once over all
    partitions. By the queue's index, it walks all keys of the queue once for each partition, because ``_id`` comes last
    in it; a key costs about as much as a document, and needs far less memory.
    """
    return parts > 1 and collection <= items * min(parts, FOREIGN)


def _all(filter: Condition, conditions: Sequence[Condition]) -> Condition:
    return {"$and": [filter, *conditions]} if conditions else filter


def schema_of(options: ReadOptions) -> StructType:
    """Return the columns of a table without a schema; reads a sample if they are to be inferred.

    Raises:
        ArgumentInvalid: the queue does not exist, or its payloads cannot be columns.
        ServerUnavailable, AuthenticationFailed: as for reading.
    """
    if options.sample is None:
        return default_schema()
    from mongoq.spark.read.infer_schema import infer_schema

    with scan_at(options.place, preference=options.preference) as scan, scan.in_plain_words():
        options = with_letters(scan, options)
        if not options.empty_if_missing:
            refuse_unknown(scan, options.queues)
        return infer_schema(scan, options)


class MongoqReader(DataSourceReader):
    """Reader of the partitions of one view. A task that loses its cursor fails, and Spark runs it again."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        Columns(schema, options.mode, options.fields)
        self._options = options
        self._schema = schema
        self._pushed = EMPTY_FILTER

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"

    def partitions(self) -> list[InputPartition]:
        """Ask the server for the split; if the server is away, the error is raised here, before a task starts."""
        options = self._options
        with scan_at(options.place, preference=options.preference) as scan, scan.in_plain_words():
            return [*plan(scan, options, self._pushed)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition in record batches."""
        return read_partition(partition, self._schema)


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[RecordBatch]:
    """Yield the rows of one partition in record batches; at most one batch is held in memory."""
    assert isinstance(partition, ScanPartition)
    options = partition.options
    columns = Columns(schema, options.mode, options.fields)
    with scan_at(options.place, patience=TASK_TIMEOUT_SECONDS, preference=options.preference) as scan:
        batches = scan.batches(
            partition.filter, columns.projection(), hint=partition.hint, rows=RECORD_BATCH_ROWS, naive=True
        )
        yield from columns.batches(batches, partition.now)
