"""Replay beside the bare driver: the same reads and inserts, and the inserts alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bson import ObjectId

from bench import operations, report
from bench.bare import HISTORY, Bare
from bench.bare_many import Steps, read, step_through
from bench.measure import Comparison, Way, interleave
from bench.pairs import QUEUES, Pairs, compare, line
from bench.place import Place
from bench.shells import SHELLS

__all__ = ["TARGET", "measure_replay"]

TARGET = 0.8
"""Of the bare inserts alone."""
PAGE = 500
TO = ("bench.copied", "bench.insert")
"""Where the two ways copy to; names of one length."""
COPIED = dict.fromkeys(("q", "processed", "payload", "priority", "headers", "attempts", "key"), 1)
SOURCE = f"{QUEUES[0]}.past"
Document = dict[str, Any]


def measure_replay(name: str, place: Place, *, items: int, rounds: int) -> dict[str, Any]:
    """Measure replays of so many items in one shell beside both; ``reached`` is about the inserts alone."""
    with SHELLS[name](place.uri) as shell:
        pairs = Pairs(shell, place)
        pairs.seed.history(SOURCE, items)
        measured = partial(interleave, shell.caller, _mongoq(pairs, items, False), rounds=rounds, calls=1)
        alone = _insert(pairs, items)
        whole = {"items": items, **_rate(measured(_read_and_insert(pairs, items, False)), items)}
        part = _rate(measured(alone), items)
        noise = interleave(shell.caller, alone, alone, rounds=rounds, calls=1).rate_ratio()
        ways = partial(_mongoq, pairs, items), partial(_read_and_insert, pairs, items)
        same = pairs.same_commands(*ways, ordered=False)  # a replay reads the next page while it inserts
        pairs.seed.clear({"$exists": True})
    report.progress(line(name, f"replay {items}, with reads", whole))
    report.progress(
        f"{line(name, f'replay {items}, inserts alone', part)}, {part['mongoq']['items_per_second']:.0f} items/s"
    )
    return {
        "operation": "replay",
        "beside_reads_and_inserts": _without_target(whole),
        "beside_inserts": _without_target(part),
        "bare_beside_itself": report.spread(noise),
        "target": TARGET,
        "reached": part["reached"],
        **same,
    }


def _rate(comparison: Comparison, items: int) -> dict[str, Any]:
    result = compare(comparison, TARGET)
    for way in ("mongoq", "bare"):
        result[way]["items_per_second"] = round(result[way]["rate"] * items, 0)
    return result


def _without_target(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("target", "reached", "items")}


def _mongoq(pairs: Pairs, items: int, spied: bool) -> Way:
    queue = pairs.brokers[spied].queue(SOURCE, history=HISTORY)

    def check(replies: Sequence[Any]) -> None:
        if any(done.pushed != items for done in replies):
            raise RuntimeError(f"a replay did not copy all of {items} items: {replies}")

    return Way(lambda label: queue.replay(to=TO[0], label=label, page=PAGE), partial(_labels, pairs, TO[0]), check)


def _labels(pairs: Pairs, to: str, n: int) -> list[str]:
    pairs.seed.clear(to)
    return [f"replay {number}" for number in range(n)]


def _read_and_insert(pairs: Pairs, items: int, spied: bool) -> Way:
    loop = Bare(pairs.collections[spied], SOURCE, TO[1], operations.WORKER)
    return Way(partial(_copy, loop), partial(_labels, pairs, TO[1]), partial(_check, items))


@step_through
def _copy(bare: Bare, label: str) -> Steps:
    until, copied = datetime.now(UTC), 0
    span = {"q": bare.queue, "processed": {"$gte": datetime(1, 1, 1, tzinfo=UTC), "$lt": until}}
    originals = {"$and": [{"payload": {"$exists": True}}, {"replayed": {"$ne": bare.queue}}]}
    options = {"limit": PAGE, "projection": COPIED, "batchSize": PAGE, "readConcern": {"level": "majority"}}
    rest: Document = {"filter": {**span, **originals}}
    while True:
        page = yield from read(bare, {**rest, "sort": {"processed": 1, "_id": 1}, **options})
        if page:
            reply = yield bare.collection.insert_many(_copies(bare, page, label), ordered=False)
            copied += len(reply.inserted_ids)
        if len(page) < PAGE:
            return copied
        since, last = page[-1]["processed"], page[-1]["_id"]
        behind = [
            {"$and": [span, {"processed": since}, {"_id": {"$gt": last}}]},
            {"$and": [span, {"processed": {"$gt": since}}]},
        ]
        rest = {"filter": {"$or": behind, **originals}, "hint": {"q": 1, "processed": 1, "_id": 1}}


def _copies(bare: Bare, page: list[Document], label: str) -> list[Document]:
    now = datetime.now(UTC)
    fresh = {"q": bare.to, "into": bare.to, "when": now, "attempts": 0, "reserved": False, "once": now + HISTORY}
    origin = {"queue": bare.queue, "reason": f"replayed: {label}", "at": now}
    return [
        {
            "_id": ObjectId(),
            "payload": document["payload"],
            "priority": document["priority"],
            **fresh,
            "origin": {**origin, "id": document["_id"], "attempts": document["attempts"], "key": document.get("key")},
            "replayed": bare.queue,
        }
        for document in page
    ]


def _insert(pairs: Pairs, items: int) -> Way:
    """Insert documents made beforehand, in batches as large as a replay's."""
    loop = Bare(pairs.collections[False], SOURCE, TO[1], operations.WORKER)

    def prepare(n: int) -> list[list[list[Document]]]:
        pairs.seed.clear(TO[1])
        return [[_copies(loop, page, "replay 0") for page in _pages(items)] for _ in range(n)]

    return Way(partial(_insert_all, loop), prepare, partial(_check, items))


def _pages(items: int) -> list[list[Document]]:
    originals = [
        {"_id": ObjectId(), "payload": operations.payload(), "priority": 0, "attempts": 1} for _ in range(items)
    ]
    return [originals[start : start + PAGE] for start in range(0, items, PAGE)]


@step_through
def _insert_all(bare: Bare, pages: list[list[Document]]) -> Steps:
    inserted = 0
    for page in pages:
        reply = yield bare.collection.insert_many(page, ordered=False)
        inserted += len(reply.inserted_ids)
    return inserted


def _check(items: int, replies: list[int]) -> None:
    if any(copied != items for copied in replies):
        raise RuntimeError(f"the bare loop did not copy all of {items} items: {replies}")
