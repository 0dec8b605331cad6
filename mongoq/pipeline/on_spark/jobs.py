"""Shifts as Spark jobs: a task for each, whose rows are what it tells."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from mongoq.pipeline.on_spark.task import TaskOrder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ENDED", "cancel", "has_ended", "is_connect", "told"]

T = TypeVar("T")
TOLD = "told"
ENDED = "the Spark session, or its JVM, has ended while the pipeline ran; start both again"


def told(spark: SparkSession, title: str, work: Callable[[TaskOrder], T], order: TaskOrder, tasks: int) -> list[T]:
    """Run a function in so many tasks, and return what each of them returns.

    It is importable in the executors, and so are the types of what it returns.

    Raises:
        Exception: what Spark raises for a job that failed, as when a task raised or its process was killed.
    """

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({TOLD: [pickle.dumps(work(order))]})

    _describe(spark, title)
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(rows, f"{TOLD} binary")
    with _tagged(spark, order):
        return [pickle.loads(row[TOLD]) for row in frame.collect()]  # noqa: S301  # of our own tasks


def cancel(spark: SparkSession, order: TaskOrder) -> None:
    """End all jobs of a run at once: their Python processes are killed, and what they hold is left to the leases."""
    context = getattr(spark, "_sc", None)
    (spark.interruptTag if context is None else context.cancelJobsWithTag)(_tag(order))


@contextmanager
def _tagged(spark: Any, order: TaskOrder) -> Iterator[None]:
    """Mark the jobs that this thread starts meanwhile as those of the run."""
    context, tag = getattr(spark, "_sc", None), _tag(order)
    (spark.addTag if context is None else context.addJobTag)(tag)
    try:
        yield
    finally:
        if not has_ended(spark):
            (spark.removeTag if context is None else context.removeJobTag)(tag)


def _tag(order: TaskOrder) -> str:
    return f"mongoq-{order.run}"


def is_connect(spark: Any) -> bool:
    """Say whether a session is one of Spark Connect, which has no context, and no JVM in reach."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__)


def has_ended(spark: Any) -> bool:
    """Say whether the session was stopped, or its JVM has gone; one of Spark Connect does not tell that way.

    The JVM stops its context by itself when a signal ends it, and Python is not told.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return False
    java = context._jsc  # ``stop`` takes it away
    if java is None:
        return True
    try:
        return bool(java.sc().isStopped())
    except (OSError, Py4JError):
        return True


def _describe(spark: Any, title: str) -> None:
    """Name the jobs of this thread in Spark's own pages; a session of Spark Connect has no context to tell."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        context.setJobDescription(title)
