"""Batches: each operation on many items beside the same commands of the bare driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from bench import bare_many, operations, report
from bench.bare import HISTORY, Bare
from bench.bare_many import HeldMany
from bench.measure import Way, interleave
from bench.operations import MINUTE_AGO, State
from bench.pairs import QUEUES, Pairs, compare, line, queue_name
from bench.place import Place
from bench.shells import SHELLS
from mongoq import Item, Move

__all__ = ["BATCHES", "BLOCK", "SIZES", "TARGET", "Batch", "measure_batches"]

TARGET = 0.9
SIZES = (100, 1000)
BLOCK = 500
"""Items that the calls of a block share, where a batch is not larger by itself."""
MOST_CALLS = 5
ELSEWHERE = "bench.elsewhere"


@dataclass(frozen=True, slots=True)
class Batch:
    """One operation on a batch.

    Attributes:
        name: its name in ``CALLS`` of both ways.
        state: what the queue holds before a block.
        history: the queue keeps what is processed.
        apart: each item was due at its own time, not all at the same time.
        payloads: the call is given a payload for each item.
    """

    name: str
    state: State
    history: bool = False
    apart: bool = False
    payloads: bool = False


BATCHES = (
    Batch("push_many", "empty", payloads=True),
    Batch("reserve_many", "ready"),
    Batch("commit_many", "reserved"),
    Batch("commit_many with history", "reserved", history=True),
    Batch("rollback_many", "reserved"),
    Batch("release_many", "reserved"),
    Batch("release_many, dues apart", "reserved", apart=True),
    Batch("extend_many", "reserved"),
    Batch("move_many", "reserved"),
    Batch("move_many, own payloads", "reserved", payloads=True),
)
CONTROL = BATCHES[0]
"""Measured against itself, to tell how much of a ratio is noise."""

CALLS: Mapping[str, Callable[[Any, Any], Any]] = {
    "push_many": lambda queue, payloads: queue.push_many(payloads),
    "reserve_many": lambda queue, n: queue.reserve_many(n),
    "commit_many": lambda queue, items: queue.commit_many(items),
    "commit_many with history": lambda queue, items: queue.commit_many(items),
    "rollback_many": lambda queue, items: queue.rollback_many(items, error="bench"),
    "release_many": lambda queue, items: queue.release_many(items),
    "release_many, dues apart": lambda queue, items: queue.release_many(items),
    "extend_many": lambda queue, items: queue.extend_many(items),
    "move_many": lambda queue, items: queue.move_many([(item, Move(ELSEWHERE)) for item in items]),
    "move_many, own payloads": lambda queue, subject: queue.move_many(
        [(item, Move(ELSEWHERE, payload=payload)) for item, payload in zip(*subject, strict=True)]
    ),
}
"""By the name of the operation: the call, given a queue (of either shell) and its subject."""


def measure_batches(name: str, place: Place, wanted: list[Batch], *, sizes: list[int], rounds: int) -> dict[str, Any]:
    """Measure batches in one shell, and the noise; ``result["operations"]`` has one entry for each and each size."""
    with SHELLS[name](place.uri) as shell:
        pairs = Pairs(shell, place)
        results, noises = [], {}
        for size in sizes:
            calls = max(1, min(MOST_CALLS, BLOCK // size))
            for batch in wanted:
                mongoq, driver = partial(_mongoq, pairs, batch, size), partial(_driver, pairs, batch, size)
                comparison = interleave(shell.caller, mongoq(False), driver(False), rounds=rounds, calls=calls)
                result = {"operation": batch.name, "items": size, **compare(comparison, TARGET)}
                results.append(result | pairs.same_commands(mongoq, driver))
                report.progress(line(name, f"{batch.name} {size}", result))
            control = _driver(pairs, CONTROL, size, False)
            noise = interleave(shell.caller, control, control, rounds=rounds, calls=calls).rate_ratio()
            report.progress(f"{name:8} {f'bare push_many {size}':30} {noise.median:.3f} ± {noise.error:.3f} of itself")
            noises[str(size)] = report.spread(noise)
        return {"operations": results, "bare_beside_itself": noises}


def _mongoq(pairs: Pairs, batch: Batch, size: int, spied: bool) -> Way:
    name = queue_name(QUEUES[0], history=batch.history)
    queue = pairs.brokers[spied].queue(name, history=HISTORY if batch.history else None)
    return Way(partial(CALLS[batch.name], queue), _preparer(pairs, batch, size, name, partial(_items, pairs, batch)))


def _driver(pairs: Pairs, batch: Batch, size: int, spied: bool) -> Way:
    name = queue_name(QUEUES[1], history=batch.history)
    loop = Bare(pairs.collections[spied], name, ELSEWHERE, operations.WORKER)
    call = partial(bare_many.CALLS[batch.name], loop)
    return Way(call, _preparer(pairs, batch, size, name, partial(_reservations, batch)), partial(_check, batch, size))


def _preparer(
    pairs: Pairs, batch: Batch, size: int, queue: str, make_subject: Callable[[list[dict[str, Any]]], Any]
) -> Callable[[int], list[Any]]:
    def prepare(n: int) -> list[Any]:
        seeded = pairs.seed.batches(batch.state, queue, n, size)
        if batch.state == "ready":
            return [size] * n
        payloads = [[operations.payload(place) for place in range(size)] for _ in range(n)] if batch.payloads else []
        if batch.state == "empty":
            return payloads
        subjects = [make_subject(documents) for documents in seeded]
        return list(zip(subjects, payloads, strict=True)) if payloads else subjects

    return prepare


def _items(pairs: Pairs, batch: Batch, documents: list[dict[str, Any]]) -> list[Item[Any]]:
    return pairs.seed.items(documents, apart=_gap(batch))


def _reservations(batch: Batch, documents: list[dict[str, Any]]) -> HeldMany:
    first = documents[0]["when"] - MINUTE_AGO
    dues = [first + place * _gap(batch) for place in range(len(documents))]
    return HeldMany([each["_id"] for each in documents], documents[0]["token"], dues)


def _gap(batch: Batch) -> timedelta:
    return timedelta(milliseconds=1 if batch.apart else 0)


def _check(batch: Batch, size: int, replies: list[Any]) -> None:
    """Check that the bare loop processed all of its items each time, as mongoq does."""
    for reply in replies:
        if isinstance(reply, list):
            done = len(reply)
        elif hasattr(reply, "inserted_ids"):
            done = len(reply.inserted_ids)
        else:
            done = reply.matched_count + reply.deleted_count
        if done != size:
            raise RuntimeError(f"the bare loop of {batch.name!r} did {done} of {size} items")
