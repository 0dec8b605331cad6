"""``python -m bench spark``: Spark on two cores; tables and streams beside two processes of the bare driver, pipelines
beside a process with threads.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import report
from bench.benchmark import Benchmark
from bench.hops import LINE
from bench.place import Place, place
from bench.processes import run_side_by_side
from bench.spark_rows import HISTORY, SOURCE, TARGET, fill, fill_history
from mongoq.spark.clients import scan_at
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.reader import plan

__all__ = ["BENCHMARK", "LEAST"]

PROCESSES = 2
LEAST = {"read": 0.7, "write": 0.7, "stream": 0.5, "hops": 0.4, "frames": 1.0}
"""How fast each way is to be, beside the bare driver, or threads."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measured task.

    Attributes:
        name: the way's name.
        items: how many.
        source: the queue that is filled before; ``None`` for none.
        target: the queue where they are afterwards; ``None`` where they are only read.
        other: the reference for Spark: ``bare`` or ``threads``.
    """

    name: str
    items: int
    source: str | None = None
    target: str | None = TARGET
    other: str = "bare"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--read", type=int, default=1_000_000, help="items of history to read; default %(default)s")
    parser.add_argument("--write", type=int, default=1_000_000, help="rows to write; default %(default)s")
    parser.add_argument("--stream", type=int, default=200_000, help="items to stream; default %(default)s")
    parser.add_argument("--hops", type=int, default=50_000, help="items of four hops each; default %(default)s")
    parser.add_argument("--frames", type=int, default=100_000, help="items for a stage on frames; default %(default)s")
    parser.add_argument("--ways", nargs="+", choices=LEAST, default=[*LEAST], help="what to measure; default all")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is done; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "spark", memory=True) as here:
        fill_history(here.client[here.database][_reading(here)], options.read)
        cases = [
            Case("read", options.read, target=None),
            Case("write", options.write),
            Case("stream", options.stream, SOURCE),
            Case("hops", options.hops, LINE[0], LINE[-1], "threads"),
            Case("frames", options.frames, SOURCE, TARGET, "threads"),
        ]
        cases = [case for case in cases if case.name in options.ways]
        try:
            ways = {case.name: _compare(here, case, options.rounds) for case in cases}
        finally:
            here.client[here.database][_reading(here)].drop()
        result = {
            "machine": report.machine(here.client, write_concern="majority", processes=PROCESSES),
            "settings": {"rounds": options.rounds},
            "ways": ways,
        }
    return {**result, "missed": [name for name, told in ways.items() if not told["reached"]]}


def _reading(here: Place) -> str:
    return f"{here.collection}_read"


def _compare(here: Place, case: Case, rounds: int) -> dict[str, Any]:
    taken: dict[str, list[float]] = {"spark": [], case.other: []}
    for turn in range(rounds):
        for side in (case.other, "spark") if turn % 2 else ("spark", case.other):
            seconds = _run_seconds(here, case, side)
            taken[side].append(seconds)
            report.progress(f"{case.name:7} {side:7} {case.items / seconds:9,.0f}/s")
    ratio = round(median(other / own for own, other in zip(taken["spark"], taken[case.other], strict=True)), 2)
    rates = {f"{side}_per_second": [round(case.items / each) for each in times] for side, times in taken.items()}
    return {
        "items": case.items,
        **rates,
        "ratio": ratio,
        "least": LEAST[case.name],
        "reached": ratio >= LEAST[case.name],
    }


def _run_seconds(here: Place, case: Case, side: str) -> float:
    """Run the task once, and return the seconds from the common start to the last end."""
    name = _reading(here) if case.name == "read" else f"{here.collection}_{secrets.token_hex(3)}"
    collection = here.client[here.database][name]
    try:
        if case.source is not None:
            fill(collection, case.source, case.items)
        results = run_side_by_side(_commands(here, case, side, name))
        _check(collection, case, results)
        return float(max(each["ended"] for each in results) - min(each["began"] for each in results))
    finally:
        if case.name != "read":
            collection.drop()


def _commands(here: Place, case: Case, side: str, collection: str) -> list[list[str]]:
    where = [here.uri, here.database, collection, str(case.items)]
    if side != "bare":
        module = {"spark": "bench.spark_side", "threads": "bench.spark_lines"}[side]
        return [[sys.executable, "-m", module, case.name, *where]]
    ids = _between(here, collection) if case.name == "read" else ""
    command = [sys.executable, "-m", "bench.spark_bare", case.name, *where]
    return [[*command, str(part), str(PROCESSES), ids] for part in range(PROCESSES)]


def _between(here: Place, collection: str) -> str:
    """Return the ids that separate the ranges of the Spark reader."""
    where = {"uri": here.uri, "database": here.database, "collection": collection}
    options = ReadOptions.parse({**where, "queue": HISTORY, "view": "history"})
    with scan_at(options.place) as scan:
        ranges = [each.filter.get("_id", {}) for each in plan(scan, options)]
    return ",".join(str(each["$gte"]) for each in ranges if "$gte" in each)


def _check(collection: Any, case: Case, results: list[dict[str, Any]]) -> None:
    """Check that each item was processed exactly once."""
    if case.target is None:
        done = sum(each["done"] for each in results)
    else:
        done = collection.count_documents({"q": case.target})
    if done != case.items:
        raise RuntimeError(f"{case.name}: {done:,} of {case.items:,}")


BENCHMARK = Benchmark("tables, streams and pipelines of Spark beside the bare driver, or threads", add_options, run)
