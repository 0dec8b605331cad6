"""Claims of a worker: many items that run beside others, and those that may have killed a worker, each by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from mongoq.model.item import Item
from mongoq.protocol.claim import claim_telling, reserve_now
from mongoq.protocol.context import QueueContext
from mongoq.protocol.request import Flow
from mongoq.protocol.reserve_many import Taken, take
from mongoq.protocol.screening import Screen, keeps
from mongoq.protocol.settings import prepared
from mongoq.protocol.waiting import waiting

__all__ = ["take_alone", "take_beside"]

M = TypeVar("M")


def take_beside(
    context: QueueContext[M], n: int, lease: timedelta | None, *, over: Callable[[], bool], screen: Screen | None = None
) -> Flow[Taken[M] | None]:
    """Claim up to ``n`` items that are to run beside others, waiting for the first as long as it takes.

    What has lapsed is left where it is, and the answer tells that there is some. ``over`` ends the
    wait, and the answer is ``None``. It also ends when a ``screen`` has settled some that do not match.
    """

    def attempt() -> Flow[Taken[M] | None]:
        if over():
            return None
        yield from prepared(context)
        return (yield from take(context, n, lease, "bury", sparing=True, screen=screen))

    return (yield from waiting(context, attempt, math.inf, over=over))


def take_alone(
    context: QueueContext[M], lease: timedelta | None, *, screen: Screen | None = None
) -> Flow[tuple[Item[M] | None, bool] | None]:
    """Claim the first item for a run by itself, and say whether its last lease ran out; ``None`` when there is none.

    One that does not match the ``screen`` was settled, and ``None`` stands in its place.
    """
    lapsed = False

    def claimed(context: QueueContext[Any], length: timedelta) -> Flow[Item[Any] | None]:
        nonlocal lapsed
        told = yield from claim_telling(context, length)
        if told is None:
            return None
        lapsed = told[1]
        return told[0]

    item = yield from reserve_now(context, lease, "bury", claimed)
    if item is None:
        return None
    if screen is None or (yield from keeps(context, screen, item)):
        return item, lapsed
    return None, lapsed
