"""``python -m bench telemetry``: workers without telemetry, with it and without an SDK, and with an SDK."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from bench import report
from bench.benchmark import Benchmark
from bench.drain import CONCURRENCY, QUEUE
from bench.operations import PAYLOAD_BYTES, payload
from bench.place import Place, place
from bench.processes import run_side_by_side
from bench.telemetry_drain import HANDLERS, TELEMETRY
from mongoq import Broker

__all__ = ["BENCHMARK"]

SHELLS = ("threads", "asyncio")
REFERENCE = "off"
"""What the others are compared with."""
TARGETS = {"off, again": 0.97, "no SDK": 0.97}
"""Rates beside ``off``, at least."""
PUSHED = 10_000
HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
"""Headers of all items, as of a producer with telemetry."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=40_000, help="items for empty handlers; default %(default)s")
    parser.add_argument("--waiting-items", type=int, default=8_000, help="for those that wait; default %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each way in turn; default %(default)s")
    parser.add_argument("--shell", choices=SHELLS, action="append", help="only this one; may be repeated")
    parser.add_argument("--handler", choices=list(HANDLERS), action="append", help="only this one; may be repeated")


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one worker: items a second, microseconds of its processor for an item, and the items left."""

    per_second: float
    processor_us: float
    left: int


def run(options: argparse.Namespace) -> dict[str, Any]:
    items = {"nothing": options.items, "waits 1 ms": options.waiting_items}
    cases = list(product(options.shell or SHELLS, options.handler or HANDLERS))
    with place(options.uri, options.database, "telemetry", memory=True) as here:
        machine = report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES)
        runs: dict[tuple[str, str], dict[str, list[Run]]] = {case: {way: [] for way in TELEMETRY} for case in cases}
        for turn in range(options.rounds):
            for case in cases:
                for way in reversed(TELEMETRY) if turn % 2 else TELEMETRY:
                    one = _empty(here, *case, way, items[case[1]])
                    runs[case][way].append(one)
                    text = (
                        f"{one.per_second:9,.0f}/s {one.processor_us:6.1f} µs{f', {one.left} left' if one.left else ''}"
                    )
                    report.progress(f"{', '.join(case):22} {way:28} {text}")
        machine["load_average_at_end"] = report.machine(here.client)["load_average"]
    workers = {", ".join(case): {way: _result(way, runs[case]) for way in TELEMETRY} for case in cases}
    missed = [f"{case}: {way}" for case, ways in workers.items() for way, each in ways.items() if not each["reached"]]
    settings = {"items": items, "rounds": options.rounds, "concurrency": CONCURRENCY}
    return {"machine": machine, "settings": settings, "workers": workers, "missed": missed}


@contextmanager
def _fill(here: Place, items: int) -> Iterator[str]:
    collection = here.client[here.database][f"{here.collection}_full"]
    try:
        with Broker(collection) as broker:
            queue = broker.queue(QUEUE)
            for start in range(0, items, PUSHED):
                numbers = range(start, min(items, start + PUSHED))
                queue.push_many([payload(number) for number in numbers], headers=HEADERS)
        yield collection.name
    finally:
        collection.drop()


def _empty(here: Place, shell: str, handler: str, way: str, items: int) -> Run:
    with _fill(here, items) as name:
        words = [shell, handler, way, here.uri, here.database, name]
        [result] = run_side_by_side([[sys.executable, "-m", "bench.telemetry_drain", *words]])
        left = here.client[here.database][name].count_documents({"q": QUEUE, "payload": {"$exists": True}})
    seconds = result["ended"] - result["began"]
    return Run(result["items"] / seconds, result["processor"] / result["items"] * 1e6, left)


def _result(way: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    own, references = runs[way], runs[REFERENCE]
    pairs = list(zip(own, references, strict=True))
    ratio = median(one.per_second / other.per_second for one, other in pairs)
    target, left = TARGETS.get(way), sum(one.left for one in own)
    return {
        "per_second": round(median(one.per_second for one in own)),
        "processor_us": round(median(one.processor_us for one in own), 1),
        "all": [round(one.per_second) for one in own],
        "all_processor_us": [round(one.processor_us, 1) for one in own],
        "left": left,
        "ratio": round(ratio, 3),
        "more_processor_us": round(median(one.processor_us - other.processor_us for one, other in pairs), 1),
        "target": target,
        "reached": left == 0 and (target is None or ratio >= target),
    }


BENCHMARK = Benchmark("workers without telemetry, without an SDK, and with one", add_options, run)
