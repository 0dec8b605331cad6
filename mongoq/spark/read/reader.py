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
"""Rows of a record batch, at most; 4 MB of BSON bound it as well."""


def schema_of(options: ReadOptions) -> StructType:
    """Return the columns of a table for which the user wrote none; reads a sample if they are to be inferred.

    Raises:
        ArgumentInvalid: there is no such queue, or its payloads cannot be columns.
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
    """Reads the partitions of one view. A task that loses its cursor fails, and Spark runs it again."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        Columns(schema, options.mode, options.fields)
        self._options = options
        self._schema = schema
        self._pushed = NOTHING

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"

    def partitions(self) -> list[InputPartition]:
        """Ask the server where to split; its absence is a sentence here, before a task starts."""
        options = self._options
        with scan_at(options.place, preference=options.preference) as scan, scan.in_plain_words():
            return [*plan(scan, options, self._pushed)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition in record batches."""
        return read_partition(partition, self._schema)


class FilteringReader(MongoqReader):
    """Reads with the filters of the query handed to the server.

    It is a class of its own, since Spark refuses a reader that takes filters unless its setting
    ``spark.sql.python.filterPushdown.enabled`` is true, and says so on the driver.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, and leave all of them to Spark too: the server leaves out less than they do."""
        self._pushed = pushed(filters, self._schema, self._options.view)
        return filters


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[RecordBatch]:
    """Yield the rows of one partition in record batches, and hold no more than one."""
    if not isinstance(partition, ScanPartition):
        raise TypeError(f"not a partition of mongoq: {type(partition).__name__}")
    options, now = partition.options, partition.now
    columns = Columns(schema, options.mode, options.fields)
    with scan_at(options.place, patience=TASK_PATIENCE, preference=options.preference) as scan:
        batches = scan.batches(partition.filter, columns.projection(), hint=partition.hint, rows=ROWS, naive=True)
        yield from made_at_rest(map(partial(columns.batch, now=now), batches))  # a loop would keep the last documents
