# Generated from mongoq/core/admin.py by scripts/unasync.py. Do not edit.
"""Deletion: purges of items, whole queues, and the control documents of unused queues.

Idle queues: counters, settings and marks expire once a queue is empty and no process uses it. The TTL index deletes a
document at its date, even if the queue was used in the meantime. So settings get no date ahead of time: a sweep, once
an hour, looks for queues that are empty and unused, and notes since when (``idle``). Every use removes the note
(``queue_settings.mark_used``). Only settings with a note 100 days old, of a queue that is still empty, get a date, an
hour ahead. Where no process of mongoq runs, no document gets a date.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mongoq.core.admin import (
    DELETION_DELAY,
    END_PREFIX,
    IDLE_SWEEP_INTERVAL,
    MAX_DELETED_ITEMS,
    MAX_UPDATED_DOCUMENTS,
    NOT_PAUSED,
    SETTINGS_HORIZON,
    SWEEP_ID,
    Documents,
)
from mongoq.core.base.queue_settings import IN_USE_UPDATE
from mongoq.core.command import Command, Duplicate, delete_many
from mongoq.core.coordination.limits import limit_documents_filter
from mongoq.core.coordination.repairs import REPAIR_PREFIX
from mongoq.core.history.counters import IDLE_QUEUE_HORIZON
from mongoq.core.history.dead_letters import selection
from mongoq.core.history.query import Query, refuse_filter
from mongoq.core.history.read import Selection, in_state
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import find_few, find_one
from mongoq.core_threads.base.queue_settings import ensure_ready, mark_ordered
from mongoq.core_threads.base.topics import read_bindings as read_topics
from mongoq.core_threads.coordination.heartbeats import workers
from mongoq.core_threads.history.counters import flush
from mongoq.core_threads.history.read import queues, read_controls
from mongoq.core_threads.perform import perform
from mongoq.core_threads.sequence.hold import delete_in_order, forget_sequences
from mongoq.data.arguments import DEAD_SUFFIX, PRIORITIES, Id, count, queue_name
from mongoq.data.indexes import BEGINNING, CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.data.sequence import HAS_PLACE, blocked_filter
from mongoq.data.settings import queue_options
from mongoq.data.stream_claim import STREAM_PREFIX
from mongoq.errors import ArgumentInvalid, QueueNotEmpty


def purge(
    context: QueueContext[Any],
    state: Selection,
    *,
    where: Any = None,
    limit: int | None = None,
    ids: Iterable[Id] | None = None,
    stage: str | None = None,
    reason: str | None = None,
    error: str | None = None,
    until: datetime | None = None,
) -> int:
    """Delete items of a state, or live ones that no caller holds, and return how many (``delete``).

    With ``until``, items that came after this time stay.
    Without a limit there is one ``delete``, or one for each 1,000 ids; with a limit, a ``find`` of ids in queue order
    and a ``delete`` of them for each 1,000 items. Items that others wait for in their sequences are deleted in
    transactions, in which the next ones follow. A crash in between leaves the rest.
    """
    room = math.inf if limit is None else count(limit, "limit")
    query = selection(context, ids=ids, where=where, stage=stage, reason=reason, error=error, until=until, state=state)
    ensure_ready(context)
    now = context.broker.clock.now()
    query = replace(query, started=now)
    parts: list[Query] = [query]
    if state is None:
        blocked = replace(query, state="blocked")
        # With a limit the first ones of their sequences go first; the next ones follow, and go as well.
        parts = [blocked, query.free(now)] if limit is None else [query.free(now), blocked]
    deleted = 0

    def remove(part: Query) -> int:
        if part.state == "blocked":  # nothing behind them could follow
            return perform(delete_many(part.filter(context.name)))
        return delete_in_order(context, part.filter(context.name))

    try:
        for part in (named for whole in parts for named in whole.split(MAX_DELETED_ITEMS)):
            if room == math.inf:
                deleted += remove(part)
                continue
            rest = part
            while deleted < room:
                size, filter = int(min(MAX_DELETED_ITEMS, room - deleted)), rest.filter(context.name)
                fields = {**part.key_fields, "_id": 1}
                page = find_few(context.broker, filter, part.order, size, projection=fields, hint=rest.hint)
                if not page:
                    break
                # An item may have been claimed, moved or settled since it was read: the delete repeats the filter.
                deleted += remove(part.narrow({"_id": {"$in": [document["_id"] for document in page]}}))
                # From the beginning, the server would walk over the index entries that were just deleted.
                rest = replace(rest, after=page[-1])
    except Exception as refused:
        refuse_filter(where, refused)
        raise
    return deleted


def drop(broker: BrokerContext, name: str, *, force: bool) -> int:
    """Delete all stored data of a queue, and return the number of live items among it (``find``, ``delete``).

    Items are deleted first and settings last. A call that was cut short therefore leaves a queue that keeps its
    settings. The control document of each sequence goes in a transaction that finds no item of it: an item that was
    pushed meanwhile stays, and is the first of its sequence.
    """
    queue = queue_name(name)
    if not isinstance(force, bool):
        raise ArgumentInvalid("force", f"True or False, not {force!r:.60}")
    ensure_broker_ready(broker, write=True)
    live, deleted = {"$or": [in_state(queue, None, BEGINNING), blocked_filter(queue)]}, 0
    context = QueueContext(broker, queue_options(queue), broker.untyped)
    if force:
        context.state.ordered = False  # settings that were read a while ago decide nothing
        deleted = delete_in_order(context, in_state(queue, None, BEGINNING), blocked=True)
    elif (find_one(broker, live, {"_id": 1})) is not None:
        number: int = perform(Command("count_documents", {"filter": live}))
        raise QueueNotEmpty(queue, max(number, 1))
    perform(delete_many({"q": queue, "processed": {"$gte": BEGINNING}}))
    # Write this process's counts first: a later flush would create the counters again.
    flush(broker)
    marks = [f"{END_PREFIX}{priority}:{queue}" for priority in PRIORITIES]
    named = {"_id": {"$in": [COUNTERS_PREFIX + queue, *marks, REPAIR_PREFIX + queue, CONTROL_PREFIX + queue]}}
    forget_sequences(broker, queue)
    perform(delete_many({"$or": [named, limit_documents_filter(queue)]}))
    broker.stats = None
    if state := broker.states.get(queue):
        # Options in code are stored again when the queue is used.
        state.store(paused=False, settings={})
        state.asserted.clear()
        state.ordered = False
        state.fenced_off.clear()
        broker.wake(queue)
    if (find_one(broker, {"q": queue, "place": HAS_PLACE}, {"_id": 1})) is not None:
        # It was pushed meanwhile, by a process that relied on the mark which has just gone.
        mark_ordered(context, joined=False)
    return deleted


def upkeep(broker: BrokerContext) -> None:
    """Write this process's counts, and sweep when it is time."""
    flush(broker)
    if time.monotonic() >= broker.sweep_at:
        broker.sweep_at = time.monotonic() + IDLE_SWEEP_INTERVAL.total_seconds()
        sweep(broker)


