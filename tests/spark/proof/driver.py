"""``python -m tests.spark.proof.driver MASTER PLACE GRAPH [WHOLE]``: runs a graph on Spark until it is killed.

``PLACE`` is JSON with the URI, the database and the collection; ``GRAPH`` is ``everything``, or the name of one of the
catalogue. With ``WHOLE`` it ends when nothing is left.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from tests.pipeline.graphs import graph
from tests.pipeline.proof.catalogue import GRAPHS

LEASE, SECONDS = 1.0, 0.003


def main() -> None:
    master, place, name = sys.argv[1:4]
    arguments = json.loads(place)
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    pipeline = graph(seconds=SECONDS, lease=LEASE) if name == "everything" else GRAPHS[name].pipeline()
    with pipeline.run_on_spark(
        spark, arguments.pop("uri"), **arguments, tasks=2, available_now="WHOLE" in sys.argv
    ) as run:
        run.wait()
    spark.stop()


if __name__ == "__main__":
    main()
