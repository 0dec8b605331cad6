"""Counters: events of all processes in each queue, and the present number of its items."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mongoq.model.indexes import BEGINNING
from mongoq.model.log_fields import log_fields
from mongoq.model.process import EVENTS
from mongoq.model.sequence import HAS_PLACE, IS_BLOCKED
from mongoq.protocol.base.bootstrap import ensure_broker_ready, is_unauthorized
from mongoq.protocol.base.find import find_few, prefix_filter
from mongoq.protocol.base.queue_settings import COUNTERS_PREFIX, mark_used
from mongoq.protocol.command import Command, Duplicate, PartlyRefused, Refused
from mongoq.protocol.history.read import Counts, count_states, counts_of, find_queues
from mongoq.protocol.perform import perform
from mongoq.protocol.state.context import BrokerContext

logger = logging.getLogger("mongoq.stats")

STATS_CACHE_SECONDS = 1.0
"""Seconds for which ``stats`` returns the same answer again."""
IDLE_QUEUE_HORIZON = timedelta(days=30)
"""Time after which the control documents of an empty, unused queue expire."""
MAX_COUNTER_STATEMENTS = 5_000
"""Statements in one ``bulkWrite``, at most."""
MAX_CONTROL_DOCUMENTS = 1_000_000
"""Documents in one read, at most."""
EMPTYING_EVENTS = frozenset({"get", "commit", "move", "dead", "expired"})
"""Events after which a queue may be empty."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Events of a queue's items since the queue was made, and the present number of its items.

    Attributes:
        put: items that came in: pushed, or moved, buried or sent back from another queue.
        get: items popped.
        reserve: items reserved under a lease.
        commit: items committed.
        rollback: items handed back after a failure.
        release: items handed back unused.
        move: items moved on to other queues.
        dead: items buried.
        expired: items that were not started by their ``start_by``, and were settled instead.
        counts: present number of items in each live state.
    """

    put: int = 0
    get: int = 0
    reserve: int = 0
    commit: int = 0
    rollback: int = 0
    release: int = 0
    move: int = 0
    dead: int = 0
    expired: int = 0
    counts: Counts = field(default_factory=Counts)


async def flush(broker: BrokerContext) -> None:
    """Add this process's counts to the documents of the queues (one ``bulkWrite`` for 5,000 queues, upserts).

    Documents of queues that are empty by then expire 30 days later (two ``aggregate``). A crash before the flush loses
    the counts of the last seconds. After a lost reply, counts are added once or twice.
    """
    sums = broker.counters.take()
    try:
        await mark_used(broker, _newly_used(broker, sums))
        names = list(sums)
        for start in range(0, len(names), MAX_COUNTER_STATEMENTS):
            chunk = {name: sums[name] for name in names[start : start + MAX_COUNTER_STATEMENTS]}
            emptied = await _find_empty(broker, chunk)
            for name in await _add(broker, chunk, emptied):
                del sums[name]
    finally:
        # Counts that were not written yet: the next flush adds them.
        broker.counters.restore(sums)


def _newly_used(broker: BrokerContext, sums: Mapping[str, Any]) -> list[str]:
    """Return used queues that this process has not reported as used lately."""
    names, now = set(sums), time.monotonic()
    while broker.received:
        try:
            names.add(broker.received.pop())
        except KeyError:
            # Another thread has taken the last one.
            break
    states = {name: broker.state(name) for name in names}
    return [name for name, state in states.items() if not state.told_used or now >= state.used_until]


async def _find_empty(broker: BrokerContext, sums: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Return the queues that are empty now, of the queues that items have left.

    The check takes at most a hundredth of the time. After a queue was drained, the index is full of deleted entries,
    and every process would walk over them every five seconds.
    """
    names = [name for name, events in sums.items() if events.keys() & EMPTYING_EVENTS]
    began = time.monotonic()
    if not names or began < broker.look_at:
        return set()
    non_empty = await find_queues({"$in": names})
    ended = time.monotonic()
    broker.look_at = ended + (ended - began) * 100
    return set(names) - non_empty


