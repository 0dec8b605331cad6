"""Checks before a run on Spark starts."""

from __future__ import annotations

from os import PathLike
from typing import Any

from mongoq.connection import connect
from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.model.arguments import Duration, count, duration
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.on_spark.jobs import has_ended, is_connect
from mongoq.pipeline.on_spark.run import SparkRun
from mongoq.spark.raw_options import Location

__all__ = ["start_run"]

MOST_TASKS = 10_000


def start_run(
    graph: Graph,
    spark: Any,
    place: Location,
    *,
    checkpoint: Any,
    available_now: bool,
    trigger: Duration | None,
    tasks: int | None,
    grace: Duration,
    heartbeat: Duration,
    signals: bool,
) -> SparkRun:
    """Return a run of a graph that was checked."""
    _check_frames(graph, spark)
    _check_session(spark)
    if not (checkpoint is None or (isinstance(checkpoint, str | PathLike) and str(checkpoint).strip())):
        raise ArgumentInvalid("checkpoint", f"the path of a folder, not {checkpoint!r:.60}")
    if not isinstance(available_now, bool):
        raise ArgumentInvalid("available_now", f"a bool, not {type(available_now).__name__}")
    if available_now and trigger is not None:
        raise ArgumentInvalid("trigger", "either this or available_now: a run that ends has no rounds")
    every = None if trigger is None else duration(trigger, "trigger", zero=False)
    beat, lasting = duration(heartbeat, "heartbeat", zero=False), duration(grace, "grace")
    number = _tasks(spark, tasks)
    broker = connect(place.uri, database=place.database, collection=place.collection)
    try:
        return SparkRun(
            graph,
            spark,
            place,
            broker,
            drain=available_now,
            every=every,
            tasks=number,
            grace=lasting,
            heartbeat=beat,
            checkpoint=None if checkpoint is None else str(checkpoint),
            signals=signals,
        )
    except BaseException:
        broker.close()
        raise


def _check_session(spark: Any) -> None:
    if has_ended(spark):
        raise ArgumentInvalid("spark", "this session was stopped; start another one")
    if isinstance(spark, type) or not all(hasattr(spark, method) for method in ("range", "readStream", "conf")):
        told = f"the class {spark.__name__}" if isinstance(spark, type) else type(spark).__name__
        raise ArgumentInvalid("spark", f"a SparkSession, not {told}")


def _check_frames(graph: Graph, spark: Any) -> None:
    """Refuse frame stages on Spark Connect: their queries call back into this process, which its server cannot do."""
    if is_connect(spark):
        problem = "a frame stage needs a classic Spark session, and this one is of Spark Connect"
        hint = "run it where the driver is (spark-submit, or master(...)), and the other stages by stages="
        faults = [f"stage {one.name!r}: {problem}; {hint}" for one in graph.own_stages if one.frame is not None]
        if faults:
            raise GraphInvalid(graph.name, faults)


def _tasks(spark: Any, tasks: int | None) -> int:
    if tasks is not None:
        number = count(tasks, "tasks", least=1)
        if number > MOST_TASKS:
            raise ArgumentInvalid("tasks", f"{MOST_TASKS:,} at most, not {number:,}")
        return number
    context = getattr(spark, "_sc", None)
    if context is None:
        raise ArgumentInvalid(
            "tasks", "a session of Spark Connect does not tell how many cores there are; say how many"
        )
    return int(context.defaultParallelism)
