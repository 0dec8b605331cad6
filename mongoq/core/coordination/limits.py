"""Limits of a queue over all processes: permits of ``max_running``, and slots of ``rate``, in control documents.

``limit:<queue>`` lists the workers that hold permits, each with a lease. ``rate:<queue>`` and ``rate:<queue>:<hash>``
are the buckets of rates. Each change is one ``update`` that finds the document as it was read, so that none is lost or
made twice. The TTL index removes a document that is not used any more.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from bson import ObjectId

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_few, find_one
from mongoq.core.base.queue_settings import refresh_settings
from mongoq.core.base.retry import retry_until_reply
from mongoq.core.command import Command, Duplicate, has_matched, number_matched
from mongoq.core.perform import sleep
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.clock import VirtualClock, milliseconds, time_of
from mongoq.data.limits import PermitHolder, QueueLimits, plan_permits, read_holders
from mongoq.data.process import dice
from mongoq.data.rate import Bucket, Pace, Slot, find_free, share_slots, take_free
from mongoq.data.settings import QueueSettings, resolve_settings

T = TypeVar("T")
Document = Mapping[str, Any]

LIMIT_PREFIX = "limit:"
"""Prefix of the ``_id`` of the permits of a queue."""
RATE_PREFIX = "rate:"
"""Prefix of the ``_id`` of a bucket."""
MAX_CHANGES = 50
"""Times that another process may be faster before a caller gives up."""
RACE_PAUSE_SECONDS = 0.01
"""Longest pause after a lost race, in seconds; it grows with each race, up to ten times."""
IDLE_EXPIRY = timedelta(hours=1)
"""Time after its last use, or its last slot, at which the TTL index removes a document."""
MAX_EXPIRY_MS = 3650 * 86_400_000.0
"""Milliseconds after which a document expires, at most."""
REQUEST_LEASE = timedelta(seconds=2)
"""Time for which a request for permits counts unless the worker repeats it."""


class LimitContended(Exception):
    """Raised when other processes were faster each time; the caller tries again later."""


async def change_document(
    broker: BrokerContext,
    id: str,
    change: Callable[[Document | None, datetime], tuple[dict[str, Any] | None, T]],
    known: Document | None = None,
) -> tuple[T, Document | None]:
    """Change a control document by what it contains; returns the result of ``change`` and the document.

    One ``update`` where the document is as ``known``; else a ``find`` before it. ``change`` returns the fields to set,
    or ``None`` for no change, and is called again when another process was faster. A crash leaves the document as it
    was or as it was to be.
    """
    for races in range(MAX_CHANGES):
        if known is None:
            known = await find_one(broker, {"_id": id})
        now = broker.clock.now()
        fields, result = change(known, now)
        if fields is None:
            return result, known
        version = ObjectId()
        fields = {"expires": now + IDLE_EXPIRY, **fields, "version": version}
        before = {"$exists": False} if known is None else known.get("version")
        # The own version also matches: a command that is sent again after a lost reply finds what it has written.
        filter = {"_id": id, "version": before if known is None else {"$in": [before, version]}}
        arguments = {"filter": filter, "update": {"$set": fields}, "upsert": known is None}
        try:
            reply: Any = await retry_until_reply(Command("update_one", arguments))
            if has_matched(reply) or reply.upserted_id is not None:
                return result, {**(known or {}), "_id": id, **fields}
        except Duplicate:  # another process has just inserted it; or this one, by a command whose reply was lost
            pass
        known = None
        if races:
            await sleep(dice.uniform(0, RACE_PAUSE_SECONDS * min(races, 10)))
    raise LimitContended(id)


# --- permits -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Permits:
    """Permits that a worker holds.

    Attributes:
        number: number of runs that it may have at a time.
        until: end of their lease.
        lost: True if their lease had ended: other workers may hold them now.
    """

    number: int
    until: datetime
    lost: bool = False


async def take_permits(
    broker: BrokerContext,
    queue: str,
    by: str,
    *,
    limit: int,
    occupied: int,
    wanted: int,
    lease: timedelta,
    holds: bool,
    known: Document | None = None,
) -> tuple[Permits, Document | None]:
    """Take as many permits as a worker may have, extend their lease, or leave a request for some.

    The worker has ``occupied`` items now, and could use ``wanted`` permits for them and more; it ``holds`` some already
    as far as it knows.
    """

    def change(document: Document | None, now: datetime) -> tuple[dict[str, Any] | None, Permits]:
        mine, others = _read_holders(document, by, now)
        lost = holds and (mine is None or mine.number == 0)
        # Runs whose permits are lost have no claim to others: their items are lost as well.
        running = 0 if lost else occupied
        asked = max(wanted, running)
        number, since = plan_permits(limit, others, mine, occupied=running, wanted=asked, now=now)
        number = 0 if lost else number
        if mine is None or (mine.number > 0) != (number > 0):  # its turn begins, or ends
            since = now
        if number == 0 and mine is not None and mine.number == 0 and mine.until - now > REQUEST_LEASE / 2:
            return None, Permits(0, mine.until, lost)  # the request stands
        until = now + (lease if number else REQUEST_LEASE)
        changed = PermitHolder(by, number, asked, since, until)
        return _holders_update([*others, changed], now), Permits(number, until, lost)

    return await change_document(broker, LIMIT_PREFIX + queue, change, known)


async def keep_permits(
    broker: BrokerContext, queue: str, by: str, *, number: int, lease: timedelta, known: Document | None = None
) -> tuple[Permits, Document | None]:
    """Keep only ``number`` permits and extend their lease, or with 0 take the worker off the list (``update``).

    Permits whose lease has ended are lost, and not taken again.
    """

    def change(document: Document | None, now: datetime) -> tuple[dict[str, Any] | None, Permits]:
        mine, others = _read_holders(document, by, now)
        if mine is None or (number and mine.number < number):
            return None, Permits(0, now, lost=number > 0)
        if number == 0:
            return _holders_update(others, now), Permits(0, now)
        kept = PermitHolder(by, number, number, mine.since, now + lease)
        return _holders_update([*others, kept], now), Permits(number, kept.until)

    return await change_document(broker, LIMIT_PREFIX + queue, change, known)


def _read_holders(document: Document | None, by: str, now: datetime) -> tuple[PermitHolder | None, list[PermitHolder]]:
    """Return the entry of a worker in the list of holders, if any, and those of the others."""
    holders = read_holders(document, now)
    own = next((holder for holder in holders if holder.by == by), None)
    return own, [holder for holder in holders if holder.by != by]


def _holders_update(holders: list[PermitHolder], now: datetime) -> dict[str, Any]:
    last = max([now, *(holder.until for holder in holders)])
    return {"holders": [holder.to_document() for holder in holders], "expires": last + IDLE_EXPIRY}


async def read_limits(context: QueueContext[Any]) -> QueueLimits:
    """Read the limits of a queue, and what is used of them (two ``find``).

    Raises:
        CollectionUnsuitable: another program has stored settings that cannot be used.
    """
    await ensure_broker_ready(context.broker, write=False)
    await refresh_settings(context)
    settings = resolve_settings(context.name, {**context.state.given, **context.state.stored})
    return (await read_limits_of(context.broker, [settings]))[context.name]


async def read_limits_of(broker: BrokerContext, queues: Sequence[QueueSettings]) -> dict[str, QueueLimits]:
    """Read what is used of the limits of several queues (``find``, none without queues); by their names."""
    if not queues:
        return {}
    ids = [id for queue in queues for id in (LIMIT_PREFIX + queue.name, bucket_id(queue.name))]
    documents = await read_buckets(broker, ids)
    now, exact = broker.clock.now(), isinstance(broker.clock, VirtualClock)
    limits: dict[str, QueueLimits] = {}
    for queue in queues:
        holders: list[PermitHolder] = []
        next_start, pace = None, queue.make_pace(exact=exact)
        # What another program has stored there in another form counts as nothing.
        if queue.max_running is not None:
            with suppress(AttributeError, KeyError, TypeError):
                holders = read_holders(documents.get(LIMIT_PREFIX + queue.name), now)
                holders.sort(key=lambda each: (-each.number, each.since, each.by))
        if pace is not None:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                first = find_free(Bucket.of(documents.get(bucket_id(queue.name))), pace)
                next_start = time_of(math.ceil(first)) if first > milliseconds(now) else None
        own = queue.max_running, queue.rate, queue.burst
        limits[queue.name] = QueueLimits(queue.name, now, *own, holders=tuple(holders), next_start=next_start)
    return limits


# --- slots ---------------------------------------------------------------------------------------


def bucket_id(queue: str, key: bytes | None = None) -> str:
    """Return the ``_id`` of the bucket of a queue, or of one key of it."""
    if key is None:
        return RATE_PREFIX + queue
    return f"{RATE_PREFIX}{queue}:{hashlib.sha256(key).hexdigest()}"


async def take_slots(
    broker: BrokerContext, id: str, pace: Pace, n: int, unused: Sequence[Slot] = ()
) -> list[Slot] | float:
    """Take up to ``n`` slots of a bucket (``find`` and ``update``), as ``take_free`` does.

    A crash after it leaves the slots unused: no other process gets them.
    """

    def change(document: Document | None, now: datetime) -> tuple[dict[str, Any] | None, list[Slot] | float]:
        taken = take_free(Bucket.of(document), pace, milliseconds(now), n, unused)
        return _bucket_fields(taken[-1].time + pace.interval, pace, now) if isinstance(taken, list) else None, taken

    taken, _ = await change_document(broker, id, change)
    return taken


async def give_back_slots(broker: BrokerContext, id: str, pace: Pace, unused: Sequence[Slot]) -> list[Slot]:
    """Give unused slots back that no process has taken later ones than (``find`` and ``update``); return the others."""

    def change(document: Document | None, now: datetime) -> tuple[dict[str, Any] | None, list[Slot]]:
        bucket = Bucket.of(document)
        if bucket is None or bucket.interval != pace.interval:
            return None, list(unused)
        free = find_free(bucket, pace, unused)
        fields = _bucket_fields(free, pace, now) if free < bucket.next else None
        return fields, [slot for slot in unused if slot.time < free]

    kept, _ = await change_document(broker, id, change)
    return kept


async def share_key_slots(
    broker: BrokerContext,
    id: str,
    pace: Pace,
    turns: Sequence[bool],
    *,
    room: int,
    unused: Sequence[Slot] = (),
    known: Document | None = None,
) -> tuple[list[Slot], list[tuple[float, bool] | None]]:
    """Share out the slots of a key, as ``share_slots`` does; ``known`` is its document as it was read (``update``)."""

    def change(document: Document | None, now: datetime) -> tuple[dict[str, Any] | None, Any]:
        bucket = Bucket.of(document)
        slots, put_offs, changed = share_slots(bucket, pace, milliseconds(now), turns, room=room, unused=unused)
        if changed is None:
            return None, (slots, put_offs)
        line = {"later": changed.later} if math.isfinite(changed.later) else {}
        return {**_bucket_fields(changed.next, pace, now), **line}, (slots, put_offs)

    shared: tuple[list[Slot], list[tuple[float, bool] | None]]
    shared, _ = await change_document(broker, id, change, known)
    return shared


async def read_buckets(broker: BrokerContext, ids: Sequence[str]) -> dict[str, Document]:
    """Read documents of buckets, or of permits, by their ``_id`` (``find``)."""
    found = await find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids))
    return {document["_id"]: document for document in found}


async def end_put_offs(context: QueueContext[Any]) -> None:
    """Let the items that a rate has put off look for their starts now, since the rate has changed (two ``update``).

    A crash between them leaves them to look within a minute.
    """
    await _update_many({"_id": _keys_of(context.name)}, {"$unset": {"later": ""}})
    now = context.broker.clock.now()
    # An item that was put anywhere since then has another date, and keeps it.
    is_put_off = {"throttled.until": {"$gt": now}, "$expr": {"$eq": ["$throttled.until", "$when"]}}
    number = await _update_many({"q": context.name, "when": {"$gt": now}, **is_put_off}, {"$set": {"when": now}})
    context.broker.record_put(context.name, now, number=number, is_new=False)


async def _update_many(filter: Mapping[str, Any], update: Mapping[str, Any]) -> int:
    return await retry_until_reply(Command("update_many", {"filter": filter, "update": update}, number_matched))


def limit_documents_filter(queue: str) -> dict[str, Any]:
    """Return the filter of the documents of a queue's limits."""
    return {"$or": [{"_id": {"$in": [LIMIT_PREFIX + queue, bucket_id(queue)]}}, {"_id": _keys_of(queue)}]}


def _keys_of(queue: str) -> dict[str, Any]:
    """Return the condition of the ids of a queue's keyed buckets; names of other queues may begin with its name."""
    return {"$regex": f"^{re.escape(bucket_id(queue))}:[0-9a-f]{{64}}$"}


def _bucket_fields(first: float, pace: Pace, now: datetime) -> dict[str, Any]:
    # Without the document the bucket is full: it has to stay until it would be full anyway.
    length = min(max(first + pace.tolerance - milliseconds(now), 0.0), MAX_EXPIRY_MS)
    expires = now + timedelta(milliseconds=length) + IDLE_EXPIRY
    return {"next": first, "interval": pace.interval, "expires": expires}
