"""Idle queues: counters, settings and marks expire once a queue is empty and no process uses it.

The TTL index deletes a document at its date, even if the queue was used in the meantime. So settings get no date ahead
of time: a sweep, once an hour, looks for queues that are empty and unused, and notes since when (``idle``). Every use
removes the note (``queue_settings.mark_used``). Only settings with a note 100 days old, of a queue that is still empty,
get a date, an hour ahead. Where no process of mongoq runs, nothing expires.
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
"""``_id`` of the control document with the lease of the sweep."""
END_PREFIX = "end:"
"""Prefix of the ``_id`` of marks at the end of a priority."""
EVERY = timedelta(hours=1)
"""Time from one sweep to the next, over all processes."""
SETTINGS_HORIZON = timedelta(days=100)
"""Time that a queue must have been empty and unused before its settings go: longer than a quarter."""
FUSE = timedelta(hours=1)
"""Time from the end of a sweep's check to the deletion of settings: a push meanwhile removes the date."""
CHUNK = 1_000
"""Documents in one update, at most."""
Documents = Mapping[str, Mapping[str, Any]]
NOT_PAUSED = {"$in": [None, False]}
"""Condition of a queue that is not paused; ``None`` also matches a missing field."""


@dataclass(frozen=True, slots=True)
class ControlDocuments:
    """The control documents of queues, by the names of the queues.

    Attributes:
        settings: documents of queues that have settings, or are paused.
        counters: documents of queues that were counted.
        marks: marks at the end of a priority, by their ``_id``.
    """

    settings: Documents
    counters: Documents
    marks: Documents

    def dead_queues(self, held: Iterable[str]) -> Iterator[str]:
        """Yield the dead queues of all queues that hold an item or have a document: they may receive letters."""
        for name in {*held, *self.settings, *self.counters}:
            yield name + DEAD_SUFFIX
        for document in self.settings.values():
            settings = document.get("settings")
            if isinstance(settings, Mapping) and isinstance(settings.get("dead"), str):
                yield settings["dead"]


def upkeep(broker: BrokerContext) -> Flow[None]:
    """Write this process's counts, and sweep when it is time."""
    yield from flush(broker)
    if time.monotonic() >= broker.sweep_at:
        broker.sweep_at = time.monotonic() + EVERY.total_seconds()
        yield from sweep(broker)


def sweep(broker: BrokerContext) -> Flow[bool]:
    """Let control documents of idle queues expire, unless another process has done so within the hour.

    A crash in between leaves the rest for the next sweep. Returns whether this process did the sweep.
    """
    yield from ensure_broker_ready(broker, write=True)
    now = broker.clock.now()
    lease = {"$set": {"until": now + EVERY, "by": str(broker.identity)}}
    free: dict[str, Any] = {"_id": SWEEP_ID, "until": {"$lte": now}}
    try:
        yield from Command("update_one", {"filter": free, "update": lease, "upsert": True})
    # The lease is not over: the upsert found no document and tried to insert the same ``_id``.
    except Duplicate:
        return False
    found = ControlDocuments(
        (yield from _documents(broker, CONTROL_PREFIX, ("settings.dead", "paused", "idle", "expires"))),
        (yield from _documents(broker, COUNTERS_PREFIX, ("expires",))),
        (yield from _documents(broker, END_PREFIX, ("q", "expires"))),
    )
    # Read after the documents: a push in between is either seen here, or its process removes the notes.
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
    # The filters repeat the conditions on the server: a queue may have been used or paused since the documents were
    # read.
    untouched = {"idle": {"$exists": False}, "paused": NOT_PAUSED}
    yield from _update(CONTROL_PREFIX, new, untouched, {"$set": {"idle": now}})
    unused = {"idle": {"$lte": noted}, "paused": NOT_PAUSED}
    yield from _update(CONTROL_PREFIX, due, unused, {"$set": {"expires": now + FUSE}})


def _sweep_others(
    prefix: str, found: Mapping[str, Mapping[str, Any]], kept: Iterable[str], now: datetime
) -> Flow[None]:
    """Give counters and marks of empty queues a date, and remove it from others; losing them does no harm."""
    kept = set(kept)
    dated = [name for name in found if name in kept and "expires" in found[name]]
    undated = [name for name in found if name not in kept and "expires" not in found[name]]
    yield from _update(prefix, dated, {}, {"$unset": {"expires": ""}})
    yield from _update(prefix, undated, {"expires": {"$exists": False}}, {"$set": {"expires": now + HORIZON}})


def _update(prefix: str, names: Sequence[str], filter: Mapping[str, Any], update: Mapping[str, Any]) -> Flow[None]:
    for start in range(0, len(names), CHUNK):
        which = {"_id": {"$in": [prefix + name for name in names[start : start + CHUNK]]}, **filter}
        yield from Command("update_many", {"filter": which, "update": update})
