"""Claims beside a million items that wait, are done, or are ready, and in a collection of a few items."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

from bson import ObjectId
from pymongo import MongoClient, WriteConcern
from pymongo.collection import Collection

from bench import report, spy
from bench.measure import ThreadCaller, Way, interleave
from bench.place import Place
from mongoq import Broker, Item

__all__ = ["TARGET", "measure_depth"]

TARGET = 1.2
QUEUE = "bench.depth"
PRIORITIES = 10
FEW = 2 * PRIORITIES
"""Ready items beside what waits, evenly over the priorities; a block claims them all."""
BATCH = 5000
FILLERS = 2
"""Threads that fill: one encodes while the other waits."""

Envelope = dict[str, Any]
Kind = Callable[[int, datetime], Envelope]


def _ready(number: int, now: datetime) -> Envelope:
    return {"when": now - timedelta(hours=1) + timedelta(milliseconds=number % 1_000_000)}


def _scheduled(number: int, now: datetime) -> Envelope:
    return {"when": now + timedelta(days=1, milliseconds=number)}


def _processed(number: int, now: datetime) -> Envelope:
    return {
        "processed": now - timedelta(milliseconds=number),
        "expires": now + timedelta(days=7),
        "settled": ObjectId(),
    }


SCENARIOS: dict[str, tuple[Kind, ...]] = {
    "scheduled": (_scheduled,),
    "processed": (_processed,),
    "ready": (_ready,),
    "all together": (_scheduled, _processed, _ready),
}


def measure_depth(place: Place, *, depth: int, rounds: int) -> dict[str, Any]:
    """Measure reserve and pop in each scenario beside a collection of a few items."""
    few, many = f"{place.collection}_few", f"{place.collection}_many"
    scenarios = []
    with _made(place, few) as small:
        _fill(small, _ready, FEW)
        for name, kinds in SCENARIOS.items():
            with _made(place, many) as big:
                seconds = _fill_scenario(big, kinds, depth)
                report.progress(f"{name}: {len(kinds) * depth:,} items in {seconds:.0f} s")
                results = [_measure(place, operation, many, few, rounds) for operation in WAYS]
            items = {kind.__name__.strip("_"): depth for kind in kinds}
            scenarios.append(
                {"scenario": name, "items": items, "fill_seconds": round(seconds, 1), "operations": results}
            )
    return {"few": FEW, "priorities": PRIORITIES, "scenarios": scenarios}


@contextmanager
def _made(place: Place, name: str) -> Iterator[Collection[Any]]:
    """Make a collection with the indexes of mongoq, and drop it at the end."""
    try:
        with _opened(place.client, place.database, name) as (collection, broker):
            broker.ensure_indexes()
            yield collection
    finally:
        place.client[place.database][name].drop()


@contextmanager
def _opened(client: MongoClient[Any], database: str, name: str) -> Iterator[tuple[Collection[Any], Broker]]:
    collection = client[database][name]
    with Broker(collection) as broker:
        yield collection, broker


def _fill_scenario(collection: Collection[Any], kinds: Sequence[Kind], depth: int) -> float:
    """Fill, and return how many seconds it took."""
    started = perf_counter()
    for kind in kinds:
        _fill(collection, kind, depth)
    if _ready not in kinds:
        _fill(collection, _ready, FEW)
    return perf_counter() - started


def _fill(collection: Collection[Any], kind: Kind, n: int) -> None:
    target = collection.with_options(write_concern=WriteConcern(w=1))
    now = datetime.now(UTC)
    failures: list[Exception] = []

    def fill(first: int) -> None:
        try:
            for start in range(first, n, BATCH * FILLERS):
                numbers = range(start, min(start + BATCH, n))
                target.insert_many([_envelope(kind, number, now) for number in numbers], ordered=False)
        except Exception as error:
            failures.append(error)

    fillers = [threading.Thread(target=fill, args=(BATCH * number,)) for number in range(FILLERS)]
    for filler in fillers:
        filler.start()
    for filler in fillers:
        filler.join()
    if failures:
        raise failures[0]


def _envelope(kind: Kind, number: int, now: datetime) -> Envelope:
    shared = {"_id": ObjectId(), "q": QUEUE, "payload": number, "attempts": 0, "reserved": False}
    return {**shared, "priority": number % PRIORITIES, **kind(number, now)}


def _reserve(collection: Collection[Any], broker: Broker) -> Way:
    """Reserve, and release outside the timing."""
    queue = broker.queue(QUEUE)

    def restore(items: list[Item[Any] | None]) -> None:
        for item in _all(items):
            queue.release(item)

    return Way(lambda _: queue.reserve(), _nothing, restore)


def _pop(collection: Collection[Any], broker: Broker) -> Way:
    """Pop, and put back as it was outside the timing."""
    queue = broker.queue(QUEUE)

    def restore(items: list[Item[Any] | None]) -> None:
        collection.insert_many([_as_it_was(item) for item in _all(items)])

    return Way(lambda _: queue.pop(), _nothing, restore)


MakeWay = Callable[[Collection[Any], Broker], Way]
WAYS: dict[str, MakeWay] = {"reserve": _reserve, "pop": _pop}


def _nothing(n: int) -> list[None]:
    return [None] * n


def _all(items: list[Item[Any] | None]) -> list[Item[Any]]:
    found = [item for item in items if item is not None]
    if len(found) < len(items):
        raise RuntimeError(f"{len(items) - len(found)} of {len(items)} claims found nothing")
    return found


def _as_it_was(item: Item[Any]) -> Envelope:
    return {
        "_id": item.id,
        "q": item.queue,
        "payload": item.payload,
        "when": item.due,
        "priority": item.priority,
        "attempts": item.attempts - 1,
        "reserved": False,
    }


def _measure(place: Place, operation: str, many: str, few: str, rounds: int) -> dict[str, Any]:
    make = WAYS[operation]
    with _opened(place.client, place.database, many) as big, _opened(place.client, place.database, few) as small:
        comparison = interleave(ThreadCaller(), make(*big), make(*small), rounds=rounds, calls=FEW)
    ratio = comparison.time_ratio()
    report.progress(f"{operation} takes {ratio.median:.3f} ± {ratio.error:.3f} of the time among few items")
    return {
        "operation": operation,
        "many": report.latency(comparison.subject) | _plans(make, place, many),
        "few": report.latency(comparison.reference) | _plans(make, place, few),
        "ratio": report.spread(ratio),
        "target": TARGET,
        "reached": ratio.median <= TARGET,
    }


def _plans(make: MakeWay, place: Place, name: str) -> dict[str, Any]:
    """Explain the claim as it is really sent: at the first of the few items, and at the last one left."""
    watch = spy.Spy()
    client: MongoClient[Any] = MongoClient(place.uri, event_listeners=[watch])
    with client, _opened(client, place.database, name) as opened:
        way = make(*opened)
        block = ThreadCaller().block(way.call, way.prepare(FEW - 1))
        claim = [command for command in watch.commands if "findAndModify" in command][-1]
        last = spy.plan(place.client, place.database, claim)
        way.restore(block.replies)
        return {"plan_of_first": spy.plan(place.client, place.database, claim), "plan_of_last": last}
