"""The pipelines that are measured on Spark and in threads.

As a program, ``python -m bench.spark_lines WAY URI DATABASE COLLECTION ITEMS``, it drains one in threads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.drain import begin
from bench.hops import line
from bench.spark_rows import SOURCE, TARGET
from mongoq import Pipeline, connect

if TYPE_CHECKING:
    import pandas

__all__ = ["LINES"]

ROUNDS = int(os.environ.get("MONGOQ_BENCH_WORK", "1000"))
"""How much work there is for each item: a thousand rounds are some 90 microseconds of Python."""

ROWS = 1_000
"""Rows that the function on frames takes."""


def hops() -> Pipeline:
    """Four stages that do nothing."""
    return line(same)


def same(payload: Any) -> Any:
    return payload


def frames() -> Pipeline:
    """One stage with work for each item: a function on frames of pandas."""
    pipeline = Pipeline("frames", outputs=TARGET)
    pipeline.batch_stage(SOURCE, to=TARGET, format="pandas", batch=ROWS, concurrency=2)(add_prices)
    return pipeline


def add_prices(orders: pandas.DataFrame) -> pandas.DataFrame:
    """Parse, look up and compute, as an enriching stage does: about 100 microseconds of Python per row."""
    orders["number"] = orders["customer"].str.extract(r"(\d+)$", expand=False).astype(int)
    orders["check"] = orders["number"].map(checksum)
    orders["total"] = (orders["price"] * orders["quantity"]).round(2)
    return orders


def checksum(number: int) -> int:
    """Return some digits that take time to compute."""
    digits = number
    for _ in range(ROUNDS):
        digits = (digits * 1_103_515_245 + 12_345) % 2_147_483_648
    return digits


LINES: dict[str, Callable[[], Pipeline]] = {"hops": hops, "frames": frames}


def main() -> None:
    way, uri, database, collection, items = sys.argv[1:]
    with connect(uri, database=database, collection=collection) as broker:
        pipeline = LINES[way]()
        began = begin()
        pipeline.drain(broker)
        print(json.dumps({"began": began, "ended": time.monotonic(), "done": int(items)}))


if __name__ == "__main__":
    main()
