"""The batch writer and the stream sink: checked on the driver, written in the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bson import ObjectId
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.clients import PLAN_PATIENCE, broker_at, scan_at
from mongoq.spark.write.column_roles import ColumnRoles
from mongoq.spark.write.write_options import WriteOptions
from mongoq.spark.write.write_rows import BATCH_PROPERTY, QUERY_PROPERTY, Task, WrittenRows, write

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["MongoqStreamWriter", "MongoqWriter"]

logger = logging.getLogger("mongoq.spark")

Messages = Sequence[WriterCommitMessage | None]


class MongoqWriter(DataSourceArrowWriter):
    """Writes a table, once: a task that runs again, or twice at the same time, pushes nothing twice.

    It is made on the driver, where a missing server raises an error, and is sent to the tasks with all its data.

    Args:
        options: options of the write.
        schema: columns of the table.
        overwrite: True if Spark was asked to overwrite, which a queue does not support.

    Raises:
        ArgumentInvalid: a column or a mode cannot be used.
        ServerUnavailable, AuthenticationFailed: no server, or no access.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check_mode(overwrite=overwrite)
        ColumnRoles(schema, options)
        self._options = options
        self._schema = schema
        # The same for all tasks and repetitions of this write, and for no other write.
        self._run = str(ObjectId())
        with scan_at(options.place) as scan, scan.in_plain_words():
            scan.now()

    def __repr__(self) -> str:
        return f"MongoqWriter({self._options!r})"

    def write(self, iterator: Iterator[RecordBatch]) -> WrittenRows:
        """Write the rows of one task."""
        task, options = Task.current(), self._options
        return write(iterator, ColumnRoles(self._schema, options), options, task, self._job(task))

    def _job(self, task: Task) -> tuple[str, ...] | None:
        """Return the parts that distinguish this write from others; in ``foreachBatch`` only its label does."""
        label = self._options.label
        if task.batch is not None:
            return ("batch", *task.batch, label) if label else None
        return ("label", label) if label else ("run", self._run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the result; it is durable since each task has ended."""
        logger.info("written: %s", _sum(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that written rows stay: they are durable, and nothing takes them back."""
        logger.warning("this write has failed, and what its tasks have written stays: %s and more", _sum(messages))


class MongoqStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, each once: a batch that is written again pushes and settles nothing twice.

    Spark makes one instance for every batch, and another to commit it.

    Args:
        options: options of the write.
        schema: columns of the table.
        overwrite: True if the query's output mode is complete, which a queue does not support.

    Raises:
        ArgumentInvalid: a column or a mode cannot be used.
        ServerUnavailable, AuthenticationFailed: no server, or no access.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check_mode(overwrite=overwrite)
        ColumnRoles(schema, options)
        self._options = options
        self._schema = schema
        broker_at(options.place, patience=PLAN_PATIENCE)

    def __repr__(self) -> str:
        return f"MongoqStreamWriter({self._options!r})"

    def write(self, iterator: Iterator[RecordBatch]) -> WrittenRows:
        """Write the rows of one task of a batch."""
        task, options = Task.current(), self._options
        if task.batch is None:
            raise RuntimeError(
                f"this Spark tells its tasks no {QUERY_PROPERTY} and {BATCH_PROPERTY}, without which a batch that is "
                "written again would be pushed twice; use foreachBatch and idColumn"
            )
        return write(iterator, ColumnRoles(self._schema, options), options, task, ("batch", *task.batch, options.label))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the result; it is durable since each task has ended."""
        logger.info("batch %d is written: %s", batchId, _sum(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log that written rows stay; the batch is written again when the query is started again."""
        logger.warning("batch %d has failed, and what its tasks have written stays: %s", batchId, _sum(messages))


def _check_mode(*, overwrite: bool) -> None:
    if overwrite:
        raise ArgumentInvalid(
            "mode", "rows are pushed to a queue, and overwrite nothing: mode('append'), and outputMode('append')"
        )


def _sum(messages: Messages) -> WrittenRows:
    return sum((each for each in messages if isinstance(each, WrittenRows)), WrittenRows())
