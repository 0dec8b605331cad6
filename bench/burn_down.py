"""A full queue emptied by workers whose handlers do nothing, beside a loop of the bare driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import report
from bench.drain import QUEUE
from bench.operations import payload
from bench.place import Place
from bench.processes import Watch, run_side_by_side
from mongoq import Broker

__all__ = ["SUBJECTS", "BurnDown", "Subject", "empty_queue", "measure"]

PUSHED = 10_000
REFERENCE = "bare"
"""What the others are compared with."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A program that empties the queue.

    Attributes:
        title: its name in the result.
        way: its name in ``drain.WAYS``.
        processes: how many at once.
        share: of the items, where it is slow.
        target: how many items a second at least, beside the bare loop.
        beyond: the title of what it is to be faster than.
    """

    title: str
    way: str
    processes: int = 1
    share: float = 1.0
    target: float | None = None
    beyond: str | None = None


SUBJECTS = (
    Subject("bare", "bare"),
    Subject("bare, asyncio", "bare-asyncio"),
    Subject("threads", "threads", target=0.75),
    Subject("asyncio", "asyncio", target=0.75),
    Subject("threads, batches of 100", "batches", target=0.75),
    Subject("asyncio, plain function", "plain", share=0.1),
    Subject("bare, 2 processes", "bare", processes=2),
    Subject("threads, 2 processes", "threads", processes=2, beyond="threads"),
    Subject("asyncio, 2 processes", "asyncio", processes=2, beyond="asyncio"),
)


@contextmanager
def fill(here: Place, items: int) -> Iterator[str]:
    """Push so many items into a collection of their own, and yield its name."""
    collection = here.client[here.database][f"{here.collection}_burn"]
    try:
        with Broker(collection) as broker:
            queue = broker.queue(QUEUE)
            for start in range(0, items, PUSHED):
                queue.push_many([payload(number) for number in range(start, min(items, start + PUSHED))])
        yield collection.name
    finally:
        collection.drop()


@dataclass(frozen=True, slots=True)
class BurnDown:
    """The result of one run: items a second from the common start until the last delete, and the items left."""

    per_second: float
    left: int


def empty_queue(here: Place, subject: Subject, items: int, *, watch: Watch | None = None) -> BurnDown:
    """Let the subject empty a full queue."""
    with fill(here, max(1, round(items * subject.share))) as name:
        command = [sys.executable, "-m", "bench.drain", subject.way, here.uri, here.database, name]
        results = run_side_by_side([command] * subject.processes, watch=watch)
        left = here.client[here.database][name].count_documents({"q": QUEUE, "payload": {"$exists": True}})
    seconds = max(each["ended"] for each in results) - min(each["began"] for each in results)
    return BurnDown(sum(each["items"] for each in results) / seconds, left)


def measure(here: Place, items: int, rounds: int) -> dict[str, Any]:
    """Run all subjects in turn, round by round, so that a disturbance of the machine affects all of them."""
    burns: dict[str, list[BurnDown]] = {subject.title: [] for subject in SUBJECTS}
    for turn in range(rounds):
        for subject in reversed(SUBJECTS) if turn % 2 else SUBJECTS:
            burn = empty_queue(here, subject, items)
            burns[subject.title].append(burn)
            left = f", {burn.left} left" if burn.left else ""
            report.progress(f"burn-down, {subject.title:26} {burn.per_second:9,.0f}/s{left}")
    return {
        "items": items,
        "measured": "from the start of the worker until its last item was deleted; its look for more does not count",
        "ways": {subject.title: _result(subject, burns) for subject in SUBJECTS},
    }


def _result(subject: Subject, burns: dict[str, list[BurnDown]]) -> dict[str, Any]:
    results = burns[subject.title]
    left, ratio = sum(burn.left for burn in results), _ratio(results, burns[REFERENCE])
    result: dict[str, Any] = {
        "processes": subject.processes,
        "per_second": round(median(burn.per_second for burn in results)),
        "all": [round(burn.per_second) for burn in results],
        "left": left,
        "ratio": ratio,
        "target": subject.target,
        "reached": left == 0 and (subject.target is None or ratio >= subject.target),
    }
    if subject.beyond is not None:
        result["times_one_process"] = _ratio(results, burns[subject.beyond])
        result["reached"] = left == 0 and result["times_one_process"] > 1
    return result


def _ratio(results: list[BurnDown], references: list[BurnDown]) -> float:
    """Return the median over rounds of the rate divided by the reference's rate in the same round."""
    return round(median(a.per_second / b.per_second for a, b in zip(results, references, strict=True)), 3)
