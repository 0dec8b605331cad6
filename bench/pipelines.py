"""``python -m bench pipelines``: items through four stages that do nothing, beside a loop of the bare driver."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import report
from bench.benchmark import Benchmark
from bench.hops import BATCH, CLAIM, CONCURRENCY, LINE
from bench.operations import PAYLOAD_BYTES, payload
from bench.place import Place, place
from bench.processes import run_side_by_side
from mongoq import Broker

__all__ = ["BENCHMARK", "SUBJECTS"]

PUSHED = 10_000
REFERENCE = "bare"
"""What the others are compared with."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A program that takes the items through the queues.

    Attributes:
        title: its name in the result.
        way: its name in ``hops.WAYS``.
        processes: how many at once.
        target: how many hops a second at least, beside the bare loop.
    """

    title: str
    way: str
    processes: int = 1
    target: float | None = None


SUBJECTS = (
    Subject("bare", "bare"),
    Subject("threads", "threads", target=0.7),
    Subject("asyncio", "asyncio", target=0.7),
    Subject("threads, batches of 100", "batches", target=0.7),
    Subject("threads, with a trail", "trail"),
    Subject("threads, 2 processes", "threads", processes=2),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=50_000, help="items, of four hops each; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is taken; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "pipelines", memory=True) as here:
        hops = _measure(here, options.items, options.rounds)
        result = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {
                "rounds": options.rounds,
                "items": options.items,
                "stages": len(LINE) - 1,
                "concurrency": CONCURRENCY,
                "batch": BATCH,
                "bare_batch": CLAIM,
                "measured": "from the start of the run until the last hop; its look for more does not count",
            },
            "ways": {subject.title: _result(subject, hops) for subject in SUBJECTS},
        }
    return {**result, "missed": [title for title, way in result["ways"].items() if not way["reached"]]}


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of one run: hops a second, and the items that did not reach the end."""

    per_second: float
    left: int


def _measure(here: Place, items: int, rounds: int) -> dict[str, list[_Result]]:
    """Run all subjects in turn, round by round, so that a disturbance of the machine affects all of them."""
    results: dict[str, list[_Result]] = {subject.title: [] for subject in SUBJECTS}
    for turn in range(rounds):
        for subject in reversed(SUBJECTS) if turn % 2 else SUBJECTS:
            result = _run(here, subject, items)
            results[subject.title].append(result)
            left = f", {result.left} left" if result.left else ""
            report.progress(f"four hops, {subject.title:26} {result.per_second:9,.0f}/s{left}")
    return results


def _run(here: Place, subject: Subject, items: int) -> _Result:
    with _fill(here, items) as name:
        command = [sys.executable, "-m", "bench.hops", subject.way, here.uri, here.database, name]
        results = run_side_by_side([command] * subject.processes)
        there = here.client[here.database][name].count_documents({"q": LINE[-1]})
    seconds = max(each["ended"] for each in results) - min(each["began"] for each in results)
    return _Result(sum(each["items"] for each in results) / seconds, items - there)


@contextmanager
def _fill(here: Place, items: int) -> Iterator[str]:
    """Push so many items into a collection of their own, and yield its name."""
    collection = here.client[here.database][f"{here.collection}_line"]
    try:
        with Broker(collection) as broker:
            queue = broker.queue(LINE[0])
            for start in range(0, items, PUSHED):
                queue.push_many([payload(number) for number in range(start, min(items, start + PUSHED))])
        yield collection.name
    finally:
        collection.drop()


def _result(subject: Subject, hops: dict[str, list[_Result]]) -> dict[str, Any]:
    results, bare = hops[subject.title], hops[REFERENCE]
    ratio = round(median(a.per_second / b.per_second for a, b in zip(results, bare, strict=True)), 3)
    left = sum(one.left for one in results)
    return {
        "processes": subject.processes,
        "per_second": round(median(one.per_second for one in results)),
        "all": [round(one.per_second) for one in results],
        "left": left,
        "ratio": ratio,
        "target": subject.target,
        "reached": left == 0 and (subject.target is None or ratio >= subject.target),
    }


BENCHMARK = Benchmark(
    "items through four stages that do nothing, beside a bare loop of the same hops", add_options, run
)
