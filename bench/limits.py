"""``python -m bench limits``: two processes under a backlog, and how much of a limit they use; never more than it."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pymongo import MongoClient

from bench import report
from bench.benchmark import Benchmark
from bench.place import Address, place
from mongoq import Broker, Worker
from mongoq.data.rate import parse_rate

__all__ = ["BENCHMARK", "share_of_rate", "worst_window"]

PROCESSES = 2
QUEUE = "bench.limits"
SECONDS = 6.0
WARM_UP_SECONDS = 3.0
RATES = (("100/m", 1), ("5/s", 1), ("20/s", None), ("200/s", None))
MAX_RUNNING = 8
HANDLER_SECONDS = (0.1, 0.005)
UNEVEN_MAX_RUNNING = 3
"""It cannot be divided by the processes."""
BOTH = {"rate": "5/s", "burst": 1, "max_running": UNEVEN_MAX_RUNNING}
BOTH_HANDLER_SECONDS = 0.5
"""With it, ``max_running`` allows a little more than the rate."""
ROUNDS = 2
"""Measurements of each pair, a limited and an unlimited consumer in turns; the median counts."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of both processes.

    Attributes:
        most_running: runs under way at a time, at most.
        share: average number of runs under way, as a share of the limit.
        per_second: runs that began in a second.
    """

    most_running: int
    share: float
    per_second: float


def _connect(address: Address) -> MongoClient[Any]:
    return MongoClient(address.uri)


def _consume(address: Address, options: dict[str, Any], handler_seconds: float, signals: tuple[Any, Any, Any]) -> None:
    """Run a worker with the options until the event is set, and report the begin and the end of each run."""
    ready, stop, results = signals
    runs: list[tuple[float, float]] = []
    with _connect(address) as client, Broker(client[address.database][address.collection]) as broker:
        worker = Worker(broker)

        @worker.consumer(QUEUE, **{"concurrency": MAX_RUNNING, **options})
        def handle(_: Any) -> None:
            began = time.time()
            time.sleep(handler_seconds)
            runs.append((began, time.time()))

        def stop_later() -> None:
            stop.wait()
            worker.stop()

        threading.Thread(target=stop_later, daemon=True).start()
        ready.wait()
        worker.run(signals=False)
    results.put(runs)


def worst_window(starts: Sequence[float], rate: float, burst: int) -> dict[str, float]:
    """Return the window that holds most starts beyond ``burst + T * rate``; ``over`` is negative below the limit."""
    worst = {"starts": 0.0, "seconds": 0.0, "over": float("-inf")}
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            length = starts[last] - begin
            over = last - first + 1 - burst - length * rate
            if over > worst["over"]:
                worst = {"starts": last - first + 1, "seconds": round(length, 4), "over": round(over, 3)}
    return worst


def share_of_rate(starts: Sequence[float], rate: float) -> float:
    """Return the share of the rate that was used, after the warm-up."""
    counted = [start for start in starts if start >= starts[0] + WARM_UP_SECONDS]
    return round((len(counted) - 1) / (counted[-1] - counted[0]) / rate, 4)


def _run_workers(
    address: Address, options: dict[str, Any], seconds: float, *, items: int, handler_seconds: float
) -> list[tuple[float, float]]:
    """Return the runs of all processes."""
    with _connect(address) as client, Broker(client[address.database][address.collection]) as broker:
        broker.drop_queue(QUEUE, force=True)
        client[address.database][address.collection].delete_many({"_id": {"$regex": "^(limit|rate):"}})
        broker.queue(QUEUE).push_many(range(items))
    spawn = multiprocessing.get_context("spawn")
    ready, stop, results = spawn.Barrier(PROCESSES + 1), spawn.Event(), spawn.Queue()
    arguments = (address, options, handler_seconds, (ready, stop, results))
    processes = [spawn.Process(target=_consume, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    ready.wait(timeout=120)
    time.sleep(seconds + WARM_UP_SECONDS)
    stop.set()
    runs = [run for _ in processes for run in results.get(timeout=60)]
    for process in processes:
        process.join()
    return sorted(runs)


def _measure_rate(
    address: Address, options: dict[str, Any], seconds: float, *, handler_seconds: float = 0.0
) -> dict[str, Any]:
    rate = parse_rate(options["rate"])
    per_second = 1000 / rate.interval
    burst = options["burst"] or rate.default_burst
    items = int(per_second * (seconds + 2 * WARM_UP_SECONDS) * 2) + 100
    options = {**options, "burst": burst}
    runs = _run_workers(address, options, seconds, items=items, handler_seconds=handler_seconds)
    starts = [began for began, _ in runs]
    return {
        **options,
        "starts": len(starts),
        "most_running": _count_most(runs),
        "share": share_of_rate(starts, per_second),
        "worst_window": worst_window(starts, per_second, burst),
    }


def _count_most(runs: Sequence[tuple[float, float]]) -> int:
    """Return how many runs were under way at a time, at most."""
    events = sorted([(began, 1) for began, _ in runs] + [(ended, -1) for _, ended in runs])
    running = most = 0
    for _, step in events:
        running += step
        most = max(most, running)
    return most


def _measure_running(
    address: Address, options: dict[str, Any], handler_seconds: float, seconds: float, limit: int = MAX_RUNNING
) -> Runs:
    items = int(limit / handler_seconds * (seconds + 2 * WARM_UP_SECONDS)) + 100
    runs = _run_workers(address, options, seconds, items=items, handler_seconds=handler_seconds)
    begin, end = runs[0][0] + WARM_UP_SECONDS, max(began for began, _ in runs)
    used = sum(max(0.0, min(ended, end) - max(began, begin)) for began, ended in runs)
    per_second = sum(began >= begin for began, _ in runs) / (end - begin)
    return Runs(_count_most(runs), used / (end - begin) / limit, per_second)


def _measure_uneven(address: Address, seconds: float) -> dict[str, Any]:
    """Measure a limit that the processes cannot share evenly."""
    options = {"max_running": UNEVEN_MAX_RUNNING}
    runs = _measure_running(address, options, HANDLER_SECONDS[0], seconds, UNEVEN_MAX_RUNNING)
    measured = {"share": round(runs.share, 4), "per_second": round(runs.per_second, 1)}
    return {**options, "handler_seconds": HANDLER_SECONDS[0], "most_running": runs.most_running, **measured}


def _compare_running(address: Address, handler_seconds: float, seconds: float) -> dict[str, Any]:
    """Measure a limited consumer beside one without a limit, whose concurrency allows as many runs at a time."""
    limited, unlimited = {"max_running": MAX_RUNNING}, {"concurrency": MAX_RUNNING // PROCESSES}
    measured: list[tuple[Runs, Runs]] = []
    for _ in range(ROUNDS):
        first, second = (_measure_running(address, each, handler_seconds, seconds) for each in (limited, unlimited))
        measured.append((first, second))
    return {
        **limited,
        "handler_seconds": handler_seconds,
        "most_running": max(one.most_running for one, _ in measured),
        "share": round(median(one.share for one, _ in measured), 4),
        "per_second": round(median(one.per_second for one, _ in measured), 1),
        "unlimited_per_second": round(median(other.per_second for _, other in measured), 1),
        "to_unlimited": round(median(one.per_second / other.per_second for one, other in measured), 4),
    }


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time of each measurement")
    parser.add_argument("--only", choices=("rates", "max_running", "both"), help="measure one kind of limit")


def _run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "limits") as here:
        address = Address(here.uri, here.database, here.collection)
        machine = report.machine(here.client, write_concern="majority", processes=PROCESSES)
        kinds = (options.only,) if options.only else ("rates", "max_running", "both")
        measured: dict[str, list[dict[str, Any]]] = {"rates": [], "max_running": [], "both": []}
        if "rates" in kinds:
            for text, burst in RATES:
                limits = {"rate": text, "burst": burst}
                measured["rates"].append(_measure_rate(address, limits, options.seconds))
        if "max_running" in kinds:
            measured["max_running"] += [_compare_running(address, each, options.seconds) for each in HANDLER_SECONDS]
            measured["max_running"].append(_measure_uneven(address, options.seconds))
        if "both" in kinds:
            runs = {"handler_seconds": BOTH_HANDLER_SECONDS}
            measured["both"].append({**runs, **_measure_rate(address, BOTH, options.seconds, **runs)})
    return {"machine": machine, "load_average": os.getloadavg()[0], **measured}


BENCHMARK = Benchmark("two processes under a limit: the share that they use, and the worst window", _options, _run)
