"""``python -m bench.spark_side WAY URI DATABASE COLLECTION ITEMS``: Spark on two cores, in a process of its own.

The measurement begins when Spark and its Python workers have started, and have read, written or streamed once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient

from bench.drain import begin
from bench.hops import LINE
from bench.processes import ROOT
from bench.spark_lines import LINES
from bench.spark_rows import COLUMNS, FEW, HISTORY, SOURCE, TARGET, WARM, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["WAYS", "session"]

BATCH = 50_000
"""Items of a batch of the stream."""


@contextmanager
def session(folder: str) -> Iterator[SparkSession]:
    """Start Spark on two cores of this machine, on loopback, and stop it with its JVM."""
    from pyspark.sql import SparkSession

    import mongoq.spark

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", folder)
        .config("spark.sql.warehouse.dir", str(Path(folder, "warehouse")))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    gateway: Any = spark.sparkContext._gateway
    try:
        spark.sparkContext.setLogLevel("OFF")
        mongoq.spark.register(spark)
        yield spark
    finally:
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=60)


def read(spark: SparkSession, options: dict[str, str], items: int, folder: str) -> int:
    """Read the history, payloads as five columns, without keeping rows; return the number of rows."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812  # the name that everybody gives it

    rows = Observation()
    queue = options.pop("queue", HISTORY)
    frame = spark.read.format("mongoq").options(**options, queue=queue, view="history").schema(COLUMNS).load()
    frame = frame.observe(rows, F.count(F.lit(1)).alias("rows"))
    frame.write.format("noop").mode("overwrite").save()
    return int(rows.get["rows"])


def write(spark: SparkSession, options: dict[str, str], items: int, folder: str) -> int:
    """Push rows of five columns."""
    _rows(spark, items).write.format("mongoq").options(**options).mode("append").save()
    return items


def _rows(spark: SparkSession, items: int) -> DataFrame:
    return spark.range(0, items, 1, 2).selectExpr(
        "printf('customer %06d', id % 100000) AS customer",
        "int(id % 97) AS quantity",
        "id % 10007 / 100 AS price",
        "timestamp_seconds(1767225600 + id) AS at",
        "element_at(array('de', 'fr', 'it', 'es', 'pt', 'nl', 'be'), int(id % 7) + 1) AS country",
    )


def stream(spark: SparkSession, options: dict[str, str], items: int, folder: str) -> int:
    """Move the items of one queue to another, unchanged."""
    source, target = options.pop("queue", SOURCE), options.pop("to", TARGET)
    frame = (
        spark.readStream.format("mongoq")
        .options(**options, queue=source, consumer="bench", maxItems=str(BATCH), partitions="2")
        .schema("_id string, _token string, _q string")
        .load()
    )
    query = (
        frame.writeStream.format("mongoq")
        .options(**options, to=target, checkpointLocation=str(Path(folder, source)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return items


def line(name: str, spark: SparkSession, options: dict[str, str], items: int, folder: str) -> int:
    """Drain a pipeline."""
    database, collection = options["database"], options["collection"]
    pipeline = LINES[name]()
    with pipeline.run_on_spark(
        spark, options["uri"], database=database, collection=collection, available_now=True
    ) as run:
        run.wait()
    return items


WAYS: dict[str, Callable[[SparkSession, dict[str, str], int, str], int]] = {
    "read": read,
    "write": write,
    "stream": stream,
    **{name: partial(line, name) for name in LINES},
}


def main() -> None:
    way, uri, database, collection, items = sys.argv[1:]
    options = {"uri": uri, "database": database, "collection": collection}
    with TemporaryDirectory(prefix="mongoq-bench-spark-") as folder, session(folder) as spark:
        _warm(spark, way, options, folder)
        began = begin()
        done = WAYS[way](spark, {**options, "to": TARGET} if way == "write" else options, int(items), folder)
        ended = time.monotonic()
        print(json.dumps({"began": began, "ended": ended, "done": done}))


def _warm(spark: SparkSession, way: str, options: dict[str, str], folder: str) -> None:
    """Let the JVM and the workers do the same with a few other items."""
    if way in LINES:
        _warm_line(spark, way, options, folder)
        return
    if way == "read":
        read(spark, {**options, "queue": WARM}, FEW, folder)
        return
    write(spark, {**options, "to": WARM}, FEW, folder)
    if way == "stream":
        stream(spark, {**options, "queue": WARM, "to": f"{WARM}.done"}, FEW, folder)


def _warm_line(spark: SparkSession, way: str, options: dict[str, str], folder: str) -> None:
    """Drain the same pipeline, in another collection."""
    other = f"{options['collection']}_warm"
    with MongoClient[Any](options["uri"]) as client:
        collection = client[options["database"]][other]
        fill(collection, LINE[0] if way == "hops" else SOURCE, FEW)
        line(way, spark, {**options, "collection": other}, FEW, folder)
        collection.drop()


if __name__ == "__main__":
    main()
