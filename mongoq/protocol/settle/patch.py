"""Patches on their way: the payload changed in the same update that settles the item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mongoq.errors import PatchInvalid, PayloadTooLarge, ReservationLost
from mongoq.model.encoding.codec import SIZE_LIMIT
from mongoq.model.item import Item
from mongoq.model.patch import padding, patch_update
from mongoq.model.process import Event
from mongoq.protocol.base.fence import Verdict, run_fenced, update_command
from mongoq.protocol.base.find import find_one
from mongoq.protocol.flow import Flow, Refused
from mongoq.protocol.state.context import QueueContext

__all__ = [
    "Patch",
    "check_patch",
    "max_growth",
    "merge_patch",
    "patch_misfit_error",
    "patch_too_large_error",
    "settle_with_patch",
]

Patch = Mapping[str, Mapping[str, Any]]

MAX_PATCHED_BYTES = SIZE_LIMIT + 32 * 1024
"""Bytes of a whole document that a patch may grow to, so that later claims and burials still fit."""


def check_patch(context: QueueContext[Any], patch: Any, *, replaces_payload: bool) -> Patch:
    """Return the operators to send; a patch beside a new payload is refused."""
    if replaces_payload:
        raise PatchInvalid("patch", "give either payload= or patch=, not both")
    return patch_update(patch, context.broker.encoding)


def settle_with_patch(
    context: QueueContext[Any],
    item: Item[Any],
    update: dict[str, Any],
    *,
    patch: Patch,
    happened: Verdict,
    event: Event,
) -> Flow[None]:
    """Send the update that settles an item, with a patch that leaves it small enough to be claimed again."""
    if not patch:
        yield from run_fenced(context, item, update_command(item.id, item.token, update), happened, event)
        return
    merged, room, size = merge_patch(context, update, patch)
    command = update_command(item.id, item.token, merged)
    if not context.broker.serverless:
        command = replace(command, arguments={**command.arguments, "filter": command.arguments["filter"] | room})
    try:
        yield from run_fenced(context, item, command, happened, event)
    except Refused as refused:
        raise patch_misfit_error(refused) from refused.cause
    except ReservationLost as lost:
        if lost.certain and (yield from _is_still_held(context, item)):
            raise patch_too_large_error(size) from None
        raise


def merge_patch(context: QueueContext[Any], update: Patch, patch: Patch) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the update with the patch in it, the condition that it leaves room, and the most bytes it can add."""
    merged = {**update, **{operator: {**update.get(operator, {}), **fields} for operator, fields in patch.items()}}
    size = max_growth(context, patch)
    whole: dict[str, Any] = {"$bsonSize": "$$ROOT"}
    limit = MAX_PATCHED_BYTES - size
    if "trail" in update["$set"]:  # which makes room
        whole = {"$subtract": [whole, {"$bsonSize": {"trail": "$trail"}}]}
        limit -= context.broker.encoding.size({"trail": update["$set"]["trail"]})
    return merged, {"$expr": {"$lte": [whole, limit]}}, size


def max_growth(context: QueueContext[Any], patch: Patch) -> int:
    """Return the most bytes that a patch can add."""
    return context.broker.encoding.size(patch) + padding(patch) if patch else 0


def patch_misfit_error(refused: Exception) -> PatchInvalid:
    """Return the error for a patch that the server could not apply to what is stored."""
    return PatchInvalid("patch", f"does not fit the payload: {str(refused).partition(', full error')[0]}")


def patch_too_large_error(size: int) -> PayloadTooLarge:
    """Return the error for a patch that may add so many bytes to an item that has no room for them."""
    return PayloadTooLarge("patch", SIZE_LIMIT + size, SIZE_LIMIT)


def _is_still_held(context: QueueContext[Any], item: Item[Any]) -> Flow[bool]:
    ours = {"_id": item.id, "token": item.token}
    return (yield from find_one(context.broker, ours, {"_id": 1})) is not None
