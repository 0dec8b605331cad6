"""Writes by Spark itself: tables, tasks that fail, streams, and what the options and errors show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq.spark
from tests.spark.tables import Target


@pytest.fixture
def save(target: Target) -> Callable[..., None]:
    """Write a DataFrame in a batch."""

    def save(frame: Any, *, mode: str | None = "append", to: str | None = "orders", **options: Any) -> None:
        writer = frame.write.format("mongoq").options(**target.options(to=to, **options))
        (writer if mode is None else writer.mode(mode)).save()

    return save


def test_a_table_is_pushed_and_read_back(spark: Any, target: Target, save: Any, load: Any) -> None:
    frame = spark.range(200).repartition(3).selectExpr(
        "cast(id AS int) n", "concat('c', id) s", "cast(id AS decimal(12,3)) d", "date'2026-01-02' day",
        "timestamp'2026-01-02 03:04:05.678' at", "array(id, null) l", "map('k', id) m", "named_struct('a', id) t",
        "cast(null AS double) x", "null v",
    )  # fmt: skip
    save(frame)
    read = load("n int, s string, d decimal(12,3), day date, at timestamp, l array<bigint>, m map<string,bigint>, "
                "t struct<a:bigint>, x double")  # fmt: skip
    assert sorted(read.collect()) == sorted(frame.drop("v").collect())
    assert {each["v"] for each in target.payloads} == {None}


def test_a_thread_that_registers_the_session_writes_tables_and_streams(
    spark: Any, target: Target, save: Any, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"n": 7}')
    frame, stream = spark.range(3), spark.readStream.schema("n int").json(str(tmp_path / "rows"))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            mongoq.spark.register(spark)
            save(frame)
            writer = stream.writeStream.format("mongoq").options(**target.options(to="streamed"))
            query = writer.option("checkpointLocation", str(tmp_path / "home")).trigger(availableNow=True).start()
            assert query.awaitTermination(200)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(250)
    assert errors == []
    assert Counter(each["q"] for each in target.documents) == {"orders": 3, "streamed": 1}


def test_what_cannot_be_written_is_a_sentence_on_the_driver(spark: Any, target: Target, save: Any) -> None:
    unreachable = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"
    for options, sentence in [
        ({"mode": "overwrite"}, r"mode: rows are pushed to a queue, and overwrite nothing: mode\('append'\)"),
        ({"mode": None}, 'cannot be written in the "ErrorIfExists" mode. Please use either the "Append"'),
        ({"idColumn": "nothing"}, "idColumn: there is no column 'nothing'"),
        ({"uri": unreachable}, "no usable MongoDB server answered at 127"),
    ]:
        with pytest.raises(Exception, match=sentence) as caught:
            save(spark.range(3), **options)
        assert "Job aborted" not in str(caught.value)
    with pytest.raises(Exception, match="row 0 of partition [01]: column 'payload': text that is no JSON"):
        save(spark.range(1).selectExpr("'{private' AS payload"))
    assert target.documents == []


def test_a_job_under_a_label_is_done_once(spark: Any, target: Target, save: Any) -> None:
    frame = spark.range(100).selectExpr("id % 7 AS n")
    for label in ("monday", "monday", "", ""):
        save(frame, label=label)
    assert len(target.documents) == 300


TASKS = 2


class FailingOnce:
    """A function over Arrow batches whose tasks die once, as soon as all have begun and something is pushed.

    One that had not begun when another one failed the job would die in the next. The first time the rows come in
    another order.
    """

    def __init__(self, marker: Path, target: Target) -> None:
        self.marker = str(marker)
        self.place = target.store.uri, target.store.collection.database.name, target.store.collection.name

    def __call__(self, batches: Any) -> Any:
        from pyspark import TaskContext

        marker = self.markers()[TaskContext.get().partitionId()]  # type: ignore[union-attr]
        rows = list(batches)
        if marker.exists():
            yield from rows
            return
        marker.touch()
        yield from rows[:0:-1]
        self.wait()
        raise ValueError("this task dies")

    def markers(self) -> list[Path]:
        return [Path(f"{self.marker}-{task}") for task in range(TASKS)]

    def wait(self) -> None:
        uri, database, collection = self.place
        with MongoClient[dict[str, Any]](uri) as client:
            items = client[database][collection]
            while not all(map(Path.exists, self.markers())) or items.count_documents({"q": "orders"}) == 0:
                time.sleep(0.05)


def _failing(spark: Any, target: Target, path: Path) -> tuple[Any, Counter[int]]:
    """Return a table whose tasks die once, and what it holds."""
    rows = [(n % 50, "x" * 4000) for n in range(1000)]
    frame = spark.createDataFrame(rows, "n int, s string").repartition(TASKS)
    return frame.mapInArrow(FailingOnce(path / "died", target), "n int, s string"), Counter(n for n, _ in rows)


RETRYING = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from pymongo import MongoClient
from pyspark.sql import SparkSession
import mongoq.spark
from tests.spark.tables import target_in
from tests.spark.test_write_spark import _failing

options, path = json.loads(sys.argv[1]), Path(sys.argv[2])
spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    .getOrCreate()
)
mongoq.spark.register(spark)
with MongoClient(options["uri"]) as client, target_in(
    SimpleNamespace(uri=options["uri"], collection=client[options["database"]][options["collection"]])
) as target:
    failing, _ = _failing(spark, target, path)
    failing.write.format("mongoq").options(**options).mode("append").save()
spark.stop()
"""


@pytest.mark.prove
def test_rows_of_tasks_that_spark_runs_again_are_pushed_once(
    target: Target, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    script = tmp_path / "retrying.py"
    script.write_text(RETRYING)
    completed = subprocess.run(
        [sys.executable, str(script), json.dumps(target.options(to="orders")), str(tmp_path)],
        check=False, cwd=tmp_path, env=os.environ | spark_environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-5000:]
    assert {each.name for each in tmp_path.glob("died-*")} == {"died-0", "died-1"}
    assert Counter(each["n"] for each in target.payloads) == Counter(n % 50 for n in range(1000))
