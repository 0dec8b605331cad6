# Generated from mongoq/core/base/first_due.py by scripts/unasync.py. Do not edit.
"""First due date of each priority of a queue, and whether index scans from the beginning are slow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson.max_key import MaxKey

from mongoq.core.base.first_due import END_MARKER_SECONDS, SLOW_PAIRS, SLOW_WALK_SECONDS, first_due_command
from mongoq.core.command import Command, Duplicate
from mongoq.core.state.claim_hints import LowerBound, claimable, eligible
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.find import find_few
from mongoq.core_threads.base.retry import retry_once
from mongoq.data.indexes import CLAIM_FIELDS, CLAIM_ORDER


def refresh_hints(context: QueueContext[Any]) -> None:
    """Refresh the claim hints when they are due. Almost always they are not."""
    if not context.broker.serverless and context.state.claim_hints.needs_refresh(time.monotonic()):
        _read_first_due(context)


def has_items_before_bound(context: QueueContext[Any]) -> bool:
    """Return whether to repeat a claim that found nothing: it started from lower bounds, and an item is eligible."""
    heads = context.state.claim_hints
    if not heads.fast or not heads.needs_refresh(time.monotonic(), empty=True):
        return False
    return _read_first_due(context)


def _read_first_due(context: QueueContext[Any]) -> bool:
    """Read the first dates, update the claim hints, and return whether any item is eligible."""
    heads, began = context.state.claim_hints, time.monotonic()
    heads.begin(began)
    groups: Any = retry_once(first_due_command(context.name))
    walked, now = time.monotonic() - began, context.broker.clock.now()
    first = [(group["_id"], group["when"]) for group in groups]
    floors = heads.bounds_of(first, now)
    slow = False
    if floors is not None and heads.fast:
        slow = heads.is_slow(walked, (_time_find(context, claimable(context.name, now, floors))))
    elif floors is not None:
        slow = _is_slow(context, floors, now)
    heads.record_refresh(floors, slow=slow, at=time.monotonic())
    if heads.fast:
        _write_end_markers(context)
    return any(isinstance(when, datetime) and when <= now for _, when in first)


def _is_slow(context: QueueContext[Any], floors: Mapping[int, LowerBound], now: datetime) -> bool:
    """Return whether scans from the beginning are slow.

    Time the read of a claim from the beginning and from the lower bounds in turn, until both are about equally fast.
    """
    heads, began = context.state.claim_hints, time.monotonic()
    for pair in range(SLOW_PAIRS):
        full = _time_find(context, eligible(context.name, now))
        if not heads.is_slow(full, (_time_find(context, claimable(context.name, now, floors)))):
            return False
        if pair and time.monotonic() - began > SLOW_WALK_SECONDS:
            break
    return True


def _time_find(context: QueueContext[Any], filter: Mapping[str, Any]) -> float:
    began = time.monotonic()
    find_few(context.broker, filter, CLAIM_ORDER, 1, projection=CLAIM_FIELDS)
    return time.monotonic() - began


def _write_end_markers(context: QueueContext[Any]) -> None:
    """Write a document behind each priority in the index, once; a claim that finds nothing ends its scan there.

    Without the marker the scan continues over the deleted entries of the next priority, and at the end of the index it
    goes all the way back. The marker's ``when`` is no date, so no query of items matches it.
    """
    state, now = context.state, time.monotonic()
    if now - state.fenced_at > END_MARKER_SECONDS:
        state.fenced_off.clear()
        state.fenced_at = now
    for priority in state.claim_hints.floors.keys() - state.fenced_off:
        end = {"q": context.name, "priority": priority, "when": MaxKey()}
        filter = {"_id": f"end:{priority}:{context.name}"}
        command: Command[Any] = Command(
            "update_one", {"filter": filter, "update": {"$setOnInsert": end, "$unset": {"expires": ""}}, "upsert": True}
        )
        try:
            retry_once(command)
        except Duplicate:
            pass  # another process was faster
        state.fenced_off.add(priority)
