"""Moves: an item handed on to another queue, or to the dead queue, in one fenced update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from mongoq.errors import ArgumentInvalid, PatchInvalid, PayloadTooLarge, ReservationLost
from mongoq.model.arguments import Duration, text
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.codec import SIZE_LIMIT
from mongoq.model.envelope import REASON_BYTES, error_document, new_envelope, origin_document
from mongoq.model.item import Item
from mongoq.model.patch import padding, patch_update
from mongoq.protocol.context import QueueContext
from mongoq.protocol.fence import begin, fenced, is_back, update_command
from mongoq.protocol.push import check_due, checked_headers, due
from mongoq.protocol.request import Command, Flow, Refused

__all__ = ["EXHAUSTED_REASON", "bury", "check_destination", "dead_envelope", "dead_queue", "move"]

EXHAUSTED_REASON = "retries exhausted"
BURIED_REASON = "buried"
PATCHED_LIMIT = SIZE_LIMIT + 32 * 1024
"""Bytes of a whole document that a patch may grow to, so that later claims and burials still fit."""


def move(
    context: QueueContext[Any],
    item: Item[Any],
    to: QueueContext[Any],
    *,
    payload: Any,
    replace_payload: bool,
    patch: Any,
    delay: Duration | None,
    when: datetime | None,
    priority: int | None,
    headers: Any,
    replace_headers: bool,
) -> Flow[None]:
    """Hand an item on to another queue, with a fresh budget of attempts, in one update."""
    changes: dict[str, Any] = {"q": to.name, "reserved": False, "attempts": 0}
    if replace_payload and patch is not None:
        raise PatchInvalid("patch", "give either payload= or patch=, not both")
    if replace_payload:
        changes["payload"] = to.codec.encode(payload)
    if priority is not None:
        changes["priority"] = checked_priority(priority)
    if replace_headers and headers is not None:
        changes["headers"] = checked_headers(headers, context.broker.encoding)
    patched = {} if patch is None else patch_update(patch, context.broker.encoding)
    check_due(delay, when)
    yield from begin(context, item)
    changes["when"] = due(context.broker.clock, delay, when)
    gone = ("token", "error", "key", *(("headers",) if replace_headers and headers is None else ()))
    update = _merged({"$set": changes, "$unset": dict.fromkeys(gone, "")}, patched)
    command = update_command(item.id, item.token, update)
    if patched:
        yield from _patching(context, item, command, patched, changes["when"])
        return
    yield from fenced(context, item, command, lambda found: is_back(found, changes["when"]))


def check_destination(context: QueueContext[Any], to: QueueContext[Any]) -> None:
    """Refuse a queue of another broker's collection: a move is one update of one document."""
    if to.broker.namespace != context.broker.namespace:
        raise ArgumentInvalid("to", f"{to.broker.namespace}/{to.name} lies in another collection; push it there")


def _merged(update: dict[str, Any], patched: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return update | {operator: {**update.get(operator, {}), **fields} for operator, fields in patched.items()}


def _patching(
    context: QueueContext[Any],
    item: Item[Any],
    command: Command[bool],
    patched: Mapping[str, Any],
    when: datetime,
) -> Flow[None]:
    """Send a patch that leaves the item small enough to be claimed again."""
    size = context.broker.encoding.size(patched) + padding(patched)
    if not context.broker.serverless:
        room = {"$expr": {"$lte": [{"$bsonSize": "$$ROOT"}, PATCHED_LIMIT - size]}}
        command = replace(command, arguments={**command.arguments, "filter": command.arguments["filter"] | room})
    try:
        yield from fenced(context, item, command, lambda found: is_back(found, when))
    except Refused as refused:
        raise PatchInvalid("patch", f"does not fit the payload: {refused}") from refused.cause
    except ReservationLost as lost:
        if lost.certain and (yield from _still_ours(item)):
            raise PayloadTooLarge("patch", SIZE_LIMIT + size, SIZE_LIMIT) from None
        raise


def _still_ours(item: Item[Any]) -> Flow[bool]:
    ours = {"_id": item.id, "token": item.token}
    return (yield from Command("find_one", {"filter": ours, "projection": {"_id": 1}})) is not None


def bury(
    context: QueueContext[Any],
    item: Item[Any],
    *,
    reason: str | None,
    error: Any,
    attempts: int | None = None,
) -> Flow[None]:
    """Hand an item to the dead queue, where its origin tells what happened."""
    dead = dead_queue(context)
    if reason is not None:
        text(reason, "reason", REASON_BYTES)
    yield from begin(context, item)
    now = context.broker.clock.now()
    changes = _grave(item, reason, error, item.attempts if attempts is None else attempts, now)
    changes |= {"q": dead, "when": now, "reserved": False, "attempts": 0}
    command = update_command(item.id, item.token, {"$set": changes, "$unset": {"token": "", "key": ""}})
    yield from fenced(context, item, command, lambda found: is_back(found, now))


def _grave(item: Item[Any], reason: str | None, error: Any, attempts: int, now: datetime) -> dict[str, Any]:
    failure = error_document(error, now)
    told = reason or (failure["message"] if failure else "") or BURIED_REASON
    grave = {"origin": origin_document(item, reason=told, attempts=attempts, at=now)}
    return grave | ({"error": failure} if failure else {})


def dead_queue(context: QueueContext[Any]) -> str:
    """Return the name of the dead queue; raises when the queue has none."""
    if context.settings.dead is None:
        raise ArgumentInvalid(
            "queue",
            f"{context.name!r} has no dead queue (a dead queue never has one); move the item, or remove it",
        )
    return context.settings.dead


def dead_envelope(
    context: QueueContext[Any], item: Item[Any], *, reason: str, error: Exception, now: datetime
) -> dict[str, Any]:
    """Return the envelope that puts an item into the dead queue which no longer has one."""
    envelope = new_envelope(
        dead_queue(context),
        item.payload,
        id=item.id,
        when=now,
        priority=item.priority,
        headers=item.headers,
        once=item.once,
    )
    return envelope | _grave(item, reason, error, item.attempts, now)
