"""``python -m bench sequences``: many sequences in batches, and one hot one, beside the same transactions by hand."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench import plain_loop, report
from bench.benchmark import Benchmark
from bench.operations import PAYLOAD_BYTES, payload
from bench.place import Place, place
from bench.sequences_bare import BareSequences
from mongoq import Broker, Worker

__all__ = ["BENCHMARK"]

ROOT = Path(__file__).parents[1]
BATCH = 1_000
AIMS = {"batches": 5_000, "singly": None, "worker": 500}
"""Items per second, each pushed, reserved and committed; of the hot sequence each reserved and committed."""
LEAST = {"batches": 0.9, "singly": 0.9, "worker": 0.7}
"""Of the rate of the bare driver, which has neither threads nor handlers."""
SAME = 0.98
"""Of the rate of the commit before, for queues without sequences."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sequences", type=int, default=1_000, help="how many in batches; default %(default)s")
    parser.add_argument("--items", type=int, default=10, help="items of each of them; default %(default)s")
    parser.add_argument("--hot", type=int, default=2_000, help="items of the hot sequence; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements; default %(default)s")
    parser.add_argument("--before", type=Path, help="a checkout of another commit: plain queues are compared with it")
    parser.add_argument("--plain-seconds", type=float, default=3, help="of each run of these; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "sequences", memory=True) as here:
        measured: dict[str, Any] = {}
        for name, measure in (("batches", _measure_batches), ("singly", _measure_singly), ("worker", _measure_worker)):
            rates = [_measure_pair(here, measure, options, turn) for turn in range(options.rounds)]
            measured[name] = _result(name, rates)
        if options.before is not None:
            measured |= _measure_plain(here, options)
        settings = {name: getattr(options, name) for name in ("sequences", "items", "hot", "rounds")}
        result = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {**settings, "batch": BATCH},
            **measured,
        }
    return {**result, "missed": [name for name, each in measured.items() if not each["reached"]]}


Measure = Callable[[Any, argparse.Namespace, Broker], float]


def _measure_pair(here: Place, measure: Measure, options: argparse.Namespace, turn: int) -> dict[str, float]:
    """Measure both ways, each in a collection of its own; the one that is first changes from pair to pair."""
    rates = {}
    for way in ("bare", "mongoq") if turn % 2 else ("mongoq", "bare"):
        collection = here.client[here.database][f"{here.collection}_{way}"]
        try:
            with Broker(collection) as broker:
                broker.ensure_indexes()
                queue = broker.queue("bench") if way == "mongoq" else BareSequences(here.client, collection, "bench")
                rates[way] = measure(queue, options, broker)
        finally:
            collection.drop()
    report.progress(f"{measure.__name__:18} {rates['mongoq']:8,.0f}/s, bare {rates['bare']:8,.0f}/s")
    return rates


def _measure_batches(queue: Any, options: argparse.Namespace, _: Broker) -> float:
    """Push, reserve and commit in batches; return items per second."""
    names = [f"customer-{number}" for number in range(options.sequences)]
    began, number = perf_counter(), 0
    for turn in range(options.items):
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            queue.push_many([payload(turn)] * len(some), sequences=some)
    while items := queue.reserve_many(BATCH):
        queue.commit_many(items)
        number += len(items)
    _check(number, options.items * len(names))
    return number / (perf_counter() - began)


def _push_hot(queue: Any, options: argparse.Namespace) -> None:
    for start in range(0, options.hot, BATCH):
        size = min(BATCH, options.hot - start)
        queue.push_many([payload(0)] * size, sequences=["hot"] * size)


def _measure_singly(queue: Any, options: argparse.Namespace, _: Broker) -> float:
    """Reserve and commit the items of one sequence, one by one; return items per second."""
    _push_hot(queue, options)
    began, number = perf_counter(), 0
    while (item := queue.reserve()) is not None:
        queue.commit(item)
        number += 1
    _check(number, options.hot)
    return number / (perf_counter() - began)


def _measure_worker(queue: Any, options: argparse.Namespace, broker: Broker) -> float:
    """Let a worker run the items of one sequence; return items per second."""
    _push_hot(queue, options)
    began, number = perf_counter(), 0
    if isinstance(queue, BareSequences):
        item = queue.reserve()
        while item is not None:
            item = queue.commit_and_reserve(item)
            number += 1
        _check(number, options.hot)
        return number / (perf_counter() - began)
    worker = Worker(broker)

    @worker.consumer(queue)
    def count(_: Any) -> None:
        nonlocal began, number
        number += 1
        if number == 1:
            began = perf_counter()
        if number == options.hot:
            worker.stop()

    worker.run(signals=False)
    _check(number, options.hot)
    return number / (perf_counter() - began)


def _check(number: int, expected: int) -> None:
    if number != expected:
        raise RuntimeError(f"{number} of {expected} items came out")


def _result(name: str, rates: list[dict[str, float]]) -> dict[str, Any]:
    ratio = round(median(each["mongoq"] / each["bare"] for each in rates), 3)
    rate = round(median(each["mongoq"] for each in rates))
    return {
        "per_second": rate,
        "bare_per_second": round(median(each["bare"] for each in rates)),
        "to_bare": ratio,
        "least": LEAST[name],
        "aim_per_second": AIMS[name],
        "reached": ratio >= LEAST[name],
        "all": [round(each["mongoq"]) for each in rates],
    }


def _measure_plain(here: Place, options: argparse.Namespace) -> dict[str, Any]:
    """Measure queues without sequences with this checkout and with the one before, in turn."""
    rates: dict[str, list[dict[str, float]]] = {"now": [], "before": []}
    for turn in range(options.rounds):
        for way in ("before", "now") if turn % 2 else ("now", "before"):
            path = ROOT if way == "now" else options.before.resolve()
            name = f"{here.collection}_plain"
            command = [sys.executable, plain_loop.__file__, here.uri, here.database, name, str(options.plain_seconds)]
            try:
                environment = {**os.environ, "PYTHONPATH": str(path)}
                done = subprocess.run(command, check=True, cwd=path, env=environment, capture_output=True, text=True)
            finally:
                here.client[here.database][name].drop()
            rates[way].append(json.loads(done.stdout))
        report.progress(f"plain: now {rates['now'][-1]}, before {rates['before'][-1]}")
    return {f"plain {kind}": _plain_result(kind, rates) for kind in ("singly", "batches")}


def _plain_result(kind: str, rates: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    ratio = round(median(now[kind] / old[kind] for now, old in zip(rates["now"], rates["before"], strict=True)), 3)
    per_second = {way: round(median(each[kind] for each in found)) for way, found in rates.items()}
    return {"per_second": per_second, "to_before": ratio, "least": SAME, "reached": ratio >= SAME}


BENCHMARK = Benchmark("many sequences in batches and one hot sequence, beside the bare driver", add_options, run)
