"""``python -m tests.spark.proof.driver MASTER PLACE [WHOLE]``: runs a graph on Spark until it is killed.

``PLACE`` is JSON with the URI, the database and the collection. With ``WHOLE`` it ends when nothing is left.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from tests.pipeline.graphs import graph

LEASE, SECONDS = 1.0, 0.003


def main() -> None:
    master, place = sys.argv[1:3]
    told = json.loads(place)
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    pipeline = graph(seconds=SECONDS, lease=LEASE)
    with pipeline.run_on_spark(spark, told.pop("uri"), **told, tasks=2, available_now="WHOLE" in sys.argv) as run:
        run.wait()
    spark.stop()


if __name__ == "__main__":
    main()
