"""``python -m bench contention``: one queue consumed by 1 to 16 processes, beside bare claims."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from statistics import fmean
from time import monotonic
from typing import Any

from bson import ObjectId
from pymongo import DeleteMany, MongoClient, WriteConcern
from pymongo.collection import Collection
from pymongo.monitoring import CommandListener, CommandStartedEvent

from bench import report
from bench.benchmark import Benchmark
from bench.place import Address, Place, place
from mongoq import Broker

__all__ = ["BENCHMARK"]

PROCESSES = (1, 2, 4, 8, 16)
TARGETS = {"beside_the_first": 0.85, "claimed_of_tried": 0.7, "least_of_mean": 0.25}
"""At least: throughput beside that of the fewest processes, where runs differ by so much by themselves; the share that
was claimed of what was tried; what the slowest consumer did, beside the mean."""
LEASE = timedelta(seconds=60)
ORDER = {"priority": 1, "when": 1, "_id": 1}
QUEUE = "bench.contention"
SEEDS = 10_000
START_WITHIN = 120

Claims = Iterator[int]
"""Consumes: yields how many items each step claimed and settled, until there are none."""


class Tried(CommandListener):
    """Counts the ids that claims tried to take."""

    def __init__(self) -> None:
        self.ids = 0

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "update":
            filter = event.command["updates"][0]["q"]
            wanted = filter.get("_id")
            # A claim names the queue as well; updates of control documents do not.
            self.ids += len(wanted["$in"]) if isinstance(wanted, Mapping) and "q" in filter else 0
        elif event.command_name == "findAndModify":
            self.ids += 1

    def succeeded(self, event: Any) -> None:
        pass

    failed = succeeded


def _mongoq(collection: Collection[Any], batch: int) -> Claims:
    with Broker(collection) as broker:
        queue = broker.queue(QUEUE)
        if batch == 1:
            while (item := queue.reserve(lease=LEASE)) is not None:
                queue.commit(item)
                yield 1
        else:
            while items := queue.reserve_many(batch, lease=LEASE):
                queue.commit_many(items)
                yield len(items)


def _bare(collection: Collection[Any], batch: int) -> Claims:
    """Claim at the head of the queue, as a program without mongoq does."""
    return _bare_single(collection) if batch == 1 else _bare_batches(collection, batch)


def _bare_single(collection: Collection[Any]) -> Claims:
    while True:
        now, token = datetime.now(UTC), ObjectId()
        ready = {"q": QUEUE, "when": {"$lte": now}}
        document = collection.find_one_and_update(ready, _claim(now, token), sort=list(ORDER.items()))
        if document is None:
            return
        collection.delete_one({"_id": document["_id"], "token": token})
        yield 1


def _bare_batches(collection: Collection[Any], batch: int) -> Claims:
    while True:
        now, token = datetime.now(UTC), ObjectId()
        ready: dict[str, Any] = {"q": QUEUE, "when": {"$lte": now}}
        read = collection.find(ready, {"priority": 1, "when": 1}, batch_size=batch + 1).sort(ORDER).limit(batch)
        ids = [document["_id"] for document in read]
        if not ids:
            return
        collection.update_many({"_id": {"$in": ids}, **ready}, _claim(now, token))
        documents = list(collection.find({"_id": {"$in": ids}, "token": token}, batch_size=batch + 1))
        if documents:
            claimed_ids = [document["_id"] for document in documents]
            collection.bulk_write([DeleteMany({"_id": {"$in": claimed_ids}, "token": token})], ordered=False)
            yield len(documents)


def _claim(now: datetime, token: ObjectId) -> dict[str, Any]:
    mine = {"when": now + LEASE, "reserved": True, "token": token, "by": "bench"}
    return {"$set": mine, "$inc": {"attempts": 1}}


WAYS = {"mongoq": _mongoq, "head of the queue, bare": _bare}


def _consume(where: Address, name: str, way: str, batch: int, *, barrier: Any, results: Any) -> None:
    """Consume in a process of its own, and report the counts."""
    tried = Tried()
    with MongoClient[Any](where.uri, event_listeners=[tried], tz_aware=True) as client:
        collection = client[where.database][name]
        collection.find_one()
        barrier.wait(START_WITHIN)
        began, done = monotonic(), 0
        for claimed in WAYS[way](collection, batch):
            done += claimed
        results.put({"done": done, "tried": tried.ids, "seconds": monotonic() - began})


def measure(where: Address, client: MongoClient[Any], way: str, *, processes: int, batch: int, items: int) -> Any:
    """Let ``processes`` processes consume a queue until it is empty."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    with _seed(where, client, items) as name:
        before = _conflicts(client)
        shared = {"barrier": barrier, "results": results}
        consumers = [
            context.Process(target=_consume, args=(where, name, way, batch), kwargs=shared) for _ in range(processes)
        ]
        for consumer in consumers:
            consumer.start()
        counts = [results.get(timeout=START_WITHIN + 600) for _ in consumers]
        for consumer in consumers:
            consumer.join()
        conflicts = _conflicts(client) - before
        left = client[where.database][name].count_documents({"q": QUEUE, "payload": {"$exists": True}})
    return _result(way, counts, batch=batch, conflicts=conflicts, left=left)


