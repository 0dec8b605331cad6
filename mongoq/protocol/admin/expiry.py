"""Idle queues: their counters, settings and marks expire, once nothing is in a queue and no process uses it.

The TTL index deletes a document at its date, whatever has happened since. So no date is set ahead of time for settings:
a sweep, once an hour, looks which queues are empty and in no use, and notes since when (``idle``). Every use takes the
note away (``protocol.settings.used``). Only settings whose note is 100 days old, of a queue that is still empty, are
given a date, an hour ahead. Where no process of mongoq runs, nothing expires.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mongoq.model.arguments import DEAD_SUFFIX
from mongoq.model.stream_claim import STREAM_PREFIX
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import CONTROL_PREFIX, COUNTERS_PREFIX, IN_USE
from mongoq.protocol.base.topics import read_bindings as read_topics
from mongoq.protocol.coordination.heartbeats import workers
from mongoq.protocol.flow.commands import Command, Duplicate, Flow
from mongoq.protocol.history.read import queues
from mongoq.protocol.history.stats import HORIZON, MOST, flush, prefixed
from mongoq.protocol.state.context import BrokerContext

__all__ = ["END_PREFIX", "sweep", "upkeep"]

SWEEP_ID = "lease:idle-queues"
END_PREFIX = "end:"
EVERY = timedelta(hours=1)
"""After which some process sweeps again."""
SETTINGS_HORIZON = timedelta(days=100)
"""For how long a queue must have been empty and in no use before its settings go: longer than a quarter."""
FUSE = timedelta(hours=1)
"""Between the date that a sweep sets, having looked, and the end of settings: a push meanwhile takes it away."""
CHUNK = 1_000
Documents = Mapping[str, Mapping[str, Any]]
NOT_PAUSED = {"$in": [None, False]}
"""``None`` is also a field that is not there."""


@dataclass(frozen=True, slots=True)
class ControlDocuments:
    """The control documents of queues, by the names of the queues.

    Attributes:
        settings: of each queue that has any, or is paused.
        counters: of each queue that was counted.
        marks: by the ``_id`` of each mark, at the end of a priority.
    """

    settings: Documents
    counters: Documents
    marks: Documents

    def dead_queues(self, held: Iterable[str]) -> Iterator[str]:
        """Yield the dead queues of all queues that hold something or have a document: a letter may come to them."""
        for name in {*held, *self.settings, *self.counters}:
            yield name + DEAD_SUFFIX
        for document in self.settings.values():
            settings = document.get("settings")
            if isinstance(settings, Mapping) and isinstance(settings.get("dead"), str):
                yield settings["dead"]


def upkeep(broker: BrokerContext) -> Flow[None]:
    """Write what was counted, and sweep when it is time to."""
    yield from flush(broker)
    if time.monotonic() >= broker.sweep_at:
        broker.sweep_at = time.monotonic() + EVERY.total_seconds()
        yield from sweep(broker)


def sweep(broker: BrokerContext) -> Flow[bool]:
    """Let control documents of idle queues expire, unless another process has done so within the hour.

    A crash in between leaves the rest for the next sweep. Returns whether it was this process's turn.
    """
    yield from ensure_broker_ready(broker, write=True)
    now = broker.clock.now()
    lease = {"$set": {"until": now + EVERY, "by": str(broker.identity)}}
    free: dict[str, Any] = {"_id": SWEEP_ID, "until": {"$lte": now}}
    try:
        yield from Command("update_one", {"filter": free, "update": lease, "upsert": True})
    except Duplicate:
        return False
    found = ControlDocuments(
        (yield from _documents(broker, CONTROL_PREFIX, ("settings.dead", "paused", "idle", "expires"))),
        (yield from _documents(broker, COUNTERS_PREFIX, ("expires",))),
        (yield from _documents(broker, END_PREFIX, ("q", "expires"))),
    )
    # looked at after the documents were read: what is pushed in between is seen, or its process takes the notes away
    held = set((yield from queues(broker)))
    in_use = held.union(found.dead_queues(held), (yield from _bound(broker)), (yield from _consumed(broker, now)))
    yield from _sweep_settings(found.settings, in_use, now)
    yield from _sweep_others(COUNTERS_PREFIX, found.counters, held, now)
    idle = {id: document for id, document in found.marks.items() if document.get("q") not in held}
    yield from _sweep_others(END_PREFIX, found.marks, found.marks.keys() - idle.keys(), now)
    return True


def _documents(broker: BrokerContext, prefix: str, fields: Sequence[str]) -> Flow[dict[str, Mapping[str, Any]]]:
    projection = dict.fromkeys(fields, 1)
    found = yield from find_few(broker, prefixed(prefix), [("_id", 1)], MOST, projection=projection)
    return {document["_id"].removeprefix(prefix): document for document in found}


def _bound(broker: BrokerContext) -> Flow[set[str]]:
    """Return the topics, and the queues bound to them."""
    bound = yield from read_topics(broker)
    return set(bound).union(*bound.values())


def _consumed(broker: BrokerContext, now: datetime) -> Flow[set[str]]:
    """Return the queues that workers, and streams of Spark, consume."""
    names: set[str] = set()
    for record in (yield from workers(broker)):
        names.update(record.queues)
    for stream in (yield from _documents(broker, STREAM_PREFIX, ("queue", "until"))).values():
        if isinstance(until := stream.get("until"), datetime) and until > now - HORIZON:
            names.add(str(stream.get("queue")))
    return names


def _sweep_settings(settings: Documents, in_use: set[str], now: datetime) -> Flow[None]:
    noted, woken, new, due = now - SETTINGS_HORIZON, [], [], []
    for name, document in settings.items():
        since = document.get("idle")
        if name in in_use or document.get("paused"):
            if document.keys() & {"idle", "expires"}:
                woken.append(name)
        elif not isinstance(since, datetime):
            new.append(name)
        elif since <= noted and "expires" not in document:
            due.append(name)
    yield from _update(CONTROL_PREFIX, woken, {}, IN_USE)
    untouched = {"idle": {"$exists": False}, "paused": NOT_PAUSED}
    yield from _update(CONTROL_PREFIX, new, untouched, {"$set": {"idle": now}})
    unused = {"idle": {"$lte": noted}, "paused": NOT_PAUSED}
    yield from _update(CONTROL_PREFIX, due, unused, {"$set": {"expires": now + FUSE}})


def _sweep_others(
    prefix: str, found: Mapping[str, Mapping[str, Any]], kept: Iterable[str], now: datetime
) -> Flow[None]:
    """Date counters or marks of empty queues, and take the date from others; without them nothing goes wrong."""
    kept = set(kept)
    dated = [name for name in found if name in kept and "expires" in found[name]]
    undated = [name for name in found if name not in kept and "expires" not in found[name]]
    yield from _update(prefix, dated, {}, {"$unset": {"expires": ""}})
    yield from _update(prefix, undated, {"expires": {"$exists": False}}, {"$set": {"expires": now + HORIZON}})


def _update(prefix: str, names: Sequence[str], filter: Mapping[str, Any], update: Mapping[str, Any]) -> Flow[None]:
    for start in range(0, len(names), CHUNK):
        which = {"_id": {"$in": [prefix + name for name in names[start : start + CHUNK]]}, **filter}
        yield from Command("update_many", {"filter": which, "update": update})
