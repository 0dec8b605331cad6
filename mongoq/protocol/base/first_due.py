"""Looks: where each priority of a queue begins, and whether to walk there from the beginning is slow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson.max_key import MaxKey

from mongoq.model.indexes import BEGINNING
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow.commands import Command, Duplicate, Flow, insisted
from mongoq.protocol.state.claim_hints import LowerBound, claimable, eligible
from mongoq.protocol.state.context import QueueContext

__all__ = ["ORDER", "first_due_command", "first_due_pipeline", "has_items_before_bound", "refresh_hints"]

ORDER = [("priority", 1), ("when", 1), ("_id", 1)]
"""The order of claims."""
SLOW_PAIRS = 5
"""How often in a row the walk must be slow before claims are fast: one slow reply says nothing."""
END_MARKER_SECONDS = 86_400.0
"""Seconds after which a document at the end of a priority is put there again: it expires with an idle queue."""
SLOW_WALK_SECONDS = 0.05
"""Seconds after which a walk is slow without being tried so often."""


def first_due_command(queue: str) -> Command[list[Any]]:
    """Return the look for the first date of each priority: an ``aggregate``, which is a DISTINCT_SCAN."""
    return Command("aggregate", {"pipeline": first_due_pipeline(queue)})


def first_due_pipeline(queue: str) -> list[dict[str, Any]]:
    """Return the stages of that look."""
    return [
        {"$match": {"q": queue, "when": {"$gte": BEGINNING}}},
        {"$sort": {"q": 1, "priority": 1, "when": 1}},
        {"$group": {"_id": "$priority", "when": {"$first": "$when"}}},
    ]


def refresh_hints(context: QueueContext[Any]) -> Flow[bool] | tuple[()]:
    """Look when it is time to. Almost always it is not, and no flow is made."""
    if context.broker.serverless or not context.state.heads.due(time.monotonic()):
        return ()
    return _read_first_due(context)


def has_items_before_bound(context: QueueContext[Any]) -> Flow[bool]:
    """Say whether a claim that found nothing should be sent again: it was fast, and something is eligible."""
    heads = context.state.heads
    if not heads.fast or not heads.due(time.monotonic(), empty=True):
        return False
    return (yield from _read_first_due(context))


def _read_first_due(context: QueueContext[Any]) -> Flow[bool]:
    """Look, and say whether anything is eligible."""
    heads, began = context.state.heads, time.monotonic()
    heads.begin(began)
    groups: Any = yield from insisted(first_due_command(context.name))
    walked, now = time.monotonic() - began, context.broker.clock.now()
    first = [(group["_id"], group["when"]) for group in groups]
    floors = heads.seen(first, now)
    slow = False
    if floors is not None and heads.fast:
        slow = heads.is_slow(walked, (yield from _time_find(context, claimable(context.name, now, floors))))
    elif floors is not None:
        slow = yield from _is_slow(context, floors, now)
    heads.looked(floors, slow=slow, at=time.monotonic())
    if heads.fast:
        yield from _write_end_markers(context)
    return any(isinstance(when, datetime) and when <= now for _, when in first)


def _is_slow(context: QueueContext[Any], floors: Mapping[int, LowerBound], now: datetime) -> Flow[bool]:
    """Read what a claim would take, from the beginning and from the floors in turn, until that is about as fast."""
    heads, began = context.state.heads, time.monotonic()
    for pair in range(SLOW_PAIRS):
        full = yield from _time_find(context, eligible(context.name, now))
        if not heads.is_slow(full, (yield from _time_find(context, claimable(context.name, now, floors)))):
            return False
        if pair and time.monotonic() - began > SLOW_WALK_SECONDS:
            break
    return True


def _time_find(context: QueueContext[Any], filter: Mapping[str, Any]) -> Flow[float]:
    began = time.monotonic()
    yield from find_few(context.broker, filter, ORDER, 1, projection={"priority": 1, "when": 1})
    return time.monotonic() - began


def _write_end_markers(context: QueueContext[Any]) -> Flow[None]:
    """Put a document behind each priority in the index, once: there a claim that finds nothing ends.

    Without it, it walks on over the deleted entries of the next priority, and at the end of the index all the way
    back. It is no date that the document bears, so that no query of items meets it.
    """
    state, now = context.state, time.monotonic()
    if now - state.fenced_at > END_MARKER_SECONDS:
        state.fenced_off.clear()
        state.fenced_at = now
    for priority in state.heads.floors.keys() - state.fenced_off:
        end = {"q": context.name, "priority": priority, "when": MaxKey()}
        filter = {"_id": f"end:{priority}:{context.name}"}
        command: Command[Any] = Command(
            "update_one", {"filter": filter, "update": {"$setOnInsert": end, "$unset": {"expires": ""}}, "upsert": True}
        )
        try:
            yield from insisted(command)
        except Duplicate:
            pass  # somebody else was faster
        state.fenced_off.add(priority)
