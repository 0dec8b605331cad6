"""A query from queue to queues that is going to be killed: ``python flow.py OPTIONS CHECKPOINT COUNTER [WHOLE]``.

``OPTIONS`` are JSON. Of three items one is moved with a payload of its own, one is dropped, and one makes two others.
Every tenth attempt of a task fails; ``COUNTER`` is the file that counts them, over all processes. With ``WHOLE`` it
ends when it has read what is there.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import mongoq.spark
from tests.spark.queries import start_query

__all__ = ["MOVED", "PUSHED", "SOURCE", "expected"]

SOURCE, MOVED, PUSHED = "flow.source", "flow.moved", "flow.pushed"
COLUMNS = "_id string, _token string, _q string, n int"
WRITTEN = "_id string, _token string, _q string, _to string, n int, part int"
EVERY = 10
"""Which attempts of a task fail."""


def expected(items: int) -> dict[str, Counter[tuple[int, int]]]:
    """Return what comes out for so many items: ``n`` and ``part`` of the payloads in each queue."""
    return {
        MOVED: Counter((n, 0) for n in range(0, items, 3)),
        PUSHED: Counter((n, part) for n in range(2, items, 3) for part in (1, 2)),
    }


class Failing:
    """Turns rows into what is written, and fails in the middle when its turn comes."""

    def __init__(self, counter: str) -> None:
        self._counter = counter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fails = self._number() % EVERY == 0
        for batch in batches:
            rows = [row for each in batch.to_pylist() for row in _written(each)]
            yield _batch(rows[: len(rows) // 2] if fails else rows)
            if fails:
                raise RuntimeError("this attempt was to fail")

    def _number(self) -> int:
        """Count the attempts of all processes, in a file that one of them has at a time."""
        with Path(self._counter).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number = int(file.read() or 0) + 1
            file.seek(0)
            file.write(str(number))
        return number


def _written(row: dict[str, Any]) -> list[dict[str, Any]]:
    nothing = dict.fromkeys(("_id", "_token", "_q", "_to"))
    if row["n"] % 3 == 0:
        return [{**row, "_to": MOVED, "part": 0}]
    if row["n"] % 3 == 1:
        return []
    return [{**nothing, "_to": PUSHED, "n": row["n"], "part": part} for part in (1, 2)]


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = ("_id", "_token", "_q", "_to", "n", "part")
    types = [pa.string()] * 4 + [pa.int32()] * 2
    arrays = [pa.array([row[name] for row in rows], type) for name, type in zip(names, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def main(options: str, checkpoint: str, counter: str, *whole: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,8]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(Path(checkpoint).parent))
        .config("spark.sql.warehouse.dir", str(Path(checkpoint).parent / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    mongoq.spark.register(spark)
    place = json.loads(options)
    frame = (
        spark.readStream.format("mongoq")
        .options(**place, queue=SOURCE, consumer="flow", maxItems="60", partitions="3", lease="10")
        .schema(COLUMNS)
        .load()
    )
    writer = frame.mapInArrow(Failing(counter), WRITTEN).writeStream.format("mongoq").options(**place)
    writer = writer.option("checkpointLocation", checkpoint)
    start_query(writer.trigger(availableNow=True) if whole else writer).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
