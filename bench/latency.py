"""``python -m bench latency``: from a push in one process to the return of ``reserve`` in another that was idle."""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from contextlib import ExitStack
from typing import Any

from pymongo import MongoClient, monitoring

import mongoq
from bench import report
from bench.benchmark import Benchmark
from bench.pickup import WAYS, Producer
from bench.place import Place, place

__all__ = ["BENCHMARK"]

TARGET = 1.3
WORST_MS = 20.0
IDLE_TARGET = 1.0
WARM_UP = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=300, help="items picked up in each way; default %(default)s")
    parser.add_argument("--rest", type=float, default=0.03, help="seconds of rest before each; default %(default)s")
    parser.add_argument("--queues", type=int, default=100, help="queues waited on when idle; default %(default)s")
    parser.add_argument("--idle", type=float, default=30, help="seconds of idling; 0 for none; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "latency") as here:
        result: dict[str, Any] = {
            "machine": report.machine(here.client, write_concern="majority"),
            "settings": {name: getattr(options, name) for name in ("rounds", "rest", "queues", "idle")},
            "pickup": _pickup(here, options),
        }
        if options.idle:
            result["idle"] = _idle(here, options)
    return {**result, "missed": _above_target(result)}


def _pickup(here: Place, options: argparse.Namespace) -> dict[str, Any]:
    """Let all ways take turns, each in a collection of its own, so that no way sees another's events."""
    collections = {way: f"{here.collection}_{place}" for place, way in enumerate(WAYS)}
    with ExitStack() as opened:
        for name in collections.values():
            opened.callback(here.client[here.database][name].drop)
            with mongoq.Broker(here.client[here.database][name]) as broker:
                broker.ensure_indexes()
        producer = Producer(here.uri, here.database, collections)
        opened.callback(producer.close)
        consumers = {way: make(here.uri, here.database, collections[way]) for way, make in WAYS.items()}
        for consumer in consumers.values():
            opened.callback(consumer.close)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(WARM_UP + options.rounds):
            for way, consumer in consumers.items():
                producer.order(way, options.rest)
                pushed, arrived = consumer.take()
                if number >= WARM_UP:
                    times[way].append((arrived - pushed) / 1_000_000)
    ways = {way: _with_ratios(milliseconds) for way, milliseconds in times.items()}
    bare = ways["bare"]["median_ms"]
    return {way: {**told, "ratio": round(told["median_ms"] / bare, 3)} for way, told in ways.items()}


def _with_ratios(milliseconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(milliseconds, n=100)
    return {
        "median_ms": round(statistics.median(milliseconds), 3),
        "p90_ms": round(cuts[89], 3),
        "p99_ms": round(cuts[98], 3),
    }


class _Counter(monitoring.CommandListener):
    """Counts the commands of a client."""

    def __init__(self) -> None:
        self.commands = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.commands += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


def _idle(here: Place, options: argparse.Namespace) -> dict[str, float]:
    """Count the commands of a process that waits on many idle queues."""
    counter = _Counter()
    with (
        MongoClient[Any](here.uri, event_listeners=[counter]) as client,
        mongoq.Broker(client[here.database][here.collection]) as broker,
    ):
        waiting = [
            threading.Thread(target=_wait, args=(broker, f"idle.{number}"), daemon=True)
            for number in range(options.queues)
        ]
        for thread in waiting:
            thread.start()
        time.sleep(2 + options.queues / 50)
        settling, began = counter.commands, time.monotonic()
        time.sleep(options.idle)
        rate = (counter.commands - settling) / (time.monotonic() - began)
        broker.close()
        for thread in waiting:
            thread.join()
    return {"queues": options.queues, "commands_to_settle": settling, "commands_per_second": round(rate, 3)}


def _wait(broker: mongoq.Broker, queue: str) -> None:
    try:
        broker.queue(queue).reserve(wait=float("inf"))
    except mongoq.BrokerClosed:
        pass


def _above_target(result: dict[str, Any]) -> list[str]:
    missed = []
    for way in ("sync", "asyncio"):
        figures = result["pickup"][way]
        if figures["ratio"] > TARGET:
            missed.append(f"{way}: median {figures['ratio']} times the bare loop's, above {TARGET}")
        if figures["p99_ms"] > WORST_MS:
            missed.append(f"{way}: 99th percentile {figures['p99_ms']} ms, above {WORST_MS}")
    if "idle" in result and result["idle"]["commands_per_second"] >= IDLE_TARGET:
        missed.append(f"idle: {result['idle']['commands_per_second']} commands per second")
    return missed


BENCHMARK = Benchmark("pickup of a push by an idle process, and what idling costs", add_options, run)
