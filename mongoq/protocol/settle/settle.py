"""Settling: the operations of a reservation's holder within its queue, each one fenced command."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.model.arguments import Duration, duration
from mongoq.model.envelope import Document, error_document, expiry
from mongoq.model.item import Item
from mongoq.protocol.base.fence import begin_settle, has_deleted, is_back, run_fenced, update_command
from mongoq.protocol.flow import Command, Flow, has_matched
from mongoq.protocol.settle.move import bury, reason_exhausted
from mongoq.protocol.settle.patch import check_patch, max_growth, settle_with_patch
from mongoq.protocol.settle.trail import Marker
from mongoq.protocol.state.context import QueueContext

__all__ = [
    "HISTORY_FIELDS",
    "commit",
    "extend",
    "history_update",
    "is_deleted",
    "is_extended",
    "is_settled_by",
    "release",
    "release_command",
    "release_update",
    "retention_update",
    "rollback",
    "rollback_update",
    "send_rollback",
    "unprocess_command",
]

HISTORY_FIELDS = ("processed", "expires", "settled")
"""Fields of history and stubs that no live item has."""
STUB_DROPPED_FIELDS = ("payload", "headers", "key", "error", "origin", "replayed", "by", "batch", "hops", "trail")


def history_update(marks: Mapping[str, Any], *, attempts: int = 0, unset: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the update that turns an item into history. The token goes: left in, a late rollback revives it."""
    update: dict[str, Any] = {
        "$set": {**marks, "reserved": False},
        "$unset": dict.fromkeys(("when", "token", *unset), ""),
    }
    if attempts:
        update["$inc"] = {"attempts": attempts}
    return update


def commit(
    context: QueueContext[Any],
    item: Item[Any],
    *,
    payload: Any = None,
    replace_payload: bool = False,
    patch: Any = None,
    begun: bool = False,
) -> Flow[None]:
    """Settle an item as done: delete it, or keep it as history, or as a stub that remembers its id.

    Here and below ``begun`` means that the caller has run ``begin_settle`` for this item, before sharing commands.
    """
    broker = context.broker
    value = context.codec.wrap(payload) if replace_payload else None
    patched = {} if patch is None else check_patch(context, patch, replaces_payload=replace_payload)
    if not begun:
        yield from begin_settle(context, item)
    now = broker.clock.now()
    changes = {} if value is None else {"payload": broker.encoding.unwrap("payload", value)}
    update = retention_update(context, item, now, changes)
    if update is None:
        command = Command("delete_one", {"filter": {"_id": item.id, "token": item.token}}, has_deleted)
        yield from run_fenced(context, item, command, lambda found: is_deleted(found, item), "commit")
        return
    if context.settings.history is None:
        patched = {}  # a stub has no payload
    else:
        marker = Marker(context, "done", at=now)
        update = marker.marks(item, payload=value, added=max_growth(context, patched)).on(update)
    yield from settle_with_patch(
        context, item, update, patch=patched, happened=lambda found: is_settled_by(found, item), event="commit"
    )


def retention_update(
    context: QueueContext[Any], item: Item[Any], now: datetime, changes: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the update that keeps a settled item as history or as a stub; ``None`` when it is to be deleted."""
    expires = expiry(now, context.settings.history, item.once)
    if expires is None:
        return None
    marks = {"processed": now, "expires": expires, "settled": item.token}
    if context.settings.history is None:
        return history_update(marks, unset=STUB_DROPPED_FIELDS)
    return history_update({**marks, **changes})


def is_deleted(found: Document, item: Item[Any]) -> bool | None:
    """Return False for a document that is still there, or ``None`` under our token: the delete may still come."""
    return None if found.get("token") == item.token else False


def is_settled_by(found: Document, item: Item[Any]) -> bool | None:
    if "settled" in found:
        return bool(found["settled"] == item.token)
    return None if found.get("token") == item.token else False


def rollback(
    context: QueueContext[Any], item: Item[Any], *, delay: Duration, error: Any, begun: bool = False
) -> Flow[None]:
    """Hand an item back after a failure; beyond its retries it is buried at once."""
    length = duration(delay, "delay")
    if not begun:
        yield from begin_settle(context, item)
    most = context.settings.most_attempts
    if most is not None and item.attempts >= most:
        yield from bury(context, item, reason=reason_exhausted(item.attempts), error=error, attempts=item.attempts)
        return
    now = context.broker.clock.now()
    yield from send_rollback(context, item, rollback_update(now + length, error_document(error, now)))


def send_rollback(context: QueueContext[Any], item: Item[Any], update: Document) -> Flow[None]:
    """Send the update that hands an item back after a failure."""
    when, fewer = update["$set"]["when"], -update.get("$inc", {}).get("attempts", 0)
    command = update_command(item.id, item.token, update)
    yield from run_fenced(context, item, command, lambda found: is_back(found, item, when, fewer=fewer), "rollback")
    context.broker.record_put(context.name, when, item.priority, id=item.id, is_new=False)


def rollback_update(when: datetime, failure: Document | None) -> dict[str, Any]:
    """Return the update that hands an item back after a failure."""
    return {
        "$set": {"when": when, "reserved": False, **({"error": failure} if failure else {})},
        "$unset": {"token": ""},
    }


def release_update(when: datetime) -> dict[str, Any]:
    """Return the update that hands an item back unused: where it was in the order, its attempt not counted."""
    return {"$set": {"when": when, "reserved": False}, "$unset": {"token": ""}, "$inc": {"attempts": -1}}


def release_command(id: ObjectId, token: ObjectId | None, when: datetime) -> Command[bool]:
    """Return the fenced update that hands an item back unused."""
    return update_command(id, token, release_update(when))


def release(context: QueueContext[Any], item: Item[Any]) -> Flow[None]:
    """Hand an item back unused."""
    yield from begin_settle(context, item)
    when = item.due or context.broker.clock.now()
    command = release_command(item.id, item.token, when)
    yield from run_fenced(context, item, command, lambda found: is_back(found, item, when, fewer=1), "release")
    context.broker.record_put(context.name, when, item.priority, is_new=False)


def extend(
    context: QueueContext[Any], item: Item[Any], *, lease: Duration | None, begun: bool = False
) -> Flow[datetime]:
    """Extend the lease to ``lease`` from now, and return its new end."""
    length = None if lease is None else duration(lease, "lease", zero=False)
    if not begun:
        yield from begin_settle(context, item)
    until = context.broker.clock.now() + (length or context.settings.lease)
    command = update_command(item.id, item.token, {"$set": {"when": until}})
    yield from run_fenced(context, item, command, lambda found: is_extended(found, item, until), None)
    context.broker.record_put(context.name, until, item.priority, is_new=False)
    return until


def is_extended(found: Document, item: Item[Any], until: datetime) -> bool | None:
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
                # an expired token goes with it: without one, an item that was in a batch would be a suspect
                "$set": {name: before[name] for name in ("when", "reserved", "token") if before.get(name) is not None},
                "$unset": dict.fromkeys(HISTORY_FIELDS, ""),
                "$inc": {"attempts": -1},
            },
        },
        has_matched,
    )