def _result(way: str, counts: list[dict[str, Any]], *, batch: int, conflicts: int, left: int) -> dict[str, Any]:
    done, tried = sum(each["done"] for each in counts), sum(each["tried"] for each in counts)
    if batch == 1:
        tried = done + conflicts  # a single claim tries again within the server
    rate, share = done / max(each["seconds"] for each in counts), done / max(1, tried)
    least = min(each["done"] for each in counts) / fmean(each["done"] for each in counts)
    size = "single" if batch == 1 else f"batches of {batch}"
    report.progress(
        f"{size:15} {way:24} {len(counts):2}: {rate:8.0f}/s, {share:.2f} of tried, least {least:.2f} of mean"
    )
    return {
        "processes": len(counts),
        "items": done,
        "left": left,
        "items_per_second": round(rate, 1),
        "claimed_of_tried": round(share, 3),
        "least_of_mean": round(least, 3),
        "write_conflicts": conflicts,
    }


@contextmanager
def _seed(where: Address, client: MongoClient[Any], items: int) -> Iterator[str]:
    name = f"{where.collection}_contended"
    collection = client[where.database][name]
    try:
        with Broker(collection) as broker:
            broker.ensure_indexes()
        target = collection.with_options(write_concern=WriteConcern(w=1))
        first = datetime.now(UTC) - timedelta(hours=1)
        for start in range(0, items, SEEDS):
            numbers = range(start, min(items, start + SEEDS))
            target.insert_many([_envelope(first + timedelta(milliseconds=number)) for number in numbers], ordered=False)
        yield name
    finally:
        collection.drop()


def _envelope(when: datetime) -> dict[str, Any]:
    shared = {"_id": ObjectId(), "q": QUEUE, "payload": "p" * 200, "priority": 0}
    return {**shared, "attempts": 0, "reserved": False, "when": when}


def _conflicts(client: MongoClient[Any]) -> int:
    return int(client.admin.command("serverStatus")["metrics"]["operation"]["writeConflicts"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=int, action="append", metavar="N", help=f"may be repeated; default {PROCESSES}"
    )
    parser.add_argument("--items", type=int, default=4000, help="items of a run of single claims; default %(default)s")
    parser.add_argument("--batch", type=int, default=100, help="items of a batch; default %(default)s")
    parser.add_argument("--batches", type=int, default=800, help="batches of a run of batches; default %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, of which the median; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    processes = options.processes or list(PROCESSES)
    sizes = {"single": (1, options.items), "batch": (options.batch, options.batch * options.batches)}
    with place(options.uri, options.database, "contention", memory=True) as here:
        result = {
            "machine": report.machine(here.client, write_concern="majority"),
            "settings": {"processes": processes, "batch": options.batch, "rounds": options.rounds},
            "modes": {
                mode: _mode(here, processes, batch=batch, items=items, rounds=options.rounds)
                for mode, (batch, items) in sizes.items()
            },
        }
    modes: dict[str, Any] = result["modes"]
    return {**result, "missed": [f"{mode}: {each}" for mode, found in modes.items() for each in found["missed"]]}


def _mode(here: Place, processes: list[int], *, batch: int, items: int, rounds: int) -> dict[str, Any]:
    where = Address(here.uri, here.database, here.collection)
    runs: dict[str, dict[int, list[Any]]] = {way: {number: [] for number in processes} for way in WAYS}
    for _ in range(rounds):
        for number in processes:
            for way in WAYS:
                measured = measure(where, here.client, way, processes=number, batch=batch, items=items)
                runs[way][number].append(measured)
    ways = {way: [_median(each) for each in found.values()] for way, found in runs.items()}
    for found in ways.values():
        for each in found:
            each["beside_the_first"] = round(each["items_per_second"] / found[0]["items_per_second"], 3)
    return {"batch": batch, "items": items, "ways": ways, "missed": list(_below_target(ways["mongoq"]))}


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(runs, key=lambda each: each["items_per_second"])[len(runs) // 2]


def _below_target(rows: list[dict[str, Any]]) -> Iterator[str]:
    for each in rows:
        for name, least in TARGETS.items():
            if each[name] < least:
                yield f"{name} of {each['processes']} processes"


BENCHMARK = Benchmark(
    "one queue consumed by 1 to 16 processes: throughput, share of claimed to tried, and fairness",
    add_options,
    run,
)
