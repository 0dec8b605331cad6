"""The Spark engine: the stages and sources of a pipeline as workers in Spark's executors.

MongoDB is what the executors work against, as workers do, so nothing of a run is kept by Spark but where its tasks
are. A *shift* is one task's work: an engine of threads runs the stages in the executor's Python process until there
is nothing to do, or for some seconds, and then tells what it has counted. A *crew* of threads on the driver starts
shift after shift. A process that is killed leaves items to their leases, as a worker does.
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
    from mongoq.pipeline.on_spark.preflight import started

    return started(graph, spark, place, **options)
