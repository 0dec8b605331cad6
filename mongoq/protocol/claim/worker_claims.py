"""Claims of a worker: batches that run side by side, and items that may have killed a worker, one at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from mongoq.model.item import Item
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.claim.filtering import ItemFilter, is_kept
from mongoq.protocol.claim.reserve import claim_with_lapse, reserve_now
from mongoq.protocol.claim.reserve_many import ClaimedBatch, claim_batch_now
from mongoq.protocol.flow import Blocked, Flow
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.wait.wait import wait_for_item

__all__ = ["claim_batch", "claim_exclusive"]

M = TypeVar("M")

BLOCKED_WAIT_SECONDS = 0.5
"""Seconds that an exclusive claim waits for a transaction that settles the item; the whole worker waits meanwhile."""
LAPSED_PAUSE_SECONDS = 1.0
"""Seconds for which items with expired leases are skipped after that."""


def claim_batch(
    context: QueueContext[M],
    n: int,
    lease: timedelta | None,
    *,
    over: Callable[[], bool],
    screen: ItemFilter | None = None,
) -> Flow[ClaimedBatch[M] | None]:
    """Claim up to ``n`` items that are to run beside others, waiting for the first as long as it takes.

    Items with expired leases stay in the queue; the result says whether there are any. ``over`` ends the wait, and the
    result is ``None``. The wait also ends when a ``screen`` has settled items that do not match.
    """

    def attempt() -> Flow[ClaimedBatch[M] | None]:
        if over():
            return None
        yield from ensure_ready(context)
        began = time.monotonic()
        claimed = yield from claim_batch_now(context, n, lease, "bury", skips_lapsed=True, screen=screen)
        if claimed is not None:
            claimed.seconds = time.monotonic() - began
        return claimed

    return (yield from wait_for_item(context, attempt, math.inf, over=over))


def claim_exclusive(
    context: QueueContext[M], lease: timedelta | None, *, screen: ItemFilter | None = None
) -> Flow[tuple[Item[M] | None, bool] | None]:
    """Claim the first item for a run by itself, and return whether its last lease ran out; ``None`` without an item.

    A transaction of another process may block the item for a minute. Then the result is ``None``, and claims of batches
    skip items with expired leases for a moment, since there is other work to do. An item that does not match the
    ``screen`` is settled, and ``None`` stands in its place.
    """
    lapsed = False

    def claim(context: QueueContext[Any], length: timedelta) -> Flow[Item[Any] | None]:
        nonlocal lapsed
        claimed = yield from claim_with_lapse(context, length, patience=BLOCKED_WAIT_SECONDS)
        if claimed is None:
            return None
        item, lapsed = claimed
        return item

    try:
        item = yield from reserve_now(context, lease, "bury", claim)
    except Blocked:
        context.state.held_up = time.monotonic() + LAPSED_PAUSE_SECONDS
        return None
    context.state.held_up = 0.0
    if item is None:
        return None
    if screen is None or (yield from is_kept(context, screen, item)):
        return item, lapsed
    return None, lapsed
