"""Frame stages at work on a store; and a driver that is going to be killed: ``python -m tests.spark.frame_station``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import mongoq
from mongoq.pipeline.on_spark.frame_batch import FrameBatches
from mongoq.pipeline.on_spark.frame_query import FrameQuery
from mongoq.spark.raw_options import Location


def place_of(options: dict[str, str]) -> Location:
    return Location(options["uri"], options["database"], options["collection"])


class Frames:
    """Runs the frame stages of pipelines on a store, all with one checkpoint unless another is given."""

    def __init__(self, spark: Any, store: Any, home: Path) -> None:
        self.spark = spark
        self.store = store
        self.home = home
        self.broker = mongoq.Broker(store.collection)
        self.started: list[FrameQuery] = []

    def pipeline(self, **options: Any) -> mongoq.Pipeline:
        return mongoq.Pipeline("flights", **{"errors": "errors", **options})

    def query(self, pipeline: mongoq.Pipeline, *, checkpoint: str = "checkpoint", **options: Any) -> FrameQuery:
        pipeline.check()
        [stage] = [stage for stage in pipeline.graph.stages if stage.frame is not None]
        query = FrameQuery(
            self.spark,
            place_of(self.store.options()),
            pipeline.graph,
            stage,
            stage.sources[0],
            checkpoint=str(self.home / checkpoint),
            **options,
        )
        self.started.append(query)
        return query

    def run(self, pipeline: mongoq.Pipeline, **options: Any) -> FrameQuery:
        """Work off what there is, and return the query, which has ended."""
        query = self.query(pipeline, available_now=True, **options)
        query.start()
        assert query.wait(240)
        return query

    def worked_off(self, pipeline: mongoq.Pipeline, **options: Any) -> dict[str, int]:
        query = self.run(pipeline, **options)
        assert query.failure is None, query.failure
        assert self.count_reserved() == 0
        return dict(query.counts())

    def push(self, *payloads: Any, queue: str = "checked") -> list[Any]:
        return list(self.broker.queue(queue).push_many(payloads))

    def payloads(self, queue: str) -> list[Any]:
        return sorted((each["payload"] for each in self.documents(queue)), key=repr)

    def documents(self, queue: str) -> list[dict[str, Any]]:
        return list(self.store.collection.find({"q": queue}))

    def count_reserved(self) -> int:
        return int(self.store.collection.count_documents({"reserved": True}))


def dropping_pipeline() -> mongoq.Pipeline:
    """Keeps one item of ten: what becomes of each depends on the others."""
    pipeline = mongoq.Pipeline("flights", errors="errors", outputs="enriched")

    @pipeline.frame_stage("checked", to="enriched", schema="n int, ten int", items=100)
    def enrich(flights: Any) -> Any:
        return flights.dropDuplicates(["ten"])

    return pipeline


def main(options: str, checkpoint: str) -> None:
    """Work off a batch, and stand still in the middle of settling it, until somebody kills this process."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    pipeline = dropping_pipeline()
    arguments = json.loads(options)
    stage = pipeline.graph.stages[0]
    settled = FrameBatches._run_settler

    def standing_still(self: Any, spark: Any, settler: Any) -> Any:
        while settler._left:
            time.sleep(1)
        return settled(self, spark, settler)

    FrameBatches._run_settler = standing_still  # type: ignore[method-assign]
    query = FrameQuery(spark, place_of(arguments), pipeline.graph, stage, "checked", checkpoint=checkpoint)
    query.start()
    query.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