def sweep(broker: BrokerContext) -> bool:
    """Let control documents of idle queues expire, unless another process has done so within the hour.

    A crash in between leaves the rest for the next sweep. Returns whether this process did the sweep.
    """
    ensure_broker_ready(broker, write=True)
    now = broker.clock.now()
    lease = {"$set": {"until": now + IDLE_SWEEP_INTERVAL, "by": str(broker.identity)}}
    free: dict[str, Any] = {"_id": SWEEP_ID, "until": {"$lte": now}}
    try:
        perform(Command("update_one", {"filter": free, "update": lease, "upsert": True}))
    # The lease is not over: the upsert found no document and tried to insert the same ``_id``.
    except Duplicate:
        return False
    settings = read_controls(broker, CONTROL_PREFIX, ("settings.dead", "paused", "idle", "expires"))
    counters = read_controls(broker, COUNTERS_PREFIX, ["expires"])
    marks = read_controls(broker, END_PREFIX, ("q", "expires"))
    # Read after the documents: a push in between is either seen here, or its process removes the notes.
    non_empty = set(queues(broker))
    # A queue that holds an item or has a document may send letters to its dead queue.
    dead = {name + DEAD_SUFFIX for name in {*non_empty, *settings, *counters}}
    for document in settings.values():
        options = document.get("settings")
        if isinstance(options, Mapping) and isinstance(options.get("dead"), str):
            dead.add(options["dead"])
    consumed = {name for record in workers(broker) for name in record.queues}
    for stream in (read_controls(broker, STREAM_PREFIX, ("queue", "until"))).values():
        if isinstance(until := stream.get("until"), datetime) and until > now - IDLE_QUEUE_HORIZON:
            consumed.add(str(stream.get("queue")))
    bound = read_topics(broker)
    in_use = non_empty.union(dead, bound, *bound.values(), consumed)
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
    _update(CONTROL_PREFIX, woken, {}, IN_USE_UPDATE)
    # The filters repeat the conditions on the server: a queue may have been used or paused since the documents were
    # read.
    untouched = {"idle": {"$exists": False}, "paused": NOT_PAUSED}
    _update(CONTROL_PREFIX, new, untouched, {"$set": {"idle": now}})
    unused = {"idle": {"$lte": noted}, "paused": NOT_PAUSED}
    _update(CONTROL_PREFIX, due, unused, {"$set": {"expires": now + DELETION_DELAY}})
    _sweep_others(COUNTERS_PREFIX, counters, non_empty, now)
    marks_in_use = {id for id, document in marks.items() if document.get("q") in non_empty}
    _sweep_others(END_PREFIX, marks, marks_in_use, now)
    return True


def _sweep_others(prefix: str, documents: Documents, in_use: set[str], now: datetime) -> None:
    """Give counters and marks of empty queues a date, and remove it from others; losing them does no harm."""
    dated = [name for name in documents if name in in_use and "expires" in documents[name]]
    undated = [name for name in documents if name not in in_use and "expires" not in documents[name]]
    _update(prefix, dated, {}, {"$unset": {"expires": ""}})
    _update(prefix, undated, {"expires": {"$exists": False}}, {"$set": {"expires": now + IDLE_QUEUE_HORIZON}})


def _update(prefix: str, names: Sequence[str], filter: Mapping[str, Any], update: Mapping[str, Any]) -> None:
    for start in range(0, len(names), MAX_UPDATED_DOCUMENTS):
        which = {"_id": {"$in": [prefix + name for name in names[start : start + MAX_UPDATED_DOCUMENTS]]}, **filter}
        perform(Command("update_many", {"filter": which, "update": update}))
