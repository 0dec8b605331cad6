# Generated from mongoq/core/settle/settle.py by scripts/unasync.py. Do not edit.
"""Settling: the operations of a reservation's holder within its queue, for one item and for many.

A single item is settled by one fenced command. Of many items, each settlement is checked before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from mongoq.core.settle.settle import M, _extension_maker, _release_maker, make_burial, make_commit, make_rollback
from mongoq.core.settle.settle import dead_queue as dead_queue
from mongoq.core.settle.settle import graveyard as graveyard
from mongoq.core.settle.settlement import check_patch
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.settle.send import settle_item, settle_items
from mongoq.data.arguments import REASON_BYTES, Duration, duration, text
from mongoq.data.envelope import error_document
from mongoq.data.indexes import BEGINNING
from mongoq.data.item import Item
from mongoq.data.settings import KEEP

# --- done ----------------------------------------------------------------------------------------


def commit(
    context: QueueContext[Any], item: Item[Any], *, payload: Any = KEEP, patch: Any = None, session: Any = None
) -> None:
    """Settle an item as done: delete it, or keep it as history, or as a stub that remembers its id.

    With a payload or a patch, it goes by a command of its own.
    """
    value = None if payload is KEEP else context.codec.wrap(payload)
    checked = check_patch(context, patch, replaces_payload=value is not None)
    make = partial(make_commit, payload=value, patch=checked) if checked or value is not None else make_commit
    settle_item(context, item, make, joined=session is not None, shared=make is make_commit)


def commit_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> None:
    """Settle items as done."""
    settle_items(context, items, make_commit)


# --- handed back ---------------------------------------------------------------------------------


def rollback(context: QueueContext[Any], item: Item[Any], *, delay: Duration, error: Any) -> None:
    """Hand an item back after a failure; beyond its retries it is buried at once."""
    make = partial(make_rollback, length=duration(delay, "delay"), error=error)
    settle_item(context, item, make, shared=True)


def rollback_many(context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration, error: Any) -> None:
    """Hand items back after a failure; items without retries left are buried."""
    length = duration(delay, "delay")
    error_document(error, BEGINNING)  # refuses what is no error
    settle_items(context, items, partial(make_rollback, length=length, error=error))


def release(context: QueueContext[Any], item: Item[Any], *, delay: Duration | None = None) -> None:
    """Hand an item back unused: to its place, or put off by a delay."""
    settle_item(context, item, _release_maker(delay))


def release_many(context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration | None = None) -> None:
    """Hand items back unused: to their places, or put off by a delay."""
    settle_items(context, items, _release_maker(delay))


# --- kept longer ---------------------------------------------------------------------------------


def extend(context: QueueContext[Any], item: Item[Any], *, lease: Duration | None) -> datetime:
    """Extend the lease to ``lease`` from now, and return its new end."""
    until: datetime = settle_item(context, item, _extension_maker(lease), shared=True)
    return until


def extend_many(context: QueueContext[M], items: Iterable[Item[M]], *, lease: Duration | None) -> list[Item[M]]:
    """Extend the leases to ``lease`` from now, and return the items with their new ends."""
    wanted = settle_items(context, items, _extension_maker(lease))
    return [item.held_until(settlement.answer) for item, settlement in wanted]


# --- buried --------------------------------------------------------------------------------------


def bury(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any, attempts: int | None = None
) -> None:
    """Move an item to the dead queue; its origin records the reason."""
    if reason is not None:
        text(reason, "reason", REASON_BYTES)
    settle_item(context, item, partial(make_burial, reason=reason, error=error, attempts=attempts))
