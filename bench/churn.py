"""``python -m bench churn``: push and consume at full speed, and the times of claims, window by window."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import monotonic, perf_counter
from typing import Any

from pymongo import MongoClient

from bench import report
from bench.bare import HISTORY
from bench.benchmark import Benchmark
from bench.place import Address, Place, place
from mongoq import Broker, Item, Queue
from mongoq.core.state.claim_hints import ClaimHints

__all__ = ["BENCHMARK"]

SERVER_WINDOW = 300
"""The server's default for ``minSnapshotHistoryWindowInSeconds``."""
WINDOW = 10.0
SLOWER = 1.5
"""A reserve may take so many times what it took in the first window."""
THROUGHPUT = 0.8
"""Of the first window's must be left."""
PROCESSES = 2
QUEUE = "bench.churn"
DRAIN_EVERY = 1.0
DRAIN = 100
PROBES = 3
START_WITHIN = 120


@dataclass(slots=True)
class Window:
    """The measurements of one process in one window; times in milliseconds.

    Attributes:
        items: how many were pushed and consumed.
        reserve: the time of each reserve.
        empty: the same on the queue just emptied.
        quiet: the same in a collection with little traffic: shows the noise of the machine.
        fast: claims used hints at the end.
    """

    items: int = 0
    reserve: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    fast: bool = False


def _time(call: Callable[[], Item[Any] | None], into: list[float], *, found: bool) -> Item[Any] | None:
    began = perf_counter()
    item = call()
    milliseconds = (perf_counter() - began) * 1000
    if found is (item is not None):
        into.append(milliseconds)
    return item


def _churn(
    where: Address, name: str, *, history: bool, plain: bool, seconds: float, window: float, barrier: Any, results: Any
) -> None:
    """Push and consume in a process of its own."""
    if plain:
        ClaimHints.needs_refresh = lambda *_, **__: False  # type: ignore[method-assign]  # as mongoq would be without hints
    with (
        MongoClient[Any](where.uri) as client,
        Broker(client[where.database][name]) as broker,
        Broker(client[where.database][f"{name}_quiet"]) as apart,
    ):
        queue = broker.queue(QUEUE, history=HISTORY if history else None)
        quiet = apart.queue(QUEUE, history=HISTORY if history else None)
        _turn(queue, quiet, Window())
        barrier.wait(START_WITHIN)
        results.put(list(_windows(queue, quiet, seconds, window)))


def _windows(queue: Queue[Any], quiet: Queue[Any], seconds: float, length: float) -> Iterator[Window]:
    began = drained = monotonic()
    for number in range(max(1, round(seconds / length))):
        window = Window()
        while (now := monotonic()) < began + (number + 1) * length:
            _turn(queue, quiet, window)
            if now - drained >= min(DRAIN_EVERY, length / 2):
                _drain(queue, quiet, window)
                drained = monotonic()
        window.fast = queue._context.state.claim_hints.fast
        yield window


def _turn(queue: Queue[Any], quiet: Queue[Any], window: Window) -> None:
    queue.push("x" * 100)
    item = _time(queue.reserve, window.reserve, found=True)
    if item is not None:
        queue.commit(item)
        window.items += 1


def _drain(queue: Queue[Any], quiet: Queue[Any], window: Window) -> None:
    """Empty the queue, then reserve on the empty queue and on the quiet one."""
    while items := queue.reserve_many(DRAIN):
        queue.commit_many(items)
        window.items += len(items)
    for _ in range(PROBES):
        _time(queue.reserve, window.empty, found=False)
    for number in range(PROBES):
        quiet.push(number)
        if item := _time(quiet.reserve, window.quiet, found=True):
            quiet.commit(item)


def measure(here: Place, *, history: bool, plain: bool, seconds: float, window: float) -> dict[str, Any]:
    """Churn in a fresh collection for ``seconds``, and return the measurements of each window."""
    where = Address(here.uri, here.database, here.collection)
    name = f"{here.collection}_{'history' if history else 'bare'}_{'plain' if plain else 'fast'}"
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    options = {"history": history, "plain": plain, "seconds": seconds, "window": window}
    workers = [
        context.Process(target=_churn, args=(where, name), kwargs={**options, "barrier": barrier, "results": results})
        for _ in range(PROCESSES)
    ]
    try:
        for worker in workers:
            worker.start()
        found = [results.get(timeout=seconds + START_WITHIN) for _ in workers]
        for worker in workers:
            worker.join()
    finally:
        for suffix in ("", "_quiet"):
            here.client[here.database][name + suffix].drop()
    windows = [_window(number, parts, window) for number, parts in enumerate(zip(*found, strict=True))]
    title = f"{'history' if history else 'no history'}, {'plain claims' if plain else 'mongoq'}"
    for each in windows:
        report.progress(_line(title, each))
    return {"history": history, "claims": "plain" if plain else "mongoq", "windows": windows, **_verdict(windows)}


