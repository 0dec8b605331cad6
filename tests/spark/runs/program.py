"""A program that runs a pipeline on Spark until it is asked to end, and says what ``wait`` came to.

``python program.py URI DATABASE COLLECTION SAID [stop] [CHECKPOINT]``: ``SAID`` is a file, since the output of a
program that ``spark-submit`` has started goes through its JVM. With ``stop`` another thread stops the session beside
the run. With a folder for checkpoints the stage is a frame stage.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import mongoq


def pipeline() -> mongoq.Pipeline:
    """Return a stage that has items under way, and others waiting, at any moment."""
    graph = mongoq.Pipeline("told", outputs="out")

    @graph.stage("raw", to="out", concurrency=2, prefetch=20, lease=300)
    def check(payload: Any) -> Any:
        time.sleep(0.3)
        return payload

    return graph


def frames() -> mongoq.Pipeline:
    """Return such a stage of frames."""
    graph = mongoq.Pipeline("told", outputs="out", errors="errors")

    @graph.frame_stage("raw", to="out", items=5, lease=300)
    def check(frame: Any) -> Any:
        time.sleep(1)
        return frame.select("_id")

    return graph


def main(uri: str, database: str, collection: str, output: str, *ways: str) -> None:
    """Run, and say first which process the JVM is, then how it ended."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    tell(output, jvm=spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    checkpoint = next((way for way in ways if way != "stop"), None)
    graph = pipeline() if checkpoint is None else frames()
    run = graph.run_on_spark(spark, uri, database=database, collection=collection, checkpoint=checkpoint)
    if "stop" in ways:
        threading.Thread(target=stop, args=(spark, uri, database, collection), daemon=True).start()
    try:
        run.wait()
    except BaseException as error:
        tell(output, ended=type(error).__name__, message=str(error))
    else:
        tell(output, ended="returned", interrupted=run.progress().interrupted)


def stop(spark: SparkSession, uri: str, database: str, collection: str) -> None:
    """Stop the session once the run has come to something."""
    with mongoq.connect(uri, database=database, collection=collection) as broker:
        while broker.queue("out").size() < 3:
            time.sleep(0.1)
    spark.stop()


def tell(output: str, **what: Any) -> None:
    """Write a line."""
    with Path(output).open("a") as file:
        file.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
