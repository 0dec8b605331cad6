"""Reservations: the fields that a claim sets, and the commands about items that it holds before it hands them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.model.encoding.ids import new_id
from mongoq.model.item import Item, id_key
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.command import Command, number_matched
from mongoq.protocol.settle.settle import release_command, release_update
from mongoq.protocol.settle.settlement import make_statement
from mongoq.protocol.state.context import QueueContext


def make_marks(context: QueueContext[Any], now: datetime, lease: timedelta) -> dict[str, Any]:
    """Return the fields that a claim sets, with a token of its own."""
    return {"when": now + lease, "reserved": True, "token": new_id(), "by": str(context.broker.identity)}


def give_back_command(
    context: QueueContext[Any], token: ObjectId | None, dues: Iterable[tuple[Any, datetime]], now: datetime
) -> Command[Any]:
    """Return the command that hands back unused what the token holds of some items, given their ids and due dates."""
    if context.broker.serverless:
        filter = {"_id": {"$in": [id for id, _ in dues]}, "token": token}
        return Command("update_many", {"filter": filter, "update": release_update(now)})
    places: dict[datetime, list[Any]] = {}
    for id, due in dues:
        places.setdefault(due, []).append(id)
    requests: list[Statement] = [
        make_statement({"token": token}, ids, release_update(when)) for when, ids in places.items()
    ]
    return Command("bulk_write", {"requests": requests, "ordered": False})


def give_back_items(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Command[Any]:
    """Return the command that hands back unused items that were claimed together."""
    first, now = items[0], items[0].read_at
    if len(items) == 1:
        return release_command(first.id, first.token, first.due or now)
    return give_back_command(context, first.token, [(item.id, item.due or now) for item in items], now)


async def update_held(
    context: QueueContext[Any], items: Sequence[Item[Any]], update: Mapping[str, Any], *, claimed: Sequence[Item[Any]]
) -> list[Item[Any]]:
    """Update items that were claimed together, and return those that their token still holds (``update``).

    ``claimed`` are all that the caller is to get: they are given back when the call is cancelled or fails. Sent again
    after a lost reply, the update sets the same values. ``find`` tells which items are lost, if any.
    """
    fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
    command: Command[int] = Command(
        "update_many",
        {"filter": fence, "update": update},
        number_matched,
        undo=lambda _: give_back_items(context, claimed),
        resolved=True,
    )
    number = await retry_until_reply(command)
    if number == len(items):
        return list(items)
    documents = await find_few(context.broker, fence, [("_id", 1)], len(items), projection={"_id": 1})
    held = {id_key(document["_id"]) for document in documents}
    return [item for item in items if id_key(item.id) in held]


async def renew_leases(context: QueueContext[Any], items: list[Item[Any]], lease: timedelta) -> list[Item[Any]]:
    """Restart the leases when the claim, or burials among its items, took half of them; lost items are left out."""
    until, now = items[0].lease_until if items else None, context.broker.clock.now()
    if until is None or now < until - lease / 2:
        return items
    held = await update_held(context, items, {"$set": {"when": now + lease}}, claimed=items)
    return [item.held_until(now + lease) for item in held]
