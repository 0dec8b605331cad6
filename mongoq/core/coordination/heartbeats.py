"""Records of workers: which are alive, which queues they consume, how many items they hold.

Correctness does not depend on these records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from bson import ObjectId

from mongoq.core.base.bootstrap import ensure_broker_ready, write_schema
from mongoq.core.base.find import find_few, prefix_filter
from mongoq.core.base.retry import retry_until_reply
from mongoq.core.command import Command, Duplicate
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext
from mongoq.data.encoding.extended_json import time_text

logger = logging.getLogger("mongoq.worker")

WORKER_PREFIX = "worker:"
"""Prefix of the ``_id`` of a worker's record."""
HOUSEKEEPING_ID = "lease:housekeeping"
HEARTBEATS_MISSED = 4
"""Heartbeats that a worker may miss before it counts as gone."""
RECORD_EXPIRY = timedelta(hours=1)
"""Time after the last heartbeat at which the TTL index removes a record."""
DEAD_WORKER_RETENTION = timedelta(minutes=10)
"""Time for which the record of a worker that is gone stays readable for people."""
MAX_WORKER_RECORDS = 10_000
"""Records in one read, at most."""
NONE_OVERDUE: Mapping[str, timedelta] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's state at its last heartbeat.

    Attributes:
        name: ``host:pid:random`` of its process, as in ``Item.by``, and the number of the worker in that process.
        host: name of the host; empty if another version has stored none.
        pid: process id on that host; 0 if another version has stored none.
        started: start of the worker, on the server's clock.
        seen: last heartbeat, on the server's clock.
        alive: True while it has missed fewer than four heartbeats.
        queues: queues it consumes, each with the number of items it holds, running or waiting to run.
        overdue: queues with a run that takes longer than ``max_time``, by default five minutes; each with the time for
            which the longest one has run.
    """

    name: str
    host: str
    pid: int
    started: datetime
    seen: datetime
    alive: bool
    queues: Mapping[str, int]
    overdue: Mapping[str, timedelta] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return the record as values of JSON."""
        return {
            "worker": self.name,
            "host": self.host,
            "pid": self.pid,
            "alive": self.alive,
            "started": time_text(self.started),
            "seen": time_text(self.seen),
            "queues": dict(self.queues),
            "overdue_seconds": {queue: length.total_seconds() for queue, length in self.overdue.items()},
        }


async def begin(broker: BrokerContext) -> None:
    """Prepare a worker's first command: check the collection and the user's rights, create indexes, read the time.

    A user who may only push could claim items as well, and run them, but not settle them. So each kind of write is
    tried before, by writes that change nothing (``insert``, ``update``, ``delete``).
    """
    await ensure_broker_ready(broker, write=True)
    await write_schema()
    unused = {"_id": ObjectId()}
    await retry_until_reply(Command("update_one", {"filter": unused, "update": {"$set": {"seen": None}}}))
    await retry_until_reply(Command("delete_one", {"filter": unused}))


async def beat(
    broker: BrokerContext,
    name: str,
    *,
    started: datetime,
    every: timedelta,
    queues: Mapping[str, int],
    overdue: Mapping[str, timedelta] = NONE_OVERDUE,
    run: ObjectId | None = None,
) -> None:
    """Write a heartbeat (``update``, upsert); the TTL index removes the record an hour after the last one.

    ``run`` is the run on Spark that the worker is a task of; ``workers_of`` finds the record by it.
    """
    await ensure_broker_ready(broker, write=True)
    # Split from the right: only the last two parts are known to contain no colon.
    host, pid, _ = name.rsplit(":", 2)
    now = broker.clock.now()
    held: list[dict[str, Any]] = [{"queue": queue, "held": number} for queue, number in queues.items()]
    for entry in held:
        if entry["queue"] in overdue:
            entry["overdue"] = overdue[entry["queue"]].total_seconds()
    record = {
        "host": host,
        "pid": int(pid),
        "started": started,
        "seen": now,
        "every": every.total_seconds(),
        "queues": held,
        "expires": now + RECORD_EXPIRY,
        **({} if run is None else {"run": run}),
    }
    filter = {"_id": WORKER_PREFIX + name}
    await retry_until_reply(Command("update_one", {"filter": filter, "update": {"$set": record}, "upsert": True}))


async def forget(broker: BrokerContext, name: str) -> None:
    """Delete the record of a worker that has ended (``delete``)."""
    await retry_until_reply(Command("delete_one", {"filter": {"_id": WORKER_PREFIX + name}}))


async def workers(broker: BrokerContext, run: ObjectId | None = None) -> list[WorkerRecord]:
    """Read all records, or those of a run on Spark (``find`` by the prefix of ``_id``).

    A record of another version or of another program, which cannot be read, is left out: it must not hide the others.
    """
    await ensure_broker_ready(broker, write=False)
    filter = {**prefix_filter(WORKER_PREFIX), **({} if run is None else {"run": run})}
    documents = await find_few(broker, filter, [("_id", 1)], MAX_WORKER_RECORDS)
    records, now = [], broker.clock.now()
    for document in documents:
        try:
            seen, entries = document["seen"], {entry["queue"]: entry for entry in document.get("queues", ())}
            record = WorkerRecord(
                name=document["_id"].removeprefix(WORKER_PREFIX),
                host=str(document.get("host", "")),
                pid=int(document.get("pid", 0)),
                started=min(seen, document.get("started", seen)),  # raises for another type, as do the others
                seen=seen,
                alive=now - seen < timedelta(seconds=document["every"]) * HEARTBEATS_MISSED,
                queues={str(queue): int(entry.get("held", 0)) for queue, entry in entries.items()},
                overdue={
                    str(queue): timedelta(seconds=entry["overdue"])
                    for queue, entry in entries.items()
                    if "overdue" in entry
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            if document["_id"] not in _warned:
                _warned.add(document["_id"])
                words = "the record %r of a worker cannot be read, and is left out: another mongoq has written it"
                logger.warning(words, document["_id"])
        else:
            records.append(record)
    return records


_warned: set[str] = set()
"""Ids of the records that this process has warned of."""


async def workers_of(broker: BrokerContext, run: ObjectId) -> int:
    """Return the number of live workers of a run on Spark; a worker that ended regularly is not live (``find``)."""
    return sum(record.alive for record in await workers(broker, run))


async def swept(broker: BrokerContext, *, every: timedelta) -> list[WorkerRecord] | None:
    """Remove the records of workers that are gone, unless another process does this at the moment.

    A lease on a control document decides which process does it (``update``, upsert); the lease ends by itself. Returns
    the removed records, or ``None`` when another process holds the lease. The TTL index would remove the records as
    well, but reports nothing. A crash in between leaves the rest for the next call.
    """
    now, removed = broker.clock.now(), []
    lease = {"$set": {"until": now + every, "by": str(broker.identity)}}
    free = {"_id": HOUSEKEEPING_ID, "until": {"$lte": now}}
    try:
        await perform(Command("update_one", {"filter": free, "update": lease, "upsert": True}))
    except Duplicate:
        return None
    for record in await workers(broker):
        if record.alive or record.seen >= now - DEAD_WORKER_RETENTION:
            continue
        # A worker that has sent a heartbeat since the read is alive: its record no longer matches ``seen`` and stays.
        filter = {"_id": WORKER_PREFIX + record.name, "seen": record.seen}
        if await perform(Command("delete_one", {"filter": filter}, lambda reply: bool(reply.deleted_count))):
            removed.append(record)
    return removed
