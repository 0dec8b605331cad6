"""A deep collection: many items of each kind in a few queues, in the form in which mongoq stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from bson import ObjectId
from pymongo import WriteConcern
from pymongo.collection import Collection

__all__ = ["DEAD_QUEUE", "QUEUE", "RARE", "DeepCollection", "fill_collection", "fill_many_queues", "fill_waiting"]

QUEUE = "orders"
DEAD_QUEUE = f"{QUEUE}.dead"
SMALL_QUEUES = 20
"""Queues with a few items each, beside the deep ones."""
SMALL_DEPTH = 50
PRIORITIES = (-2, -1, 0, 1, 2)
REASONS = ("retries are used up", "the handler refused it", "it cannot be decoded")
ERROR_TYPES = 200
RARE = "rare"
"""City, reason and type of error of the last letter alone, and city of the last item of the other kinds."""
HOLDER = "bench:1:00000000"
BATCH = 5_000
FILLERS = 2
"""Threads that fill: one encodes while the other waits."""
DAY = timedelta(days=1)

Envelope = dict[str, Any]
Kind = Callable[[int, datetime], Envelope]


@dataclass(frozen=True, slots=True)
class DeepCollection:
    """What was stored.

    Attributes:
        items: number of items of each kind, by its name.
        seconds: duration of the filling.
        known_id: id of one of its items.
    """

    items: dict[str, int]
    seconds: float
    known_id: ObjectId


def ready(number: int, now: datetime) -> Envelope:
    """Return the fields of an item that is due."""
    return {"q": QUEUE, "when": now - DAY + timedelta(milliseconds=number), "reserved": False}


def scheduled(number: int, now: datetime) -> Envelope:
    """Return the fields of an item that is due in a day."""
    return {"q": QUEUE, "when": now + DAY + timedelta(milliseconds=number), "reserved": False}


def reserved(number: int, now: datetime) -> Envelope:
    """Return the fields of an item under a lease, which ends after all scheduled items are due."""
    return {"q": QUEUE, "when": now + 3 * DAY + timedelta(milliseconds=number), **_reservation()}


def expired(number: int, now: datetime) -> Envelope:
    """Return the fields of an item whose lease ended a moment ago, after all others were due."""
    return {"q": QUEUE, "when": now - timedelta(milliseconds=number), **_reservation()}


def _reservation() -> Envelope:
    return {"reserved": True, "token": ObjectId(), "by": HOLDER, "attempts": 1}


def letter(number: int, now: datetime) -> Envelope:
    """Return the fields of a dead letter."""
    died = now - DAY + timedelta(milliseconds=number)
    origin = {"queue": QUEUE, "id": ObjectId(), "reason": REASONS[number % len(REASONS)], "attempts": 5, "key": None}
    error = {"type": f"shop.errors.Error{number % ERROR_TYPES}", "message": f"order {number}", "at": died}
    fields = {"q": DEAD_QUEUE, "when": died, "reserved": False, "attempts": 5, "by": HOLDER}
    return {**fields, "origin": {**origin, "at": died}, "error": error}


def processed(number: int, now: datetime) -> Envelope:
    """Return the fields of an item in the history."""
    at = now - DAY + timedelta(milliseconds=number)
    return {"q": QUEUE, "processed": at, "expires": now + 30 * DAY, "settled": ObjectId(), "reserved": False}


def small(number: int, now: datetime) -> Envelope:
    """Return the fields of an item of one of the small queues."""
    return {**ready(number, now), "q": f"small-{number % SMALL_QUEUES:02}"}


KINDS: tuple[tuple[Kind, float], ...] = (
    (ready, 1),
    (scheduled, 1),
    (reserved, 0.001),
    (expired, 0.001),
    (letter, 1),
    (processed, 1),
)
"""Kinds of items, each with its part of the depth."""


def fill_collection(collection: Collection[Any], depth: int) -> DeepCollection:
    """Store ``depth`` items of each deep kind, a thousandth of the others, and some small queues."""
    items = {kind.__name__: max(1, int(depth * part)) for kind, part in KINDS}
    started, now = datetime.now(UTC), datetime.now(UTC)
    for kind, _ in KINDS:
        _fill(collection, kind, items[kind.__name__], now)
    _fill(collection, small, SMALL_QUEUES * SMALL_DEPTH, now)
    known = collection.find_one({"q": QUEUE}) or {}
    return DeepCollection(items, (datetime.now(UTC) - started).total_seconds(), known["_id"])


def fill_waiting(collection: Collection[Any], depth: int) -> DeepCollection:
    """Store ``depth`` ready items of one queue, and some small queues."""
    started = datetime.now(UTC)
    _fill(collection, ready, depth, started)
    _fill(collection, small, SMALL_QUEUES * SMALL_DEPTH, started)
    known = collection.find_one({"q": QUEUE}) or {}
    return DeepCollection({"ready": depth}, (datetime.now(UTC) - started).total_seconds(), known["_id"])


def fill_many_queues(collection: Collection[Any], items: int, queues: int, letters: int) -> DeepCollection:
    """Store half of the items in one queue (ready, scheduled, processed), the others in many, and its dead letters."""
    started, others = datetime.now(UTC), max(1, queues - 2)

    def other(number: int, now: datetime) -> Envelope:
        return {**ready(number, now), "q": f"queue-{number % others:03}"}

    parts: dict[Kind, int] = {kind: max(1, items // 6) for kind in (ready, scheduled, processed)}
    parts |= {kind: max(1, items // 5_000) for kind in (reserved, expired)}
    parts |= {letter: letters, other: items - sum(parts.values())}
    for kind, number in parts.items():
        _fill(collection, kind, number, started)
    known = collection.find_one({"q": QUEUE, "processed": {"$exists": True}}) or {}  # each page of an item shows it
    named = {kind.__name__: number for kind, number in parts.items()}
    return DeepCollection(named, (datetime.now(UTC) - started).total_seconds(), known["_id"])


def _fill(collection: Collection[Any], kind: Kind, number: int, now: datetime) -> None:
    target = collection.with_options(write_concern=WriteConcern(w=1))
    envelopes = (_envelope(kind, place, number, now) for place in range(number))
    batches = iter(partial(_take, envelopes), [])
    with ThreadPoolExecutor(FILLERS) as fillers:
        # A few batches ahead: the items of a kind do not fit into the memory.
        while chunk := list(islice(batches, 2 * FILLERS)):
            list(fillers.map(partial(target.insert_many, ordered=False), chunk))


def _take(envelopes: Iterator[Envelope]) -> list[Envelope]:
    return list(islice(envelopes, BATCH))


def _envelope(kind: Kind, place: int, number: int, now: datetime) -> Envelope:
    is_last = place == number - 1
    city = RARE if is_last else f"city {place % 50}"
    shared = {"_id": ObjectId(), "payload": {"n": place, "city": city}, "attempts": 0}
    envelope = {**shared, "priority": PRIORITIES[place * len(PRIORITIES) // number], **kind(place, now)}
    if is_last and kind is letter:
        envelope["origin"] |= {"reason": RARE}
        envelope["error"] |= {"type": RARE}
    return envelope
