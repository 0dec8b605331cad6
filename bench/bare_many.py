"""The bare driver with many items at once: the commands that mongoq sends, as short as one can write them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import DeleteMany, UpdateMany, UpdateOne

from bench.bare import HISTORY, LEASE, ORDER, Bare

__all__ = ["CALLS", "HeldMany", "read", "step_through"]

FIRST_BATCH = 101
MOST_ATTEMPTS = 11

Steps = Generator[Any, Any, Any]


class HeldMany(NamedTuple):
    """A batch under one token, as a bare loop keeps it."""

    ids: list[ObjectId]
    token: ObjectId
    dues: list[datetime]


def step_through(steps: Callable[..., Steps]) -> Callable[..., Any]:
    """Let a function yield what the driver returns, and get replies: at once from threads, awaited with asyncio."""

    @wraps(steps)
    def call(*arguments: Any) -> Any:
        running = steps(*arguments)
        first = next(running)
        return _await_all(running, first) if inspect.isawaitable(first) else _run(running, first)

    return call


def _run(running: Steps, reply: Any) -> Any:
    try:
        while True:
            reply = running.send(reply)
    except StopIteration as stop:
        return stop.value


async def _await_all(running: Steps, pending: Any) -> Any:
    try:
        while True:
            pending = running.send(await pending)
    except StopIteration as stop:
        return stop.value


def read(bare: Bare, find: Mapping[str, Any]) -> Steps:
    """Find in one reply, by the command itself: the cursor asks for one document more, and takes longer."""
    collection = bare.collection
    command = {"find": collection.name, **find}
    reply = yield collection.database.command(command, codec_options=collection.codec_options)
    return reply["cursor"]["firstBatch"]


def push_many(bare: Bare, payloads: Sequence[Any]) -> Any:
    now = datetime.now(UTC)
    fresh = {"when": now, "priority": 0, "attempts": 0, "reserved": False}
    documents = [{"_id": ObjectId(), "q": bare.queue, "payload": payload, **fresh} for payload in payloads]
    return bare.collection.insert_many(documents, ordered=False)


@step_through
def reserve_many(bare: Bare, n: int) -> Steps:
    now, token = datetime.now(UTC), ObjectId()
    ready = {"q": bare.queue, "when": {"$lte": now}}
    whole = {"limit": n, **({"batchSize": n} if n > FIRST_BATCH else {})}
    fields = {"priority": 1, "when": 1}
    first = yield from read(bare, {"filter": ready, "sort": dict(ORDER), "projection": fields, **whole})
    among = {"_id": {"$in": [document["_id"] for document in first]}}
    lease = {"when": now + LEASE, "reserved": True, "token": token, "by": bare.by, "batch": token}
    yield bare.collection.update_many(
        {**among, **ready, "attempts": {"$lt": MOST_ATTEMPTS}}, {"$set": lease, "$inc": {"attempts": 1}}
    )
    return (yield from read(bare, {"filter": {**among, "token": token}, "sort": {"_id": 1}, **whole}))


@step_through
def reserve_fresh(bare: Bare, n: int) -> Steps:
    """Reserve items that were never reserved: they are read once, and an item that has changed is left out."""
    now, token = datetime.now(UTC), ObjectId()
    ready = {"q": bare.queue, "when": {"$lte": now}}
    first = yield from read(bare, {"filter": ready, "sort": dict(ORDER), "limit": n, "batchSize": n})
    among = {"_id": {"$in": [document["_id"] for document in first]}}
    lease = {"when": now + LEASE, "reserved": True, "token": token, "by": bare.by, "batch": token}
    fresh = {"attempts": {"$lt": MOST_ATTEMPTS}, "by": None, "key": None, "once": None}
    claimed = yield bare.collection.update_many({**among, **ready, **fresh}, {"$set": lease, "$inc": {"attempts": 1}})
    return [document | lease for document in first] if claimed.matched_count == len(first) else []


def commit_many(bare: Bare, reservations: HeldMany) -> Any:
    return bare.collection.bulk_write([DeleteMany(_fence(reservations))], ordered=False)


def commit_many_history(bare: Bare, reservations: HeldMany) -> Any:
    now = datetime.now(UTC)
    return _update(
        bare,
        reservations,
        {
            "$set": {"processed": now, "expires": now + HISTORY, "settled": reservations.token, "reserved": False},
            "$unset": {"when": "", "token": ""},
        },
    )


def rollback_many(bare: Bare, reservations: HeldMany) -> Any:
    now = datetime.now(UTC)
    error = {"type": "", "message": "bench", "at": now}
    return _update(
        bare, reservations, {"$set": {"when": now, "reserved": False, "error": error}, "$unset": {"token": ""}}
    )


def release_many(bare: Bare, reservations: HeldMany) -> Any:
    return _update(bare, reservations, _release_update(reservations.dues[0]))


def release_apart(bare: Bare, reservations: HeldMany) -> Any:
    return _update_each(bare, reservations, [_release_update(due) for due in reservations.dues])


def extend_many(bare: Bare, reservations: HeldMany) -> Any:
    return _update(bare, reservations, {"$set": {"when": datetime.now(UTC) + LEASE}})


def move_many(bare: Bare, reservations: HeldMany) -> Any:
    return _update(bare, reservations, _move_update(bare, datetime.now(UTC)))


def move_apart(bare: Bare, subject: tuple[HeldMany, list[Any]]) -> Any:
    reservations, payloads = subject
    now = datetime.now(UTC)
    return _update_each(bare, reservations, [_move_update(bare, now, payload=payload) for payload in payloads])


def _fence(reservations: HeldMany) -> dict[str, Any]:
    return {"_id": {"$in": reservations.ids}, "token": reservations.token}


def _update(bare: Bare, reservations: HeldMany, update: dict[str, Any]) -> Any:
    return bare.collection.bulk_write([UpdateMany(_fence(reservations), update)], ordered=False)


def _update_each(bare: Bare, reservations: HeldMany, updates: list[dict[str, Any]]) -> Any:
    token = reservations.token
    pairs = zip(reservations.ids, updates, strict=True)
    return bare.collection.bulk_write(
        [UpdateOne({"_id": id, "token": token}, update) for id, update in pairs], ordered=False
    )


def _release_update(due: datetime) -> dict[str, Any]:
    return {"$set": {"when": due, "reserved": False}, "$unset": {"token": ""}, "$inc": {"attempts": -1}}


def _move_update(bare: Bare, now: datetime, **more: Any) -> dict[str, Any]:
    changes = {"q": bare.to, "reserved": False, "attempts": 0, "when": now, **more}
    unset = {"token": "", "error": "", "batch": "", "key": "", "pushed": ""}
    return {"$set": changes, "$unset": unset, "$inc": {"hops": 1}}


CALLS: Mapping[str, Callable[[Bare, Any], Any]] = {
    "push_many": push_many,
    "reserve_many": reserve_fresh,
    "commit_many": commit_many,
    "commit_many with history": commit_many_history,
    "rollback_many": rollback_many,
    "release_many": release_many,
    "release_many, dues apart": release_apart,
    "extend_many": extend_many,
    "move_many": move_many,
    "move_many, own payloads": move_apart,
}
"""By the name of the operation."""