def _window(number: int, parts: tuple[Window, ...], length: float) -> dict[str, Any]:
    def times(name: str) -> dict[str, float] | None:
        milliseconds = [each for part in parts for each in getattr(part, name)]
        if len(milliseconds) < 2:
            return None
        return {"median_ms": round(median(milliseconds), 3), "p99_ms": round(quantiles(milliseconds, n=100)[-1], 3)}

    rate = sum(part.items for part in parts) / length
    measured = {name: times(name) for name in ("reserve", "empty", "quiet")}
    fast = sum(part.fast for part in parts)
    return {"from_s": round(number * length, 1), "items_per_second": round(rate, 1), **measured, "fast": fast}


def _line(title: str, window: dict[str, Any]) -> str:
    def middle(name: str) -> str:
        return "none" if window[name] is None else f"{window[name]['median_ms']:.2f} ms"

    times = f"reserve {middle('reserve')}, empty {middle('empty')}, quiet {middle('quiet')}"
    return f"{title:25} {window['from_s']:5} s: {window['items_per_second']:7.1f}/s, {times}, fast {window['fast']}"


def _verdict(windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the last third of the windows with the first: absolute, and relative to the quiet queue."""
    first, last = windows[0], windows[-max(1, len(windows) // 3) :]

    def ratio(value: Callable[[dict[str, Any]], float | None]) -> float | None:
        at_first, later = value(first), [found for each in last if (found := value(each)) is not None]
        return round(median(later) / at_first, 3) if at_first and later else None

    def took(name: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda each: each[name] and each[name]["median_ms"]

    def beside_quiet(name: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda each: each[name] and each["quiet"] and each[name]["median_ms"] / each["quiet"]["median_ms"]

    ratios = {
        "reserve": ratio(took("reserve")),
        "reserve_beside_quiet": ratio(beside_quiet("reserve")),
        "empty": ratio(took("empty")),
        "empty_beside_quiet": ratio(beside_quiet("empty")),
        "quiet": ratio(took("quiet")),
        "throughput": ratio(lambda each: each["items_per_second"]),
    }
    # by what was measured as it is: beside the quiet queue, a slow machine would excuse slow claims as well
    reached = {
        "reserve": (ratios["reserve"] or 0) <= SLOWER,
        "empty": (ratios["empty"] or 0) <= SLOWER,
        "throughput": (ratios["throughput"] or 0) >= THROUGHPUT,
    }
    return {"last_beside_first": ratios, "reached": reached}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=300, help="how long to churn; default %(default)s")
    parser.add_argument(
        "--plain-seconds", type=float, default=60, help="how long with plain claims; default %(default)s"
    )
    parser.add_argument("--window", type=float, default=WINDOW, help="seconds of a window; default %(default)s")
    parser.add_argument("--history", choices=("on", "off"), help="only with it, or only without")


def run(options: argparse.Namespace) -> dict[str, Any]:
    wanted = [False, True] if options.history is None else [options.history == "on"]
    lengths = {False: options.seconds, True: options.plain_seconds}
    with place(options.uri, options.database, "churn", window=SERVER_WINDOW, memory=True) as here:
        result = {
            "machine": report.machine(here.client, write_concern="majority", processes=PROCESSES),
            "settings": {"seconds": options.seconds, "plain_seconds": options.plain_seconds, "window": options.window},
            "runs": [
                measure(here, history=history, plain=plain, seconds=length, window=options.window)
                for history in wanted
                for plain, length in lengths.items()
                if length > 0
            ],
        }
    runs: Any = result["runs"]
    return {
        **result,
        "missed": [name for each in runs if each["claims"] == "mongoq" for name in _below_target(each)],
    }


def _below_target(measured: dict[str, Any]) -> Iterator[str]:
    history = "with history" if measured["history"] else "without history"
    return (f"{history}: {name}" for name, reached in measured["reached"].items() if not reached)


BENCHMARK = Benchmark(
    "push and consume at full speed for minutes: what a reserve takes then, also on the queue just emptied",
    add_options,
    run,
)
