"""The task that a worker of Spark's is at, as far as a write has to know it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

__all__ = ["Task"]

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    Attributes:
        partition: the number of its partition.
        batch: of a streaming query its id, which a checkpoint keeps, and the number of its batch; else ``None``.
    """

    partition: int
    batch: tuple[str, str] | None = None

    @classmethod
    def current(cls) -> Task:
        """Return the task that this process is at; outside of Spark's workers that of a single partition."""
        context = TaskContext.get()
        if context is None:
            return cls(0)
        query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        return cls(context.partitionId(), None if query is None or batch is None else (query, batch))
