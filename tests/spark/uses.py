"""A program that uses Spark in each way that mongoq has, and says what came of each, as a line of JSON.

``python uses.py URI DATABASE FOLDER``: ``true``, or the line of the error. Without the PySpark for it nothing is left
behind by an attempt, so that all of them are made in one session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import mongoq
import mongoq.spark


def graph() -> mongoq.Pipeline:
    """Return a pipeline with a source, a plain stage, a batch stage, a fork and a join: 6 sums, 0, 4, … 20."""
    graph = mongoq.Pipeline("uses", errors="errors", outputs="sums")

    @graph.source(to="raw")
    def numbers(position: Any) -> Iterator[mongoq.Record]:
        for number in range(position or 0, 6):
            yield mongoq.Record({"n": number}, position=number + 1)

    @graph.stage("raw", to="checked")
    def check(payload: dict[str, int]) -> dict[str, int]:
        return payload

    @graph.batch_stage("checked", to="doubled", format="arrow")
    def double(rows: Any) -> Any:
        return rows.append_column("twice", [[2 * n for n in rows.column("n").to_pylist()]])

    @graph.stage("doubled", to=["left", "right"])
    def split(payload: dict[str, int]) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("left", payload=payload), mongoq.Move("right", payload=payload)])

    @graph.join(["left", "right"], on="n", to="sums")
    def add(left: dict[str, int], right: dict[str, int]) -> int:
        return left["twice"] + right["twice"]

    return graph


class Uses:
    """The ways, in order; each one reads the queues of its own."""

    def __init__(self, spark: SparkSession, broker: mongoq.Broker, place: dict[str, str], folder: Path) -> None:
        self.spark, self.broker, self.place, self.folder = spark, broker, place, folder

    def stages(self) -> None:
        """Run stages in tasks."""
        with graph().run_on_spark(self.spark, **self.place, available_now=True) as run:
            run.wait()
        self.check("sums", [0, 4, 8, 12, 16, 20])

    def register(self) -> None:
        """Register the format."""
        mongoq.spark.register(self.spark)

    def write(self) -> None:
        """Write a table."""
        table = self.spark.createDataFrame([(1,), (2,)], "n int")
        table.write.format("mongoq").options(**self.place, to="table").mode("append").save()
        self.check("table", [{"n": 1}, {"n": 2}])

    def read(self) -> None:
        """Read a table."""
        self.read_table("kept")

    def read_filtered(self) -> None:
        """Read a table, with filters that the server evaluates."""
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        self.read_table("kept", pushdown="true")

    def read_table(self, queue: str, **options: str) -> None:
        table = self.spark.read.format("mongoq").options(**self.place, queue=queue, **options).schema("n int").load()
        rows = [row.n for row in table.where("n > 1").collect()]
        assert rows == [2], rows

    def read_stream(self) -> None:
        """Read a stream of a queue, its columns found without a schema."""
        stream = self.spark.readStream.format("mongoq").options(**self.place, queue="live", consumer="uses").load()
        query = stream.writeStream.format("parquet").option("path", str(self.folder / "live"))
        query = query.option("checkpointLocation", str(self.folder / "live.checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        assert self.spark.read.parquet(str(self.folder / "live")).count() == 2

    def write_stream(self) -> None:
        """Write a stream to a queue."""
        (self.folder / "rows").mkdir()
        (self.folder / "rows" / "rows.json").write_text('{"n": 3}')
        stream = self.spark.readStream.schema("n int").json(str(self.folder / "rows")).writeStream.format("mongoq")
        checkpoint = str(self.folder / "written.checkpoint")
        query = stream.options(**self.place, to="streamed", checkpointLocation=checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()
        self.check("streamed", [{"n": 3}])

    def frame_stage(self) -> None:
        """Run a stage of frames."""
        graph = mongoq.Pipeline("framed", errors="errors", outputs="framed")
        graph.frame_stage("frames", to="framed", schema="n int")(lambda frame: frame.selectExpr("_id", "n + 1 AS n"))
        checkpoint = self.folder / "frames"
        with graph.run_on_spark(self.spark, **self.place, checkpoint=checkpoint, available_now=True) as run:
            run.wait()
        self.check("framed", [{"n": 2}, {"n": 3}])

    def check(self, queue: str, expected: list[Any]) -> None:
        found = sorted((item.payload for item in self.broker.queue(queue).peek(99)), key=str)
        assert found == sorted(expected, key=str), found


def attempt(use: Callable[[], None]) -> bool | str:
    """Return ``True``, or what the error says: Spark quotes an error of its own processes as a line of many."""
    try:
        use()
    except Exception as error:
        lines = f"{type(error).__module__}.{type(error).__qualname__}: {error}".splitlines()
        return next((line for line in lines if "SparkUnavailable:" in line), "\n".join(lines[:60]))
    return True


def main(uri: str, database: str, folder: str) -> None:
    """Try each use, and print what came of it."""
    mongoq.spark.check()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    with mongoq.connect(uri, database=database) as broker:
        for queue in ("kept", "live", "frames"):
            broker.queue(queue).push_many([{"n": 1}, {"n": 2}])
        uses = Uses(spark, broker, {"uri": uri, "database": database}, Path(folder))
        ways = [getattr(uses, name) for name in vars(Uses) if not name.startswith(("_", "check", "read_table"))]
        print(json.dumps({"version": spark.version, **{way.__name__: attempt(way) for way in ways}}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
