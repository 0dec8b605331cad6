"""Wait for an item: ask once, then ask again only when an event makes it worthwhile.

These events are: a push or another operation of this process, the change stream (``wait.change_stream``), the due time
of the next item, and now and then a poll, as a safety net.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import aggregate_all, close_cursor, find_one
from mongoq.core.base.first_due import first_due_command, first_due_pipeline
from mongoq.core.base.queue_settings import REFRESH_SECONDS, mark_used
from mongoq.core.command import Waiter
from mongoq.core.perform import perform, rest, run_beside, sleep
from mongoq.core.state.context import BrokerContext, QueueContext, event_key
from mongoq.core.state.wait_queue import WaitQueue
from mongoq.core.wait.change_stream import run_change_stream

logger = logging.getLogger("mongoq.waiting")

R = TypeVar("R")

TRUST_SECONDS = 1.0
"""Seconds of patience from which on a waiter relies on an event that is under way."""
MAX_REST_SECONDS = 3600.0
"""Seconds of one rest, at most: some platforms limit it."""


async def find_next_due(context: QueueContext[Any]) -> datetime | None:
    """Find when the next item is, or was, due: one index lookup for each priority in use.

    ``aggregate`` with ``$sort`` and ``$first``, which the server answers by a DISTINCT_SCAN.
    """
    await ensure_broker_ready(context.broker, write=False)
    groups: Any = await perform(first_due_command(context.name))
    return min((group["when"] for group in groups), default=None)


async def is_at_work(context: QueueContext[Any], lease: timedelta) -> bool:
    """Return whether any item is ready, or reserved for up to ``lease``; scheduled items do not count (``find``)."""
    await ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    filter = {"q": context.name, "when": {"$lte": now + lease}, "$or": [{"when": {"$lte": now}}, {"reserved": True}]}
    return (await find_one(context.broker, filter, {"_id": 1})) is not None


async def is_drained(context: QueueContext[Any], lease: timedelta, *, keeps_scheduled: bool) -> bool:
    """Return whether a queue is empty; with ``keeps_scheduled`` scheduled items may be left in it."""
    return not (await is_at_work(context, lease)) if keeps_scheduled else (await find_next_due(context)) is None


async def find_next_dues(broker: BrokerContext, queues: Sequence[str]) -> dict[str, datetime]:
    """Find the next due times of many queues in one ``aggregate``, by ``$unionWith``; empty queues are left out."""
    await ensure_broker_ready(broker, write=False)
    parts = [[*first_due_pipeline(queue), {"$set": {"_id": {"$literal": queue}}}] for queue in queues]
    groups = await aggregate_all(broker, parts)
    whens: dict[str, datetime] = {}
    for group in groups:
        queue, when = group["_id"], group["when"]
        whens[queue] = min(when, whens[queue]) if queue in whens else when
    return whens


async def wait_for_item(
    context: QueueContext[Any],
    attempt: Callable[[], Awaitable[R | None]],
    patience: float,
    *,
    over: Callable[[], bool] = lambda: False,
) -> R | None:
    """Try until an item is claimed or the time is up; ``over`` ends the wait of a caller that is woken (by ``wake``).

    No item is missed in between: a caller that finds nothing is in the wait queue by then, and when the stream opens
    later than that, it lets every waiter try again.
    """
    deadline = math.inf if patience == math.inf else time.monotonic() + patience
    wait_queue, waiter = context.broker.registry.enter(context.name, patient=patience >= TRUST_SECONDS)
    try:
        while True:
            result = await _take_turn(context, wait_queue, waiter, attempt)
            remaining = deadline - time.monotonic()
            if result is not None or remaining <= 0 or over():
                return result
            if time.monotonic() >= context.state.used_until:
                await mark_used(context.broker, [context.name])
            await _ensure_stream(context)
            seconds = min(wait_queue.begin_sleep(waiter), remaining, MAX_REST_SECONDS)
            if seconds > 0:
                await rest(waiter, seconds)
    finally:
        wait_queue.leave(waiter)


async def _take_turn(
    context: QueueContext[Any], wait_queue: WaitQueue, waiter: Waiter, attempt: Callable[[], Awaitable[R | None]]
) -> R | None:
    """Do the task of this waiter's turn: nothing, a read of the next due time, or an attempt to claim."""
    turn = wait_queue.turn(waiter)
    if turn is None:
        return None
    if turn == "ask" and (pause := wait_queue.seconds_to_hold_back()):
        await sleep(pause)  # one claim then takes all items that arrive meanwhile
    changes = wait_queue.begin(waiter)
    if turn == "look" and (due := (await _read_next_due(context, wait_queue))) > 0:
        wait_queue.record_nothing(waiter, changes, due)
        return None
    result = await attempt()
    if result is not None:
        wait_queue.record_found()
        items = result if isinstance(result, list) else result.items  # type: ignore[attr-defined]  # a batch claim
        wait_queue.took([event_key(item.id, item.due) for item in items if item.due is not None])
        return result
    seconds: float | None = math.inf
    if context.state.paused and not wait_queue.is_next_poll_soon():
        # The stream delivers a resumption, unless that came after the read of the settings, and before the stream.
        registry = context.broker.registry
        if registry.watches(context.name) and context.state.read_at <= registry.since:
            seconds = REFRESH_SECONDS
    elif not wait_queue.is_next_poll_soon():
        seconds = wait_queue.seconds_until_due(changes)
    wait_queue.record_nothing(waiter, changes, (await _seconds_to_due(context)) if seconds is None else seconds)
    return None


async def _read_next_due(context: QueueContext[Any], wait_queue: WaitQueue) -> float:
    """Return in how many seconds the next item is due; without a stream, one read serves other queues as well."""
    # The change counts are taken before the read: a push during it makes that queue's answer outdated.
    other_queues = [(other, other.changes) for other in context.broker.registry.overdue() if other is not wait_queue]
    if not other_queues:
        return await _seconds_to_due(context)
    whens = await find_next_dues(context.broker, [wait_queue.name, *(other.name for other, _ in other_queues)])
    now = context.broker.clock.now()
    dues = {queue: (when - now).total_seconds() for queue, when in whens.items()}
    for other, changes in other_queues:
        other.record_poll(changes, dues.get(other.name, math.inf))
    return dues.get(wait_queue.name, math.inf)


async def _seconds_to_due(context: QueueContext[Any]) -> float:
    """Return in how many seconds the next item is due."""
    when = await find_next_due(context)
    return math.inf if when is None else (when - context.broker.clock.now()).total_seconds()


async def _ensure_stream(context: QueueContext[Any]) -> None:
    """Make sure that there is a stream, or will be, that covers this queue."""
    registry, cursor = context.broker.registry, 0
    reader = registry.start()
    if not reader:
        reader, cursor = registry.widen(context.name)
    if reader:
        try:
            run_beside(partial(run_change_stream, context.broker, reader), partial(registry.record_end, reader))
        except RuntimeError:  # no thread can be started now
            registry.record_end(reader)
    if cursor:
        try:
            await close_cursor(context.broker, cursor)
        except Exception as error:
            logger.debug("a change stream is left to the server to close: %r", error)
