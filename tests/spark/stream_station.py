"""A driver that is going to be killed: ``python stream_station.py OPTIONS OUTPUT CHECKPOINT``, with options as JSON.

It writes what a stream reads to files, slowly, until it dies.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

import mongoq.spark
from tests.spark.queries import start_query


def slowly(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        time.sleep(0.1)
        yield frame


def main(options: str, output: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    mongoq.spark.register(spark)
    frame = spark.readStream.format("mongoq").options(**json.loads(options)).schema("_id string, n int").load()
    writer = frame.mapInArrow(slowly, frame.schema).writeStream.format("json").option("path", output)
    start_query(writer.option("checkpointLocation", checkpoint)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
