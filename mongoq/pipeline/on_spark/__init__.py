"""The Spark engine: the stages and sources of a pipeline run as workers in Spark's executors.

Executors work against MongoDB as workers do; Spark keeps no state of a run except where its tasks are. In a *task*, an
engine of threads runs the stages in the executor's Python process until nothing is left, or for some seconds, and then
returns its counts. The *scheduler*, threads of the driver, starts task after task. A process that is killed leaves its
items to their leases, as a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mongoq.pipeline.graph.graph import Graph
from mongoq.spark import check_packages
from mongoq.spark.raw_options import Location

if TYPE_CHECKING:
    from mongoq.pipeline.on_spark.run import SparkRun

__all__ = ["run_of"]


def run_of(graph: Graph, spark: Any, place: Location, **options: Any) -> SparkRun:
    """Return a run; raises ``SparkUnavailable`` before anything of Spark is imported."""
    check_packages()
    from mongoq.pipeline.on_spark.preflight import start_run

    return start_run(graph, spark, place, **options)
