"""The bare driver: each operation as the one command that a user without a library would write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId

__all__ = ["CALLS", "Bare", "Held"]

ORDER = [("priority", 1), ("when", 1), ("_id", 1)]
MOST_ATTEMPTS = 11
"""Attempts of an item with the default of ten retries."""
LEASE = timedelta(seconds=30)
HISTORY = timedelta(days=7)


class Held(NamedTuple):
    """A reservation, as a bare loop keeps it."""

    id: ObjectId
    token: ObjectId
    due: datetime


@dataclass(frozen=True, slots=True)
class Bare:
    """A collection, of the driver for threads or for asyncio, and a queue in it.

    Every call returns what the driver's method returns, a coroutine with asyncio.
    """

    collection: Any
    queue: str
    to: str
    by: str


def push(bare: Bare, payload: Any) -> Any:
    return bare.collection.insert_one(
        {
            "_id": ObjectId(),
            "q": bare.queue,
            "payload": payload,
            "when": datetime.now(UTC),
            "priority": 0,
            "attempts": 0,
            "reserved": False,
        }
    )


def pop(bare: Bare, _: Any) -> Any:
    return bare.collection.find_one_and_delete(_head_filter(bare.queue, datetime.now(UTC)), sort=ORDER)


def _head_filter(queue: str, now: datetime) -> dict[str, Any]:
    """Return the filter of the head, which is an error when the head has to be reserved first."""
    refused: list[dict[str, Any]] = [{"$gt": ["$once", now]}]
    refused += [{"$ne": [{"$type": field}, "missing"]} for field in ("$place", "$origin.place")]
    refused.append({"$and": [{"$eq": [{"$type": "$start_by"}, "date"]}, {"$lte": ["$start_by", now]}]})
    refused.append({"$gte": ["$attempts", MOST_ATTEMPTS]})
    guard = {"$divide": [1, {"$cond": [{"$or": refused}, 0, 1]}]}
    return {"q": queue, "when": {"$lte": now}, "$expr": guard}


def pop_history(bare: Bare, _: Any) -> Any:
    now = datetime.now(UTC)
    return bare.collection.find_one_and_update(
        _head_filter(bare.queue, now),
        {
            "$set": {
                "processed": now,
                "expires": now + HISTORY,
                "settled": ObjectId(),
                "by": bare.by,
                "reserved": False,
            },
            "$unset": {"when": "", "token": ""},
            "$inc": {"attempts": 1},
        },
        sort=ORDER,
    )


def reserve(bare: Bare, _: Any) -> Any:
    now = datetime.now(UTC)
    return bare.collection.find_one_and_update(
        {"q": bare.queue, "when": {"$lte": now}},
        {
            "$set": {"when": now + LEASE, "reserved": True, "token": ObjectId(), "by": bare.by},
            "$inc": {"attempts": 1},
        },
        sort=ORDER,
    )


def commit(bare: Bare, reservation: Held) -> Any:
    return bare.collection.delete_one({"_id": reservation.id, "token": reservation.token})


def commit_history(bare: Bare, reservation: Held) -> Any:
    now = datetime.now(UTC)
    return bare.collection.update_one(
        {"_id": reservation.id, "token": reservation.token},
        {
            "$set": {"processed": now, "expires": now + HISTORY, "settled": reservation.token, "reserved": False},
            "$unset": {"when": "", "token": ""},
        },
    )


def rollback(bare: Bare, reservation: Held) -> Any:
    now = datetime.now(UTC)
    return bare.collection.update_one(
        {"_id": reservation.id, "token": reservation.token},
        {
            "$set": {
                "when": now,
                "reserved": False,
                "error": {"type": "", "message": "bench", "at": now},
            },
            "$unset": {"token": ""},
        },
    )


def release(bare: Bare, reservation: Held) -> Any:
    return bare.collection.update_one(
        {"_id": reservation.id, "token": reservation.token},
        {
            "$set": {"when": reservation.due, "reserved": False},
            "$unset": {"token": ""},
            "$inc": {"attempts": -1},
        },
    )


def extend(bare: Bare, reservation: Held) -> Any:
    return bare.collection.update_one(
        {"_id": reservation.id, "token": reservation.token}, {"$set": {"when": datetime.now(UTC) + LEASE}}
    )


def move(bare: Bare, reservation: Held) -> Any:
    return bare.collection.update_one(
        {"_id": reservation.id, "token": reservation.token},
        {
            "$set": {"q": bare.to, "reserved": False, "attempts": 0, "when": datetime.now(UTC)},
            "$unset": {"token": "", "error": "", "batch": "", "key": "", "pushed": ""},
            "$inc": {"hops": 1},
        },
    )


def bury(bare: Bare, reservation: Held) -> Any:
    now = datetime.now(UTC)
    return bare.collection.update_one(
        {"_id": reservation.id, "token": reservation.token},
        {
            "$set": {
                "origin": {
                    "queue": bare.queue,
                    "id": reservation.id,
                    "reason": "bench",
                    "attempts": 1,
                    "key": None,
                    "at": now,
                },
                "q": f"{bare.queue}.dead",
                "when": now,
                "reserved": False,
                "attempts": 0,
            },
            "$unset": {"token": "", "key": "", "batch": "", "pushed": ""},
        },
    )


def get(bare: Bare, reservation: Held) -> Any:
    return bare.collection.find_one({"_id": reservation.id, "q": bare.queue, "payload": {"$exists": True}})


def peek(bare: Bare, _: Any) -> Any:
    ready = {"q": bare.queue, "when": {"$lte": datetime.now(UTC)}, "reserved": {"$ne": True}}
    return bare.collection.find(ready, sort=ORDER, limit=10).to_list()


CALLS = {
    "push": push,
    "pop": pop,
    "pop with history": pop_history,
    "reserve": reserve,
    "commit": commit,
    "commit with history": commit_history,
    "rollback": rollback,
    "release": release,
    "extend": extend,
    "move": move,
    "bury": bury,
    "get": get,
    "peek(10)": peek,
}
