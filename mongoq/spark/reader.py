"""The batch reader: plans on the driver, reads in the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mongoq.spark.clients import TASK_PATIENCE, scan_at
from mongoq.spark.options import ReadOptions
from mongoq.spark.plan import ScanPartition, plan
from mongoq.spark.schema import Columns

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["MongoqReader", "read_partition"]

ROWS = 10_000
"""Rows of a record batch, at most; the 16 MB of a server reply bound it as well."""


class MongoqReader(DataSourceReader):
    """Reads the partitions of one view. A task that loses its cursor fails, and Spark runs it again."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        Columns(schema)
        self._options = options
        self._schema = schema

    def __repr__(self) -> str:
        return f"MongoqReader({self._options!r})"

    def partitions(self) -> list[InputPartition]:
        """Ask the server where to split; its absence is a sentence here, before a task starts."""
        options = self._options
        with scan_at(options.place) as scan, scan.in_plain_words():
            return [*plan(scan, options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition in record batches."""
        return read_partition(partition, self._schema)


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[RecordBatch]:
    """Yield the rows of one partition in record batches."""
    if not isinstance(partition, ScanPartition):
        raise TypeError(f"not a partition of mongoq: {type(partition).__name__}")
    columns, options = Columns(schema), partition.options
    with scan_at(options.place, patience=TASK_PATIENCE) as scan:
        for documents in scan.batches(partition.filter, columns.projection(), hint=partition.hint, rows=ROWS):
            yield columns.batch(documents, partition.now)
