"""Settling: what the holder of a reservation may do with it within its queue, each one fenced command."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.model.arguments import Duration, duration
from mongoq.model.envelope import Document, error_document, expiry
from mongoq.model.item import Item
from mongoq.protocol.context import QueueContext
from mongoq.protocol.fence import begin, deleted, fenced, is_back, update_command
from mongoq.protocol.move import EXHAUSTED_REASON, bury
from mongoq.protocol.request import Command, Flow, matched

__all__ = [
    "commit",
    "extend",
    "processed_update",
    "release",
    "release_command",
    "rollback",
    "unprocess_command",
]

STUB_DROPS = ("payload", "headers", "error", "origin", "by")


def processed_update(marks: Mapping[str, Any], *, attempts: int = 0, unset: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the update that turns an item into history. The token goes: left in, a late rollback revives it."""
    update: dict[str, Any] = {
        "$set": {**marks, "reserved": False},
        "$unset": dict.fromkeys(("when", "token", *unset), ""),
    }
    if attempts:
        update["$inc"] = {"attempts": attempts}
    return update


def commit(context: QueueContext[Any], item: Item[Any], *, payload: Any, replace_payload: bool) -> Flow[None]:
    """Settle an item as done: delete it, or keep it as history, or as a stub that remembers its id."""
    value = {"payload": context.codec.encode(payload)} if replace_payload else {}
    yield from begin(context, item)
    now = context.broker.clock.now()
    expires = expiry(now, context.settings.history, item.once)
    if expires is None:
        command = Command("delete_one", {"filter": {"_id": item.id, "token": item.token}}, deleted)
        yield from fenced(context, item, command, lambda found: _unless_ours(found, item))
        return
    marks = {"processed": now, "expires": expires, "settled": item.token}
    if context.settings.history is None:
        update = processed_update(marks, unset=STUB_DROPS)
    else:
        update = processed_update(marks | value)
    command = update_command(item.id, item.token, update)
    yield from fenced(context, item, command, lambda found: _settled_by(found, item))


def _unless_ours(found: Document, item: Item[Any]) -> bool | None:
    """A document that is still there was not deleted; under our token the delete may still come."""
    return None if found.get("token") == item.token else False


def _settled_by(found: Document, item: Item[Any]) -> bool | None:
    if "settled" in found:
        return bool(found["settled"] == item.token)
    return None if found.get("token") == item.token else False


def rollback(context: QueueContext[Any], item: Item[Any], *, delay: Duration, error: Any) -> Flow[None]:
    """Hand an item back after a failure; beyond its retries it is buried at once."""
    length = duration(delay, "delay")
    yield from begin(context, item)
    most = context.settings.most_attempts
    if most is not None and item.attempts >= most:
        yield from bury(context, item, reason=EXHAUSTED_REASON, error=error, attempts=item.attempts)
        return
    now = context.broker.clock.now()
    when = now + length
    failure = error_document(error, now)
    command = update_command(
        item.id,
        item.token,
        {
            "$set": {"when": when, "reserved": False, **({"error": failure} if failure else {})},
            "$unset": {"token": ""},
        },
    )
    yield from fenced(context, item, command, lambda found: is_back(found, when))


def release_command(id: ObjectId, token: ObjectId | None, when: datetime) -> Command[bool]:
    """Return the update that hands an item back unused: where it was in the order, its attempt not counted."""
    return update_command(
        id,
        token,
        {"$set": {"when": when, "reserved": False}, "$unset": {"token": ""}, "$inc": {"attempts": -1}},
    )


def release(context: QueueContext[Any], item: Item[Any]) -> Flow[None]:
    """Hand an item back unused."""
    yield from begin(context, item)
    when = item.due or context.broker.clock.now()
    yield from fenced(context, item, release_command(item.id, item.token, when), lambda found: is_back(found, when))


def extend(context: QueueContext[Any], item: Item[Any], *, lease: Duration | None) -> Flow[datetime]:
    """Let the lease end so much later than now, and return that time."""
    length = context.settings.lease if lease is None else duration(lease, "lease", zero=False)
    yield from begin(context, item)
    until = context.broker.clock.now() + length
    command = update_command(item.id, item.token, {"$set": {"when": until}})
    yield from fenced(context, item, command, lambda found: _is_extended(found, item, until), settles=False)
    return until


def _is_extended(found: Document, item: Item[Any], until: datetime) -> bool | None:
    if found.get("token") != item.token:
        return False
    return True if found["when"] == until else None


def unprocess_command(before: Document, token: ObjectId) -> Command[bool]:
    """Return the update that takes a pop into history back."""
    return Command(
        "update_one",
        {
            "filter": {"_id": before["_id"], "settled": token},
            "update": {
                "$set": {"when": before["when"]},
                "$unset": dict.fromkeys(("processed", "expires", "settled"), ""),
                "$inc": {"attempts": -1},
            },
        },
        matched,
    )
