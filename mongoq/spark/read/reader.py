"""The batch reader: plans on the driver, reads in the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mongoq.spark.clients import TASK_PATIENCE, scan_at
from mongoq.spark.gc_pause import made_at_rest
from mongoq.spark.read.plan import NOTHING, ScanPartition, plan
from mongoq.spark.read.pushdown import pushed
from mongoq.spark.read.queue_exists import refuse_unknown
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.schema import Columns
from mongoq.spark.types.envelope_columns import default_schema

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["FilteringReader", "MongoqReader", "read_partition", "schema_of"]

ROWS = 10_000
"""Rows of a record batch, at most; it has 4 MB of BSON at most as well."""


def schema_of(options: ReadOptions) -> StructType:
    """Return the columns of a table without a schema; reads a sample if they are to be inferred.

    Raises:
        ArgumentInvalid: the queue does not exist, or its payloads cannot be columns.
        ServerUnavailable, AuthenticationFailed: as for reading.
    """
    if options.sample is None:
        return default_schema()
    from mongoq.spark.read.infer_schema import inferred_schema

    with scan_at(options.place, preference=options.preference) as scan, scan.in_plain_words():
        if not options.empty_if_missing:
            refuse_unknown(scan, options.queues)
        return inferred_schema(scan, options)


class MongoqReader(DataSourceReader):
    """Reader of the partitions of one view. A task that loses its cursor fails, and Spark runs it again."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        Columns(schema, options.mode, options.fields)
        self._options = options
        self._schema = schema
        self._pushed = NOTHING

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


class FilteringReader(MongoqReader):
    """Reader that passes the filters of the query to the server.

    A separate class, because Spark refuses a reader with ``pushFilters``, with an error on the driver, unless its
    setting ``spark.sql.python.filterPushdown.enabled`` is true.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Store the filters, and return all of them to Spark: the server excludes fewer items than they do."""
        self._pushed = pushed(filters, self._schema, self._options.view)
        return filters


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[RecordBatch]:
    """Yield the rows of one partition in record batches; at most one batch is held in memory."""
    if not isinstance(partition, ScanPartition):
        raise TypeError(f"not a partition of mongoq: {type(partition).__name__}")
    options, now = partition.options, partition.now
    columns = Columns(schema, options.mode, options.fields)
    with scan_at(options.place, patience=TASK_PATIENCE, preference=options.preference) as scan:
        batches = scan.batches(partition.filter, columns.projection(), hint=partition.hint, rows=ROWS, naive=True)
        yield from made_at_rest(map(partial(columns.batch, now=now), batches))  # a loop would keep the last documents
