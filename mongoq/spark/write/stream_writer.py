"""The stream sink: checked on the driver, written in the tasks. PySpark has its base class since 4.1."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from mongoq.spark.clients import PLAN_TIMEOUT_SECONDS, broker_at
from mongoq.spark.write.write_options import WriteOptions
from mongoq.spark.write.write_rows import BATCH_PROPERTY, QUERY_PROPERTY, Task, WrittenRows
from mongoq.spark.write.writer import BaseWriter, Messages, sum_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger("mongoq.spark")


class MongoqStreamWriter(BaseWriter, DataSourceStreamArrowWriter):
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
        logger.info("batch %d is written: %s", batchId, sum_of(messages))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log that written rows stay; the batch is written again when the query is started again."""
        logger.warning("batch %d has failed, and what its tasks have written stays: %s", batchId, sum_of(messages))
