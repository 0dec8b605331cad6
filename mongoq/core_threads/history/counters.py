# Generated from mongoq/core/history/counters.py by scripts/unasync.py. Do not edit.
"""Counters: events of all processes in each queue, and the present number of its items."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mongoq.core.base.bootstrap import is_unauthorized
from mongoq.core.command import Command, Duplicate, PartlyRefused, Refused
from mongoq.core.history.counters import (
    EMPTYING_EVENTS,
    IDLE_QUEUE_HORIZON,
    MAX_COUNTER_STATEMENTS,
    STATS_CACHE_SECONDS,
    QueueStats,
    events_in,
    logger,
)
from mongoq.core.history.read import MAX_CONTROL_DOCUMENTS, Counts, count_states, counts_of
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.queue_settings import mark_used
from mongoq.core_threads.history.read import find_queues, read_controls
from mongoq.core_threads.perform import perform
from mongoq.data.indexes import BEGINNING, COUNTERS_PREFIX
from mongoq.data.log_fields import log_fields
from mongoq.data.process import EVENTS
from mongoq.data.sequence import HAS_PLACE, IS_BLOCKED


def flush(broker: BrokerContext) -> None:
    """Add this process's counts to the documents of the queues (one ``bulkWrite`` for 5,000 queues, upserts).

    Documents of queues that are empty by then expire 30 days later (two ``aggregate``). A crash before the flush loses
    the counts of the last seconds. After a lost reply, counts are added once or twice.
    """
    sums = broker.counters.take()
    try:
        used, now = set(sums), time.monotonic()
        while broker.received:
            try:
                used.add(broker.received.pop())
            except KeyError:
                # Another thread has taken the last one.
                break
        # Queues that this process has not reported as used lately.
        states = {name: broker.state(name) for name in used}
        new = [name for name, state in states.items() if not state.told_used or now >= state.used_until]
        mark_used(broker, new)
        names = list(sums)
        for start in range(0, len(names), MAX_COUNTER_STATEMENTS):
            chunk = names[start : start + MAX_COUNTER_STATEMENTS]
            refused = _add(broker, {name: sums[name] for name in chunk})
            for place, name in enumerate(chunk):
                error = refused.get(place)
                # Two processes inserted the document at the same time; the next flush finds it and adds to it.
                if isinstance(error, Duplicate):
                    continue
                if error is not None:
                    words = name, COUNTERS_PREFIX + name, error
                    text = "the counters of queue %r cannot be added to %s: %s"
                    logger.warning(text, *words, extra=log_fields(queue=name))
                del sums[name]
    finally:
        # Counts that were not written yet: the next flush adds them.
        broker.counters.restore(sums)


def _add(broker: BrokerContext, sums: Mapping[str, Mapping[str, int]]) -> Mapping[int, Exception]:
    """Add to the counters of queues, and return the errors of the refused ones; mongomock has no ``bulkWrite``.

    Counters of queues that are empty now, of those that items have left, get a date. The look takes at most a hundredth
    of the time: after a queue was drained, the index is full of deleted entries, and every process would walk over them
    every five seconds.
    """
    left = [name for name, events in sums.items() if events.keys() & EMPTYING_EVENTS]
    emptied, began = set[str](), time.monotonic()
    if left and began >= broker.look_at:
        emptied = set(left) - (find_queues({"$in": left}))
        ended = time.monotonic()
        broker.look_at = ended + (ended - began) * 100
    expires = broker.clock.now() + IDLE_QUEUE_HORIZON
    requests: list[tuple[str, dict[str, Any]]] = []
    for name, events in sums.items():
        date = {"$set": {"expires": expires}} if name in emptied else {"$unset": {"expires": ""}}
        update = {"$inc": dict(events), **date}
        requests.append(("UpdateOne", {"filter": {"_id": COUNTERS_PREFIX + name}, "update": update, "upsert": True}))
    refused: dict[int, Exception] = {}
    try:
        if not broker.serverless:
            perform(Command("bulk_write", {"requests": requests, "ordered": False}))
            return refused
    except PartlyRefused as partly:
        return partly.refusals
    for place, (_, arguments) in enumerate(requests):
        try:
            perform(Command("update_one", arguments))
        except Refused as error:
            refused[place] = error
    return refused


def stats(broker: BrokerContext) -> dict[str, QueueStats]:
    """Read the counters of all queues (``find``) and count their live items (``aggregate``)."""
    if broker.stats is not None and time.monotonic() - broker.stats[0] < STATS_CACHE_SECONDS:
        return dict(broker.stats[1])
    ensure_broker_ready(broker, write=False)
    unwritten: Mapping[str, Mapping[str, int]] = {}
    try:
        flush(broker)
    except Exception as error:
        if not is_unauthorized(error):
            raise
        # The counts of a user without write access are only shown.
        unwritten = broker.counters.take()
        broker.counters.restore(unwritten)
    counted = read_controls(broker, COUNTERS_PREFIX, EVENTS)
    # From the index of claims, which holds no processed items; all groups in one reply, as far as 16 MB go.
    every = {"q": {"$gte": ""}}
    live, blocked = every | {"when": {"$gte": BEGINNING}}, every | {"place": HAS_PLACE, "ready_from": IS_BLOCKED}
    command = count_states(broker, live, blocked, broker.clock.now(), by_queue=True)
    if not broker.serverless:
        command.arguments = {**command.arguments, "batchSize": MAX_CONTROL_DOCUMENTS}
    groups: dict[str, list[Any]] = {}
    for group in perform(command):
        if isinstance(name := group["_id"]["q"], str):  # other programs may have written anything
            groups.setdefault(name, []).append(group)
    depths = {name: counts_of(found) for name, found in groups.items()}
    answer = {}
    for name in sorted(counted.keys() | depths.keys() | unwritten.keys()):
        numbers = Counter(events_in(counted.get(name, {}))) + Counter(unwritten.get(name, {}))
        answer[name] = QueueStats(**numbers, counts=depths.get(name, Counts()))
    broker.stats = time.monotonic(), answer
    return dict(answer)
