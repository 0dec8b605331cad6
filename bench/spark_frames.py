"""``python -m bench spark-frames``: the time that items take through a frame stage, from the push to the target.

It is measured with and without a join with a table, where ``spark.sql.shuffle.partitions`` matters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import mongoq
from bench import report
from bench.benchmark import Benchmark
from bench.place import Place, place
from bench.spark_side import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BENCHMARK"]

KEYS = 5_000
"""Rows of the table."""
LONGEST = 600.0
LOOK = 0.01


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, nargs="+", default=[3, 10_000], help="in one push; default %(default)s")
    parser.add_argument(
        "--partitions", type=int, nargs="+", default=[200, 2], help="spark.sql.shuffle.partitions; default %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=5, help="pushes of each; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        place(options.uri, options.database, "frames", memory=True) as here,
        TemporaryDirectory() as folder,
        session(folder) as spark,
    ):
        rows = [
            _measure(here, spark, f"{folder}/{partitions}-{joined}", options, partitions, joined=joined)
            for partitions in options.partitions
            for joined in (False, True)
        ]
        machine = report.machine(here.client, write_concern="majority")
    return {"machine": machine, "settings": {"rounds": options.rounds}, "frames": rows}


def _measure(
    here: Place, spark: SparkSession, checkpoint: str, options: argparse.Namespace, partitions: int, *, joined: bool
) -> dict[str, Any]:
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    seconds: dict[str, list[float]] = {}
    with _running(here, spark, checkpoint, joined=joined) as broker:
        first = _under_way(broker, 1)  # of this query; of the first one with Spark's Python processes
        for items in options.items:
            seconds[str(items)] = [_under_way(broker, items) for _ in range(options.rounds)]
    medians = {items: round(median(each), 2) for items, each in seconds.items()}
    report.progress(
        f"{partitions:4} partitions, {'joined' if joined else 'plain'}: first {first:.2f} s, then {medians}"
    )
    return {"partitions": partitions, "joined": joined, "first_seconds": round(first, 2), "median_seconds": medians}


@contextmanager
def _running(here: Place, spark: SparkSession, checkpoint: str, *, joined: bool) -> Iterator[mongoq.Broker]:
    collection = f"{here.collection}_{checkpoint.rpartition('/')[2]}"
    pipeline = mongoq.Pipeline("frames", errors="errors", outputs="out")
    table = spark.range(KEYS).selectExpr("id AS n", "concat('name ', id) AS name")

    @pipeline.frame_stage("raw", to="out", schema="n long")
    def enrich(rows: Any) -> Any:
        return rows.join(table.groupBy("n").agg({"name": "max"}), "n") if joined else rows.selectExpr("*", "n AS m")

    with (
        mongoq.connect(here.uri, database=here.database, collection=collection) as broker,
        pipeline.run_on_spark(spark, here.uri, database=here.database, collection=collection, checkpoint=checkpoint),
    ):
        yield broker
    here.client[here.database][collection].drop()


def _under_way(broker: mongoq.Broker, items: int) -> float:
    """Push the items, and return the seconds until all of them are in the target."""
    out = broker.queue("out")
    out.purge()
    began = time.monotonic()
    broker.queue("raw").push_many([{"n": number % KEYS} for number in range(items)])
    while out.size() < items:
        if time.monotonic() - began > LONGEST:
            raise TimeoutError(f"{items} items are not there after {LONGEST:.0f} s")
        time.sleep(LOOK)
    return time.monotonic() - began


BENCHMARK = Benchmark("how long items of a frame stage are under way", add_options, run)
