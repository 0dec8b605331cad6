# Generated from mongoq/protocol/claim/reservation.py by scripts/unasync.py. Do not edit.
"""Reservations: the fields that a claim sets, and the commands about items that it holds before it hands them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.protocol.claim.reservation import give_back_items
from mongoq.protocol.command import Command, number_matched
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import find_few
from mongoq.protocol_threads.base.retry import retry_until_reply


def update_held(
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
    number = retry_until_reply(command)
    if number == len(items):
        return list(items)
    documents = find_few(context.broker, fence, [("_id", 1)], len(items), projection={"_id": 1})
    held = {id_key(document["_id"]) for document in documents}
    return [item for item in items if id_key(item.id) in held]


def renew_leases(context: QueueContext[Any], items: list[Item[Any]], lease: timedelta) -> list[Item[Any]]:
    """Restart the leases when the claim, or burials among its items, took half of them; lost items are left out."""
    until, now = items[0].lease_until if items else None, context.broker.clock.now()
    if until is None or now < until - lease / 2:
        return items
    held = update_held(context, items, {"$set": {"when": now + lease}}, claimed=items)
    return [item.held_until(now + lease) for item in held]
