# Generated from mongoq/core/coordination/heartbeats.py by scripts/unasync.py. Do not edit.
"""Records of workers: which are alive, which queues they consume, how many items they hold.

Correctness does not depend on these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.core.base.find import prefix_filter
from mongoq.core.command import Command, Duplicate
from mongoq.core.coordination.heartbeats import (
    DEAD_WORKER_RETENTION,
    HEARTBEATS_MISSED,
    HOUSEKEEPING_ID,
    MAX_WORKER_RECORDS,
    NONE_OVERDUE,
    RECORD_EXPIRY,
    WORKER_PREFIX,
    WorkerRecord,
    _warned,
    logger,
)
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready, write_schema
from mongoq.core_threads.base.find import find_few
from mongoq.core_threads.base.retry import retry_until_reply
from mongoq.core_threads.perform import perform


def begin(broker: BrokerContext) -> None:
    """Prepare a worker's first command: check the collection and the user's rights, create indexes, read the time.

    A user who may only push could claim items as well, and run them, but not settle them. So each kind of write is
    tried before, by writes that change nothing (``insert``, ``update``, ``delete``).
    """
    ensure_broker_ready(broker, write=True)
    write_schema()
    unused = {"_id": ObjectId()}
    retry_until_reply(Command("update_one", {"filter": unused, "update": {"$set": {"seen": None}}}))
    retry_until_reply(Command("delete_one", {"filter": unused}))


def beat(
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
    ensure_broker_ready(broker, write=True)
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
    retry_until_reply(Command("update_one", {"filter": filter, "update": {"$set": record}, "upsert": True}))


def forget(broker: BrokerContext, name: str) -> None:
    """Delete the record of a worker that has ended (``delete``)."""
    retry_until_reply(Command("delete_one", {"filter": {"_id": WORKER_PREFIX + name}}))


def workers(broker: BrokerContext, run: ObjectId | None = None) -> list[WorkerRecord]:
    """Read all records, or those of a run on Spark (``find`` by the prefix of ``_id``).

    A record of another version or of another program, which cannot be read, is left out: it must not hide the others.
    """
    ensure_broker_ready(broker, write=False)
    filter = {**prefix_filter(WORKER_PREFIX), **({} if run is None else {"run": run})}
    documents = find_few(broker, filter, [("_id", 1)], MAX_WORKER_RECORDS)
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


def workers_of(broker: BrokerContext, run: ObjectId) -> int:
    """Return the number of live workers of a run on Spark; a worker that ended regularly is not live (``find``)."""
    return sum(record.alive for record in workers(broker, run))


def swept(broker: BrokerContext, *, every: timedelta) -> list[WorkerRecord] | None:
    """Remove the records of workers that are gone, unless another process does this at the moment.

    A lease on a control document decides which process does it (``update``, upsert); the lease ends by itself. Returns
    the removed records, or ``None`` when another process holds the lease. The TTL index would remove the records as
    well, but reports nothing. A crash in between leaves the rest for the next call.
    """
    now, removed = broker.clock.now(), []
    lease = {"$set": {"until": now + every, "by": str(broker.identity)}}
    free = {"_id": HOUSEKEEPING_ID, "until": {"$lte": now}}
    try:
        perform(Command("update_one", {"filter": free, "update": lease, "upsert": True}))
    except Duplicate:
        return None
    for record in workers(broker):
        if record.alive or record.seen >= now - DEAD_WORKER_RETENTION:
            continue
        # A worker that has sent a heartbeat since the read is alive: its record no longer matches ``seen`` and stays.
        filter = {"_id": WORKER_PREFIX + record.name, "seen": record.seen}
        if perform(Command("delete_one", {"filter": filter}, lambda reply: bool(reply.deleted_count))):
            removed.append(record)
    return removed
