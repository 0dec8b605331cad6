"""Ticks of schedules: one item for each tick, whichever processes make it, and however often.

The item of a tick has an id that derives from the schedule and the tick, and the push remembers it. Then the control
document goes on to the next tick, by an update that finds it at the tick just made. A process that is killed between
the two leaves the tick due: the next process pushes the same id, which inserts nothing, and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mongoq.errors import DuplicateItem
from mongoq.model.clock import local_seconds
from mongoq.model.item import Document
from mongoq.model.log_fields import log_fields
from mongoq.model.schedule.definition import (
    SCHEDULE_PREFIX,
    StoredSchedule,
    Tick,
    end_fields,
    read_schedule,
    tick_delay,
    tick_headers,
    tick_id,
)
from mongoq.model.schedule.timetable import LATE, adapt_tick, select_ticks
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few, find_one, prefix_filter
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.coordination.schedules import make_payload
from mongoq.protocol.flow import Command, Flow
from mongoq.protocol.push.push import push
from mongoq.protocol.state.context import BrokerContext, QueueContext

logger = logging.getLogger("mongoq.schedules")

PAGE = 100
"""Due schedules in one read."""
FRESH_SECONDS = 30.0
"""Seconds after which what was read of a schedule is too old to act on: the process, or a function, may have slept."""


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """The schedules whose next tick comes within a time.

    Attributes:
        documents: their control documents.
        read_at: local seconds of the read.
    """

    documents: list[Document]
    read_at: float


def find_due(broker: BrokerContext, within: timedelta) -> Flow[DueSchedules]:
    """Find the schedules that tick within a time (``find`` by the prefix of ``_id``, for each 100 of them).

    Pages go by ``_id``: however many cannot be ticked here, they hide no others.
    """
    yield from ensure_broker_ready(broker, write=True)
    until, read_at = broker.clock.now() + within, local_seconds()
    filter = {**prefix_filter(SCHEDULE_PREFIX), "next": {"$lte": until}, "paused": {"$ne": True}}
    documents: list[Document] = []
    while True:
        page = yield from find_few(broker, filter, [("_id", 1)], PAGE, lenient=True)
        documents += page
        if len(page) < PAGE:
            return DueSchedules(documents, read_at)
        filter = {**filter, "_id": {**filter["_id"], "$gt": page[-1]["_id"]}}
        filter["_id"].pop("$gte", None)


@dataclass(frozen=True, slots=True)
class Ticked:
    """Result of a tick.

    Attributes:
        made: ticks that this process has made.
        next: the next tick; ``None`` when there is none.
    """

    made: int
    next: datetime | None


def make_ticks(broker: BrokerContext, document: Mapping[str, Any], read_at: float) -> Flow[Ticked]:
    """Push the items of the due ticks of a schedule, and go on to the next tick (``insert``, ``update`` for each).

    Raises:
        ScheduleUnreadable: another program has written the document, or a later mongoq.
        NotHere: the payload is made by a function that this process does not have.
        ModuleNotFoundError: it goes by a cron expression, and cronsim is not installed.
        Exception: what the function that makes the payload has raised, or a push.
    """
    stored = read_schedule(document)
    now, due = broker.clock.now(), stored.next
    if due is None or due > now:
        return Ticked(0, due)
    # A tick of the former definition still comes, though it is none of the present one.
    first = due if document.get("former") == due else adapt_tick(stored.timetable, due, now)
    ticks, following = select_ticks(stored.timetable, first, now, stored.missed, stored.horizon)
    reached = due
    for made, at in enumerate(ticks):
        onward = ticks[made + 1] if made + 1 < len(ticks) else following
        tick = stored.tick(at)
        context, payload = make_payload(broker, stored, tick)
        # Only now: the function that makes the payload may take long as well.
        if local_seconds() - read_at > FRESH_SECONDS:
            read_at = local_seconds()
            filter = {**_at(stored, reached), "paused": {"$ne": True}}
            if (yield from find_one(broker, filter, {"_id": 1})) is None:
                return Ticked(made, None)
        yield from _push_tick(context, payload, stored, tick, onward)
        # After each one: a process that is killed leaves a single tick to be made again.
        changes: dict[str, Any] = {"next": onward, "last": at, **end_fields(onward, now)}
        if stored.source == "function":
            changes["seen"] = broker.clock.now()  # this process has it in its code
        state = yield from _advance(stored, reached, changes)
        if state is None:
            return Ticked(made, None)
        if state.get("paused") is True:
            return Ticked(made + 1, None)  # the other ticks wait for the end of the pause
        reached = at if onward is None else onward
    if not ticks and (yield from _advance(stored, due, {"next": following, **end_fields(following, now)})) is None:
        return Ticked(0, None)
    if now - first > LATE and not broker.serverless:  # a test moves its clock by hours, and means to
        words = "schedule %r: its tick of %s came late, at %s; made %d"
        logger.warning(words, stored.name, first, now, len(ticks), extra=log_fields(queue=stored.queue))
    return Ticked(len(ticks), following)


def _advance(stored: StoredSchedule, tick: datetime, changes: Mapping[str, Any]) -> Flow[Mapping[str, Any] | None]:
    """Go on from a tick (``findAndModify``), and return the state of the pause; ``None`` if the schedule has changed.

    Then another process has made the tick as well, or the schedule was changed or removed: the next look tells.
    """
    arguments = {"filter": _at(stored, tick), "update": {"$set": changes}, "projection": {"_id": 1, "paused": 1}}
    command: Command[Mapping[str, Any] | None] = Command("find_one_and_update", arguments)
    return (yield from retry_until_reply(command))


def _at(stored: StoredSchedule, tick: datetime) -> dict[str, Any]:
    """Return a filter of a schedule as it was read, at a tick."""
    return {"_id": stored.document["_id"], "identity": stored.identity, "edition": stored.edition, "next": tick}


def _push_tick(
    context: QueueContext[Any], payload: Any, stored: StoredSchedule, tick: Tick, following: datetime | None
) -> Flow[None]:
    when = tick.at + tick_delay(stored.identity, tick.at, stored.jitter)
    options: dict[str, Any] = {
        "when": when if stored.jitter and when > context.broker.clock.now() else None,
        "priority": stored.priority,
        "headers": tick_headers(stored.headers, tick),
        "expires": stored.expires,
        "id": tick_id(stored.identity, tick.at),
        "once": stored.remember(tick.at, following),
    }
    try:
        yield from push(context, payload, delay=None, **options)
    except DuplicateItem:
        # A process that was killed has pushed it into the queue that the schedule had before a change.
        pass
