"""Claims in a collection with a million scheduled, processed or ready items, beside one with a few items."""

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
from bench.measure import WARM_UP, ThreadCaller, Way, interleave
from bench.place import Place
from mongoq import Broker, Item, Queue
from mongoq.data.indexes import CLAIM

__all__ = ["TARGET", "measure_depth"]

TARGET = 1.2
QUEUE = "bench.depth"
PRIORITIES = 10
FEW = 2 * PRIORITIES
"""Ready items beside what waits, evenly over the priorities; a block claims them all."""
BATCH = 5000
FILLERS = 2
"""Threads that fill: one encodes while the other waits."""
SKIPPED = "Total number of entries skipped by cursor next calls"

Envelope = dict[str, Any]
Kind = Callable[[int, datetime], Envelope]


def _ready(number: int, now: datetime) -> Envelope:
    return {"when": now - timedelta(days=1) + timedelta(milliseconds=number)}


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
    for name, kinds in SCENARIOS.items():
        with _make_collection(place, few) as small, _make_collection(place, many) as big:
            _fill(small, _ready, FEW)
            seconds = _fill_scenario(big, kinds, depth)
            report.progress(f"{name}: {len(kinds) * depth:,} items in {seconds:.0f} s")
            results = [_measure(place, operation, many, few, rounds) for operation in WAYS]
        items = {kind.__name__.strip("_"): depth for kind in kinds}
        scenarios.append({"scenario": name, "items": items, "fill_seconds": round(seconds, 1), "operations": results})
    return {"few": FEW, "priorities": PRIORITIES, "rounds": rounds, "scenarios": scenarios}


@contextmanager
def _make_collection(place: Place, name: str) -> Iterator[Collection[Any]]:
    """Make a collection with the indexes of mongoq, and drop it at the end."""
    try:
        with _open(place.client, place.database, name) as (collection, broker):
            broker.ensure_indexes()
            yield collection
    finally:
        place.client[place.database][name].drop()


@contextmanager
def _open(client: MongoClient[Any], database: str, name: str) -> Iterator[tuple[Collection[Any], Broker]]:
    collection = client[database][name]
    with Broker(collection) as broker:
        yield collection, broker


def _fill_scenario(collection: Collection[Any], kinds: Sequence[Kind], depth: int) -> float:
    """Fill the collection, and return the seconds that it took."""
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


def _reserve(queue: Queue[Any]) -> Way:
    """Reserve; release outside the timing."""

    def restore(items: list[Item[Any] | None]) -> None:
        for item in _all(items):
            queue.release(item)

    return Way(lambda _: queue.reserve(), _nothing, restore)


def _pop(queue: Queue[Any]) -> Way:
    """Pop; push again outside the timing.

    Every pop leaves a deleted entry at the head of the index. Claims walk over these until the server removes them,
    which it does sooner in a small index. They are counted beside the times, because they are a cost of churn, not
    of depth; more rounds leave more of them.
    """

    def restore(items: list[Item[Any] | None]) -> None:
        for item in _all(items):
            queue.push(item.payload, priority=item.priority)

    return Way(lambda _: queue.pop(), _nothing, restore)


MakeWay = Callable[[Queue[Any]], Way]
WAYS: dict[str, MakeWay] = {"reserve": _reserve, "pop": _pop}


def _nothing(n: int) -> list[None]:
    return [None] * n


def _all(items: list[Item[Any] | None]) -> list[Item[Any]]:
    items_found = [item for item in items if item is not None]
    if len(items_found) < len(items):
        raise RuntimeError(f"{len(items) - len(items_found)} of {len(items)} claims found nothing")
    return items_found


def _measure(place: Place, operation: str, many: str, few: str, rounds: int) -> dict[str, Any]:
    make = WAYS[operation]
    skipped = _Skipped(place, rounds, many, few)
    with (
        _open(place.client, place.database, many) as (_, big),
        _open(place.client, place.database, few) as (_, small),
    ):
        comparison = interleave(
            ThreadCaller(), make(big.queue(QUEUE)), make(small.queue(QUEUE)), rounds=rounds, calls=FEW
        )
    ratio = comparison.time_ratio()
    report.progress(f"{operation} takes {ratio.median:.3f} ± {ratio.error:.3f} of the time among few items")
    return {
        "operation": operation,
        "many": report.latency(comparison.subject) | skipped.since(many) | _plans(make, place, many),
        "few": report.latency(comparison.reference) | skipped.since(few) | _plans(make, place, few),
        "ratio": report.spread(ratio),
        "target": TARGET,
        "reached": ratio.median <= TARGET,
    }


class _Skipped:
    """Counts the deleted entries that claims walked over, from the server's statistics of the index."""

    def __init__(self, place: Place, rounds: int, *names: str) -> None:
        self._place = place
        self._calls = (rounds + WARM_UP) * FEW
        self._before = {name: self._total(name) for name in names}

    def _total(self, name: str) -> int:
        statistics = self._place.client[self._place.database].command("collStats", name, indexDetails=True)
        total: int = statistics["indexDetails"][CLAIM.name]["cursor"][SKIPPED]
        return total

    def since(self, name: str) -> dict[str, float]:
        per_call = (self._total(name) - self._before[name]) / self._calls
        return {"dead_entries_skipped_per_call": round(per_call, 1)}


def _plans(make: MakeWay, place: Place, name: str) -> dict[str, Any]:
    """Explain the claim as mongoq sends it: with all of the few items, and with one item left."""
    watch = spy.Spy()
    caller = ThreadCaller()
    client: MongoClient[Any] = MongoClient(place.uri, event_listeners=[watch])

    def plan() -> dict[str, Any]:
        claim = [command for command in watch.commands if "findAndModify" in command][-1]
        return spy.plan(place.client, place.database, claim)

    with client, _open(client, place.database, name) as (_, broker):
        way = make(broker.queue(QUEUE))
        replies = caller.block(way.call, way.prepare(1)).replies
        first = plan()
        replies += caller.block(way.call, way.prepare(FEW - 2)).replies
        last = plan()
        way.restore(replies)
        return {"plan_of_first": first, "plan_of_last": last}
