"""Waiting for an item: asked once, then again only when something tells that it may be worth it.

What tells: a push or another flow of this process, the change stream (``protocol.listening``), the time at which the
next item is due, and now and then a look, as a safety net.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from mongoq.model.item import Item
from mongoq.protocol.base.queue_settings import mark_used
from mongoq.protocol.flow.commands import Beside, Flow, Rest, Wait
from mongoq.protocol.flow.event import Waiter
from mongoq.protocol.state.context import QueueContext, event_key
from mongoq.protocol.state.wait_queue import WaitQueue
from mongoq.protocol.wait.change_stream import kill_command, run_change_stream
from mongoq.protocol.wait.next_due import find_next_due, find_next_dues

__all__ = ["wait_for_item"]

logger = logging.getLogger("mongoq.waiting")

R = TypeVar("R")

TRUST_SECONDS = 1.0
"""Seconds of patience from which on an event that is under way is waited for."""
MAX_REST_SECONDS = 3600.0
"""Seconds of one rest, which some platforms bound."""


def wait_for_item(
    context: QueueContext[Any],
    attempt: Callable[[], Flow[R | None]],
    patience: float,
    *,
    over: Callable[[], bool] = lambda: False,
) -> Flow[R | None]:
    """Try until there is an item or the time is up, or ``over`` says so to whoever is woken (``Hub.wake``).

    Nothing is missed in between: whoever finds nothing holds a place in the room by then, and when the stream opens
    later than that, it lets everybody try again.
    """
    deadline = math.inf if patience == math.inf else time.monotonic() + patience
    room = context.broker.hub.room(context.name)
    ticket = room.enter(patient=patience >= TRUST_SECONDS)
    try:
        while True:
            found = yield from _take_turn(context, room, ticket, attempt)
            remaining = deadline - time.monotonic()
            if found is not None or remaining <= 0 or over():
                return found
            if time.monotonic() >= context.state.used_until:
                yield from mark_used(context.broker, [context.name])
            yield from _ensure_stream(context)
            seconds = min(room.doze(ticket), remaining, MAX_REST_SECONDS)
            if seconds > 0:
                yield from Rest(ticket, seconds)
    finally:
        room.leave(ticket)


def _take_turn(
    context: QueueContext[Any], room: WaitQueue, ticket: Waiter, attempt: Callable[[], Flow[R | None]]
) -> Flow[R | None]:
    """Do what it is this waiter's turn to do."""
    turn = room.turn(ticket)
    if turn is None:
        return None
    if turn == "ask" and (pause := room.held_back()):
        yield from Wait(pause)  # what comes meanwhile is asked for together
    begun = room.begin(ticket)
    if turn == "look" and (due := (yield from _read_next_due(context, room))) > 0:
        room.nothing(ticket, begun, due)
        return None
    found = yield from attempt()
    if found is not None:
        room.found()
        room.took([event_key(item.id, item.due) for item in _items(found) if item.due is not None])
        return found
    room.nothing(ticket, begun, (yield from _seconds_to_next_try(context, room, begun)))
    return None


def _seconds_to_next_try(context: QueueContext[Any], room: WaitQueue, begun: int) -> Flow[float]:
    """Return in how many seconds to ask again: what is known, or what the server says."""
    if room.glances() or context.state.paused:
        return math.inf
    known = room.known(begun)
    return (yield from _seconds_to_due(context)) if known is None else known


def _read_next_due(context: QueueContext[Any], room: WaitQueue) -> Flow[float]:
    """Find in how many seconds the next item is due; without a stream, for other queues in the same look."""
    others = [(other, other.changes) for other in context.broker.hub.overdue() if other is not room]
    if not others:
        return (yield from _seconds_to_due(context))
    whens = yield from find_next_dues(context.broker, [room.name, *(other.name for other, _ in others)])
    now = context.broker.clock.now()
    dues = {queue: (when - now).total_seconds() for queue, when in whens.items()}
    for other, changes in others:
        other.looked(changes, dues.get(other.name, math.inf))
    return dues.get(room.name, math.inf)


def _items(found: Any) -> list[Item[Any]]:
    if isinstance(found, Item):
        return [found]
    return found if isinstance(found, list) else found.items  # a claim of many


def _seconds_to_due(context: QueueContext[Any]) -> Flow[float]:
    """Find in how many seconds the next item is due."""
    when = yield from find_next_due(context)
    return math.inf if when is None else (when - context.broker.clock.now()).total_seconds()


def _ensure_stream(context: QueueContext[Any]) -> Flow[None]:
    """See to it that there is a stream, or will be, that tells of this queue."""
    hub, cursor = context.broker.hub, 0
    reader = hub.start()
    if not reader:
        reader, cursor = hub.widen(context.name)
    if reader:
        try:
            yield from Beside(partial(run_change_stream, context.broker, reader), partial(hub.ended, reader))
        except RuntimeError:  # no thread can be started just now
            hub.ended(reader)
    if cursor:
        try:
            yield from kill_command(context.broker, cursor)
        except Exception as error:
            logger.debug("a change stream is left to the server to close: %r", error)
