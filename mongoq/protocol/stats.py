"""Counters: what all processes did to each queue, and how many items it holds now."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mongoq.model.counters import EVENTS
from mongoq.model.indexes import BEGINNING
from mongoq.protocol.context import BrokerContext
from mongoq.protocol.control import ready
from mongoq.protocol.read import Counts, count_states, counts_of
from mongoq.protocol.request import Command, Flow, Refused

__all__ = ["QueueStats", "flush", "stats"]

logger = logging.getLogger("mongoq.stats")

CACHED = 1.0
"""Seconds for which an answer is given again."""
PREFIX = "stats:"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What became of a queue's items since it was made, and how many it holds now.

    Attributes:
        put: pushed.
        get: popped.
        reserve: handed out under a lease.
        commit: committed.
        rollback: handed back after a failure.
        release: handed back unused.
        move: moved on to other queues.
        dead: buried.
        counts: how many items are in each live state.
    """

    put: int = 0
    get: int = 0
    reserve: int = 0
    commit: int = 0
    rollback: int = 0
    release: int = 0
    move: int = 0
    dead: int = 0
    counts: Counts = field(default_factory=Counts)


def flush(broker: BrokerContext) -> Flow[None]:
    """Add what this process counted to the queues' documents (one ``update`` for each, upsert).

    A crash before it loses the counts of the last seconds. A lost reply counts once or twice.
    """
    sums = broker.counters.take()
    try:
        for queue in list(sums):
            try:
                yield from _add(queue, sums[queue])
            except Refused as error:
                logger.warning("the counters of queue %r cannot be added to %s: %s", queue, PREFIX + queue, error)
            del sums[queue]
    finally:
        broker.counters.put_back(sums)


def _add(queue: str, events: Counter[str]) -> Command[Any]:
    return Command("update_one", {"filter": {"_id": PREFIX + queue}, "update": {"$inc": dict(events)}, "upsert": True})


def stats(broker: BrokerContext) -> Flow[dict[str, QueueStats]]:
    """Read the counters of all queues (``find``) and count their live items (``aggregate``)."""
    if broker.stats is not None and time.monotonic() - broker.stats[0] < CACHED:
        return dict(broker.stats[1])
    yield from ready(broker, write=False)
    yield from flush(broker)
    filter = {"_id": {"$gte": PREFIX, "$lt": PREFIX[:-1] + ";"}}
    documents: Any = yield from Command("find", {"filter": filter})
    counted = {document["_id"].removeprefix(PREFIX): document for document in documents}
    depths = yield from _depths(broker)
    found = {name: _read(counted.get(name, {}), name, depths) for name in sorted(counted.keys() | depths.keys())}
    broker.stats = time.monotonic(), found
    return dict(found)


def _read(document: Mapping[str, Any], name: str, depths: Mapping[str, Counts]) -> QueueStats:
    found = {event: document.get(event) for event in EVENTS}
    events = {event: number for event, number in found.items() if isinstance(number, int)}
    return QueueStats(**events, counts=depths.get(name, Counts()))


def _depths(broker: BrokerContext) -> Flow[dict[str, Counts]]:
    """Count the live items of all queues by state, from the claim index: what is processed is not looked at."""
    now = broker.clock.now()
    groups: Any = yield from count_states({"q": {"$gte": ""}, "when": {"$gte": BEGINNING}}, now, by_queue=True)
    depths: dict[str, list[Any]] = {}
    for group in groups:
        if isinstance(name := group["_id"]["q"], str):  # other programs may have written anything
            depths.setdefault(name, []).append(group)
    return {name: counts_of(found) for name, found in depths.items()}
