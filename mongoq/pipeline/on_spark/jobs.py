"""Spark jobs of a run: one task each, whose row is the pickled result."""

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

__all__ = ["ENDED", "cancel", "has_ended", "is_connect", "run_tasks"]

T = TypeVar("T")
RESULT = "result"
ENDED = "the Spark session, or its JVM, has ended while the pipeline ran; start both again"


def run_tasks(spark: SparkSession, title: str, work: Callable[[TaskOrder], T], order: TaskOrder, tasks: int) -> list[T]:
    """Run a function in ``tasks`` Spark tasks, and return the result of each.

    Executors must be able to import the function and the types of its results.

    Raises:
        Exception: Spark's error for a job that failed, for example when a task raised or its process was killed.
    """

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({RESULT: [pickle.dumps(work(order))]})

    _describe(spark, title)
    # mapInArrow on a range: it works with Spark Connect as well, which has no RDDs.
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(rows, f"{RESULT} binary")
    with _tag_jobs(spark, order):
        return [pickle.loads(row[RESULT]) for row in frame.collect()]  # noqa: S301  # the data comes from our own tasks


def cancel(spark: SparkSession, order: TaskOrder) -> None:
    """End all jobs of a run at once: their Python processes are killed, and their items wait for their leases."""
    context = getattr(spark, "_sc", None)
    (spark.interruptTag if context is None else context.cancelJobsWithTag)(_tag(order))


@contextmanager
def _tag_jobs(spark: Any, order: TaskOrder) -> Iterator[None]:
    """Tag the jobs that this thread starts inside the block as jobs of the run."""
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
    """Return whether a session is one of Spark Connect, which has no context and no JVM within reach."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__)


def has_ended(spark: Any) -> bool:
    """Return whether the session was stopped, or its JVM is gone; unknown, so False, for a session of Spark Connect.

    The JVM stops its context by itself when a signal ends it, and Python gets no notice.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return False
    java = context._jsc  # ``stop`` sets it to None
    if java is None:
        return True
    try:
        return bool(java.sc().isStopped())
    except (OSError, Py4JError):
        return True


def _describe(spark: Any, title: str) -> None:
    """Set the description of this thread's jobs in Spark's UI; a session of Spark Connect has no context for it."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        context.setJobDescription(title)
