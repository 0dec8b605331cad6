# Generated from mongoq/protocol/settle/bury.py by scripts/unasync.py. Do not edit.
"""Burials: an item moves to the dead queue, and its origin records why."""

from __future__ import annotations

from functools import partial
from typing import Any

from mongoq.model.arguments import REASON_BYTES, text
from mongoq.model.item import Item
from mongoq.protocol.settle.bury import dead_context as dead_context
from mongoq.protocol.settle.bury import make_burial
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.settle.send import settle_item


def bury(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any, attempts: int | None = None
) -> None:
    """Move an item to the dead queue; its origin records the reason."""
    if reason is not None:
        text(reason, "reason", REASON_BYTES)
    settle_item(context, item, partial(make_burial, reason=reason, error=error, attempts=attempts))
