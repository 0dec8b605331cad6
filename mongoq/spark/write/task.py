"""The current Spark task, as far as a write needs it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

__all__ = ["Task"]

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Task:
    """A Spark task.

    Attributes:
        partition: number of its partition.
        batch: of a streaming query: its id, which the checkpoint keeps, and the number of its batch; else ``None``.
    """

    partition: int
    batch: tuple[str, str] | None = None

    @classmethod
    def current(cls) -> Task:
        """Return the current task of this process; outside of Spark's workers, a task of a single partition."""
        context = TaskContext.get()
        if context is None:
            return cls(0)
        query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        return cls(context.partitionId(), None if query is None or batch is None else (query, batch))
