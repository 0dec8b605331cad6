"""Queues of dead letters, found by what they hold: the error queue of a pipeline is stored nowhere as a dead queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mongoq.model.copies import COPY_MARK, is_publication
from mongoq.model.indexes import BEGINNING, CLAIM_ORDER
from mongoq.model.item import Document
from mongoq.protocol.base.find import aggregate_all
from mongoq.protocol.flow import Flow
from mongoq.protocol.history.query import BoundedCount
from mongoq.protocol.history.read import find_queues, in_state
from mongoq.protocol.state.context import BrokerContext

SAMPLED = 10
"""First items by which a queue is judged."""
MAX_SEARCHED = 10_000
"""First letters of a queue that are searched for a queue or stage, at most."""
QUEUES_TOGETHER = 100
"""Queues that one ``aggregate`` reads."""


def find_letter_queues(broker: BrokerContext, names: Iterable[str]) -> Flow[list[str]]:
    """Return those of the queues that hold dead letters (an ``aggregate`` of their first items for each 100 queues)."""
    fields = {"$project": {"q": 1, "when": 1, "origin": 1, COPY_MARK: 1}}
    first: list[Document] = yield from _read(broker, names, 1, fields)
    samples: dict[str, list[Document]] = {item["q"]: [] for item in first if _has_died(item)}
    for item in (yield from _read(broker, samples, SAMPLED, fields)):
        samples[item["q"]].append(item)
    return [name for name, items in samples.items() if _are_letters(items)]


def died_in(name: str) -> dict[str, Any]:
    """Return the filter of letters that died in a queue or a stage, or behind a queue in a join."""
    return {"$or": [{field: name} for field in ("origin.queue", "origin.stage", "joined.inputs.queue")]}


def find_letters_of(broker: BrokerContext, name: str) -> Flow[list[str]]:
    """Return the sorted names of the queues with letters that died in this queue or stage."""
    letters = yield from find_letter_queues(broker, (yield from find_queues({"$gte": ""})))
    stages = {"$match": died_in(name)}, {"$limit": 1}, {"$project": {"q": 1}}
    first = yield from _read(broker, letters, MAX_SEARCHED, *stages)
    return sorted(document["q"] for document in first)


def count_letters_by_queue(
    broker: BrokerContext, names: Sequence[str], limit: int
) -> Flow[dict[Any, dict[str, BoundedCount]]]:
    """Count the letters of queues by the queue that they died in, among the first ``limit`` letters of each."""
    group = {"$group": {"_id": {"q": "$q", "died": "$origin.queue"}, "n": {"$sum": 1}}}
    counts: dict[Any, dict[str, BoundedCount]] = {}
    groups = yield from _read(broker, names, limit + 1, group)
    totals: Counter[str] = Counter()
    for each in groups:
        totals[each["_id"]["q"]] += each["n"]
    for each in groups:
        queue, died = each["_id"]["q"], each["_id"].get("died")
        counts.setdefault(died, {})[queue] = BoundedCount(each["n"], totals[queue] <= limit)
    return counts


def _read(broker: BrokerContext, names: Iterable[str], limit: int, *stages: Mapping[str, Any]) -> Flow[list[Any]]:
    """Run these stages on the first live items of each queue, in the order of claims."""
    rest: list[Mapping[str, Any]] = [{"$sort": dict(CLAIM_ORDER)}, {"$limit": limit}, *stages]
    parts = [[{"$match": in_state(name, None, BEGINNING)}, *rest] for name in names]
    rows: list[Any] = []
    for start in range(0, len(parts), QUEUES_TOGETHER):
        rows += yield from aggregate_all(broker, parts[start : start + QUEUES_TOGETHER])
    return rows


def _are_letters(items: Sequence[Document]) -> bool:
    """Return whether all items have died in another queue, and one of them is still as its burial left it.

    Items that were sent back and went on keep their ``origin`` as well, but none of them has the time of the burial. A
    queue with other items among its first ones counts as ordinary: commands for letters would take these too.
    """
    return all(map(_has_died, items)) and any(item["origin"].get("at") == item["when"] for item in items)


def _has_died(item: Document) -> bool:
    """Return whether an item was buried from another queue, and is no copy by a topic or a replay."""
    origin = item.get("origin")
    if not isinstance(origin, Mapping) or not isinstance(origin.get("reason"), str) or is_publication(origin):
        return False
    is_copy = COPY_MARK in item and origin.get("id") != item["_id"]
    return origin.get("queue") != item["q"] and not is_copy
