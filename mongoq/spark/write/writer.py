"""The batch writer and the stream sink: checked on the driver, written in the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bson import ObjectId
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import PLAN_TIMEOUT_SECONDS, broker_at, scan_at
from mongoq.spark.write.column_roles import ColumnRoles
from mongoq.spark.write.write_options import WriteOptions
from mongoq.spark.write.write_rows import BATCH_PROPERTY, QUERY_PROPERTY, Task, WrittenRows, write

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger("mongoq.spark")

Messages = list[WriterCommitMessage | None]


class _Writer:
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


class MongoqWriter(_Writer, DataSourceArrowWriter):
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
        logger.info("written: %s", _sum(messages))

    def abort(self, messages: Messages) -> None:
        """Log that written rows stay: they are durable, and nothing takes them back."""
        logger.warning("this write has failed, and what its tasks have written stays: %s and more", _sum(messages))


class MongoqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a query, each once: a batch that is written again pushes and settles nothing twice."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        # By the broker of the process: Spark makes an instance for every batch, and another to commit it.
        broker_at(options.place, patience=PLAN_TIMEOUT_SECONDS)

    def write(self, iterator: Iterator[RecordBatch]) -> WrittenRows:
        """Write the rows of one task of a batch."""
        task = Task.current()
        if task.batch is None:
            raise RuntimeError(
                f"this Spark tells its tasks no {QUERY_PROPERTY} and {BATCH_PROPERTY}, without which a batch that is "
                "written again would be pushed twice; use foreachBatch and idColumn"
            )
        return self._write(iterator, task, ("batch", *task.batch, self._options.label))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the result; it is durable since each task has ended."""
        logger.info("batch %d is written: %s", batchId, _sum(messages))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log that written rows stay; the batch is written again when the query is started again."""
        logger.warning("batch %d has failed, and what its tasks have written stays: %s", batchId, _sum(messages))


def _sum(messages: Messages) -> WrittenRows:
    return sum((each for each in messages if isinstance(each, WrittenRows)), WrittenRows())