async def _add(broker: BrokerContext, sums: Mapping[str, Mapping[str, int]], emptied: set[str]) -> list[str]:
    """Add to the counters, and return the queues that are finished; refused ones are finished too."""
    names, expires = list(sums), broker.clock.now() + IDLE_QUEUE_HORIZON
    statements = []
    for name in names:
        date = {"$set": {"expires": expires}} if name in emptied else {"$unset": {"expires": ""}}
        update = {"$inc": dict(sums[name]), **date}
        statements.append(("UpdateOne", {"filter": {"_id": COUNTERS_PREFIX + name}, "update": update, "upsert": True}))
    refused = await _send(broker, statements)
    for place, error in refused.items():
        # Two processes inserted the document at the same time; the next flush finds it and adds to it.
        if not isinstance(error, Duplicate):
            name = names[place]
            words = name, COUNTERS_PREFIX + name, error
            logger.warning("the counters of queue %r cannot be added to %s: %s", *words, extra=log_fields(queue=name))
    return [name for place, name in enumerate(names) if not isinstance(refused.get(place), Duplicate)]


async def _send(broker: BrokerContext, statements: list[tuple[str, dict[str, Any]]]) -> Mapping[int, Exception]:
    """Send the statements, and return the errors of the refused ones; mongomock has no ``bulkWrite``."""
    refused: dict[int, Exception] = {}
    if broker.serverless:
        for place, (_, arguments) in enumerate(statements):
            try:
                await perform(Command("update_one", arguments))
            except Refused as error:
                refused[place] = error
    elif statements:
        try:
            await perform(Command("bulk_write", {"requests": statements, "ordered": False}))
        except PartlyRefused as partly:
            return partly.refusals
    return refused


async def stats(broker: BrokerContext) -> dict[str, QueueStats]:
    """Read the counters of all queues (``find``) and count their live items (``aggregate``)."""
    if broker.stats is not None and time.monotonic() - broker.stats[0] < STATS_CACHE_SECONDS:
        return dict(broker.stats[1])
    await ensure_broker_ready(broker, write=False)
    unwritten: Mapping[str, Mapping[str, int]] = {}
    try:
        await flush(broker)
    except Exception as error:
        if not is_unauthorized(error):
            raise
        # The counts of a user without write access are only shown.
        unwritten = broker.counters.take()
        broker.counters.restore(unwritten)
    documents = await find_few(broker, prefix_filter(COUNTERS_PREFIX), [("_id", 1)], MAX_CONTROL_DOCUMENTS)
    counted = {document["_id"].removeprefix(COUNTERS_PREFIX): document for document in documents}
    depths = await _depths(broker)
    answer = {}
    for name in sorted(counted.keys() | depths.keys() | unwritten.keys()):
        numbers = Counter(events_in(counted.get(name, {}))) + Counter(unwritten.get(name, {}))
        answer[name] = QueueStats(**numbers, counts=depths.get(name, Counts()))
    broker.stats = time.monotonic(), answer
    return dict(answer)


def events_in(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of events in a document of counters; other programs may have written anything."""
    return {event: number for event in EVENTS if isinstance(number := document.get(event), int)}


async def _depths(broker: BrokerContext) -> dict[str, Counts]:
    """Count the live items of all queues by state, from the claim index, which holds no processed items."""
    now = broker.clock.now()
    every = {"q": {"$gte": ""}}
    live, blocked = every | {"when": {"$gte": BEGINNING}}, every | {"place": HAS_PLACE, "ready_from": IS_BLOCKED}
    command = count_states(broker, live, blocked, now, by_queue=True)
    # All groups in one reply, as far as 16 MB go.
    if not broker.serverless:
        command.arguments = {**command.arguments, "batchSize": MAX_CONTROL_DOCUMENTS}
    groups: Any = await perform(command)
    depths: dict[str, list[Any]] = {}
    for group in groups:
        # Other programs may have written anything.
        if isinstance(name := group["_id"]["q"], str):
            depths.setdefault(name, []).append(group)
    return {name: counts_of(depth) for name, depth in depths.items()}
