"""Pushes and claims with shared commands: each caller gets the exact result of its own part.

A lone caller gets the command of a single item. An operation in a transaction is sent by itself as well. Settlements
are shared in ``settle.one``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.protocol.claim import reserve as claim
from mongoq.protocol.claim.judge import OnInvalid
from mongoq.protocol.claim.reserve import NotYet, claim_for_callers
from mongoq.protocol.flow import Command, Flow, Shared
from mongoq.protocol.push.push import push
from mongoq.protocol.settle.settle import release_command
from mongoq.protocol.state.context import QueueContext

__all__ = ["push", "reserve"]

M = TypeVar("M")


def reserve(
    context: QueueContext[M], *, lease: Duration | None, wait: Duration | None, on_invalid: OnInvalid
) -> Flow[Item[M] | None]:
    """Claim the first eligible item, or one of the first, when other callers claim at the same time."""
    share = _share_claim if context.broker.group_commit else None
    return claim.reserve(context, lease=lease, wait=wait, on_invalid=on_invalid, share=share)


def _share_claim(context: QueueContext[Any], lease: timedelta) -> Shared[Item[Any] | None]:
    return Shared(("reserve", context.name, lease), _claim_for_all, (context, lease), _undo_claim)


def _undo_claim(item: Item[Any] | None) -> Command[Any] | None:
    return None if item is None or item.due is None else release_command(item.id, item.token, item.due)


def _claim_for_all(entries: list[tuple[QueueContext[Any], timedelta]]) -> Flow[list[Item[Any] | NotYet | None]]:
    """Claim an item for each caller: the earliest callers get the first items, the others ask again."""
    context, lease = entries[0]
    items = yield from claim_for_callers(context, len(entries), lease)
    return [*items, *[NotYet() if items else None] * (len(entries) - len(items))]
