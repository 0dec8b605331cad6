"""The batch writer: checked on the driver, written in the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bson import ObjectId
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import scan_at
from mongoq.spark.write.column_roles import ColumnRoles
from mongoq.spark.write.write_options import WriteOptions
from mongoq.spark.write.write_rows import Task, WrittenRows, write

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger("mongoq.spark")

Messages = list[WriterCommitMessage | None]


class BaseWriter:
    """Options and columns of a write, checked on the driver and sent to the tasks.

    Args:
        options: options of the write.
        schema: columns of the table.
        overwrite: True if Spark was asked to overwrite, or for complete output; a queue supports neither.

    Raises:
        ArgumentInvalid: a column or a mode cannot be used.
        ServerUnavailable, AuthenticationFailed: no server, or no access.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            problem = "rows are pushed to a queue, and overwrite nothing: mode('append'), and outputMode('append')"
            raise ArgumentInvalid("mode", problem)
        ColumnRoles(schema, options)
        self._options = options
        self._schema = schema

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"

    def _write(self, batches: Iterator[RecordBatch], task: Task, job: tuple[str, ...] | None) -> WrittenRows:
        return write(batches, ColumnRoles(self._schema, self._options), self._options, task, job)


class MongoqWriter(BaseWriter, DataSourceArrowWriter):
    """Writes a table, once: a task that runs again, or twice at the same time, pushes nothing twice.

    It is made on the driver, where a missing server raises an error, and is sent to the tasks with all its data.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        # The same for all tasks and repetitions of this write, and for no other write.
        self._run = str(ObjectId())
        with scan_at(options.place) as scan, scan.in_plain_words():
            scan.now()

    def write(self, iterator: Iterator[RecordBatch]) -> WrittenRows:
        """Write the rows of one task."""
        task = Task.current()
        return self._write(iterator, task, self._job(task))

    def _job(self, task: Task) -> tuple[str, ...] | None:
        """Return the parts that distinguish this write from others; in ``foreachBatch`` only its label does."""
        label = self._options.label
        if task.batch is not None:
            return ("batch", *task.batch, label) if label else None
        return ("label", label) if label else ("run", self._run)

    def commit(self, messages: Messages) -> None:
        """Log the result; it is durable since each task has ended."""
        logger.info("written: %s", sum_of(messages))

    def abort(self, messages: Messages) -> None:
        """Log that written rows stay: they are durable, and nothing takes them back."""
        logger.warning("this write has failed, and what its tasks have written stays: %s and more", sum_of(messages))


def sum_of(messages: Messages) -> WrittenRows:
    """Return the counts of all tasks."""
    return sum((each for each in messages if isinstance(each, WrittenRows)), WrittenRows())
