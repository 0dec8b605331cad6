# Generated from mongoq/core/wait/wait.py by scripts/unasync.py. Do not edit.
"""Wait for an item: ask once, then ask again only when an event makes it worthwhile.

These events are: a push or another operation of this process, the change stream (``wait.change_stream``), the due time
of the next item, and now and then a poll, as a safety net.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mongoq.core.base.first_due import first_due_command, first_due_pipeline
from mongoq.core.base.queue_settings import REFRESH_SECONDS
from mongoq.core.command import Waiter
from mongoq.core.state.context import BrokerContext, QueueContext, event_key
from mongoq.core.state.wait_queue import WaitQueue
from mongoq.core.wait.wait import MAX_REST_SECONDS, TRUST_SECONDS, R, logger
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import aggregate_all, close_cursor, find_one
from mongoq.core_threads.base.queue_settings import mark_used
from mongoq.core_threads.perform import perform, rest, run_beside, sleep
from mongoq.core_threads.wait.change_stream import run_change_stream


def find_next_due(context: QueueContext[Any]) -> datetime | None:
    """Find when the next item is, or was, due: one index lookup for each priority in use.

    ``aggregate`` with ``$sort`` and ``$first``, which the server answers by a DISTINCT_SCAN.
    """
    ensure_broker_ready(context.broker, write=False)
    groups: Any = perform(first_due_command(context.name))
    return min((group["when"] for group in groups), default=None)


def is_at_work(context: QueueContext[Any], lease: timedelta) -> bool:
    """Return whether any item is ready, or reserved for up to ``lease``; scheduled items do not count (``find``)."""
    ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    filter = {"q": context.name, "when": {"$lte": now + lease}, "$or": [{"when": {"$lte": now}}, {"reserved": True}]}
    return (find_one(context.broker, filter, {"_id": 1})) is not None


def is_drained(context: QueueContext[Any], lease: timedelta, *, keeps_scheduled: bool) -> bool:
    """Return whether a queue is empty; with ``keeps_scheduled`` scheduled items may be left in it."""
    return not (is_at_work(context, lease)) if keeps_scheduled else (find_next_due(context)) is None


def find_next_dues(broker: BrokerContext, queues: Sequence[str]) -> dict[str, datetime]:
    """Find the next due times of many queues in one ``aggregate``, by ``$unionWith``; empty queues are left out."""
    ensure_broker_ready(broker, write=False)
    parts = [[*first_due_pipeline(queue), {"$set": {"_id": {"$literal": queue}}}] for queue in queues]
    groups = aggregate_all(broker, parts)
    whens: dict[str, datetime] = {}
    for group in groups:
        queue, when = group["_id"], group["when"]
        whens[queue] = min(when, whens[queue]) if queue in whens else when
    return whens


def wait_for_item(
    context: QueueContext[Any],
    attempt: Callable[[], R | None],
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
            result = _take_turn(context, wait_queue, waiter, attempt)
            remaining = deadline - time.monotonic()
            if result is not None or remaining <= 0 or over():
                return result
            if time.monotonic() >= context.state.used_until:
                mark_used(context.broker, [context.name])
            _ensure_stream(context)
            seconds = min(wait_queue.begin_sleep(waiter), remaining, MAX_REST_SECONDS)
            if seconds > 0:
                rest(waiter, seconds)
    finally:
        wait_queue.leave(waiter)


def _take_turn(
    context: QueueContext[Any], wait_queue: WaitQueue, waiter: Waiter, attempt: Callable[[], R | None]
) -> R | None:
    """Do the task of this waiter's turn: nothing, a read of the next due time, or an attempt to claim."""
    turn = wait_queue.turn(waiter)
    if turn is None:
        return None
    if turn == "ask" and (pause := wait_queue.seconds_to_hold_back()):
        sleep(pause)  # one claim then takes all items that arrive meanwhile
    changes = wait_queue.begin(waiter)
    if turn == "look" and (due := (_read_next_due(context, wait_queue))) > 0:
        wait_queue.record_nothing(waiter, changes, due)
        return None
    result = attempt()
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
    wait_queue.record_nothing(waiter, changes, (_seconds_to_due(context)) if seconds is None else seconds)
    return None


def _read_next_due(context: QueueContext[Any], wait_queue: WaitQueue) -> float:
    """Return in how many seconds the next item is due; without a stream, one read serves other queues as well."""
    # The change counts are taken before the read: a push during it makes that queue's answer outdated.
    other_queues = [(other, other.changes) for other in context.broker.registry.overdue() if other is not wait_queue]
    if not other_queues:
        return _seconds_to_due(context)
    whens = find_next_dues(context.broker, [wait_queue.name, *(other.name for other, _ in other_queues)])
    now = context.broker.clock.now()
    dues = {queue: (when - now).total_seconds() for queue, when in whens.items()}
    for other, changes in other_queues:
        other.record_poll(changes, dues.get(other.name, math.inf))
    return dues.get(wait_queue.name, math.inf)


def _seconds_to_due(context: QueueContext[Any]) -> float:
    """Return in how many seconds the next item is due."""
    when = find_next_due(context)
    return math.inf if when is None else (when - context.broker.clock.now()).total_seconds()


def _ensure_stream(context: QueueContext[Any]) -> None:
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
            close_cursor(context.broker, cursor)
        except Exception as error:
            logger.debug("a change stream is left to the server to close: %r", error)
