"""Schedules: their control documents, ``schedule:NAME``, what callers do with them, and their ticks.

``identity`` is new when a schedule is made anew, and the ids of its ticks derive from it. ``edition`` is new with each
change of the definition; every write that depends on what was read finds the document under it.

Ticks: one item for each, whichever processes make it, and however often. The item of a tick has an id that derives from
the schedule and the tick, and the push remembers it. Then the control document goes on to the next tick, by an update
that finds it at the tick just made. A process that is killed between the two leaves the tick due: the next process
pushes the same id, which inserts nothing, and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_few, find_one, prefix_filter
from mongoq.core.base.retry import retry_lost_race, retry_until_reply
from mongoq.core.command import Command, Duplicate, ReplyLost, has_matched, number_matched
from mongoq.core.history.mistaken import choose_candidates
from mongoq.core.perform import perform
from mongoq.core.push.push import push
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import Duration, queue_name
from mongoq.data.clock import local_seconds
from mongoq.data.encoding.error_text import spoken
from mongoq.data.encoding.extended_json import time_text
from mongoq.data.item import Document
from mongoq.data.log_fields import log_fields
from mongoq.data.schedule.definition import (
    SCHEDULE_HEADER,
    SCHEDULE_PREFIX,
    TICK_HEADER,
    Definition,
    ScheduleRecord,
    ScheduleUnreadable,
    StoredSchedule,
    Tick,
    check_unseen,
    end_fields,
    name_of_schedule,
    read_schedule,
    tick_delay,
    tick_id,
    to_record,
)
from mongoq.data.schedule.timetable import LATE, Single, adapt_tick, select_ticks
from mongoq.data.settings import queue_options
from mongoq.errors import ArgumentInvalid, DuplicateItem, ScheduleUnknown

logger = logging.getLogger("mongoq.schedules")

MAX_SCHEDULES = 1_000_000
"""Schedules in one read, at most."""
TROUBLE = "cannot tick here: %s"
MAX_TROUBLE_LETTERS = 2_000
"""Letters of an error that are logged, at most: functions of users raise errors of any length."""
FRESH_SECONDS = 30.0
"""Seconds after which what was read of a schedule is too old to act on: the process, or a function, may have slept."""
FENCE = ("identity", "edition", "next")
"""Fields that a changed definition finds as they were read: else another process was faster."""
UNREAD = {"payload": 0, "headers": 0}
"""Projection of a list of schedules: it shows no contents."""


@dataclass(frozen=True, slots=True)
class LocalSchedule:
    """A schedule that code of this process has defined.

    Attributes:
        definition: the definition.
        context: handle of its queue, by which payloads of ``make`` are checked.
        make: function that makes the payload, if any.
    """

    definition: Definition
    context: QueueContext[Any]
    make: Callable[[Tick], Any] | None = None


async def define_schedule(broker: BrokerContext, local: LocalSchedule) -> datetime | None:
    """Store a definition (``find``, and ``insert`` or ``update`` if there is a change); return the next tick.

    A crash leaves the definition as it was before, or as it is afterwards. The next tick of a new definition comes
    after now. A tick that is due already, and not made yet, still comes: a change swallows nothing.
    """
    await ensure_broker_ready(broker, write=True)
    definition = local.definition
    # A date without a function is data: a program that defines one for each reminder keeps none of them in memory.
    if definition.needs_code or not isinstance(definition.timetable, Single):
        broker.schedules[definition.name] = local
    else:
        broker.schedules.pop(definition.name, None)
    return await retry_lost_race(partial(_try_define, broker, definition))


class _Changed(Duplicate):
    """Raised when the schedule has changed since it was read: another process was faster."""

    def __init__(self) -> None:
        super().__init__(RuntimeError("the schedule keeps changing; define it again"))


async def _try_define(broker: BrokerContext, definition: Definition) -> datetime | None:
    document = await find_one(broker, {"_id": definition.id}, UNREAD, lenient=True)
    now, fields = broker.clock.now(), definition.to_stored(broker.encoding)
    fields |= {"seen": now, "by": str(broker.identity)}
    fields |= {"version": definition.version, "function": definition.function}
    if document is None:
        first = definition.timetable.after(now)
        own = {"_id": definition.id, "identity": ObjectId(), "edition": ObjectId(), "next": first, "paused": False}
        try:
            await perform(Command[Any]("insert_one", {"document": {**own, **end_fields(first, now), **fields}}))
        except ReplyLost:
            raise _Changed from None  # it may be stored: the next read tells
        if first is None:
            _warn(definition.name, "never ticks: %s lies in the past", definition.timetable)
        return first
    due = document.get("next")
    due = due if isinstance(due, datetime) else None
    version = document.get("version")
    if isinstance(version, int) and version > definition.version:
        words = "goes by version %s of its definition; this process has version %s"
        _warn_once(broker, definition.name, words, version, definition.version)
        return due
    # One that is due already may be a tick of a former definition; when it is made, its process looks at the rules.
    is_due = due is not None and due <= now
    pending = due if due is None or is_due else adapt_tick(definition.timetable, due, now)
    try:
        read_schedule(document)
        # Another program may have changed it by hand: then only its identity is worth keeping.
        keeps_dates = document.get("digest") == fields["digest"]
    except ScheduleUnreadable:
        keeps_dates = False
    following = pending if keeps_dates or is_due else definition.timetable.after(now)
    fields |= {"next": following, **end_fields(following, now)}
    if is_due and not keeps_dates:
        fields["former"] = following
    if not keeps_dates or any(document.get(name) != fields[name] for name in ("version", "function")):
        fields["edition"] = ObjectId()
    if not isinstance(document.get("identity"), ObjectId):
        fields["identity"] = ObjectId()
    # By ``$eq``: another program may have stored a document that is an operator.
    filter = {"_id": definition.id, **{name: {"$eq": document.get(name)} for name in FENCE}}
    update: dict[str, Any] = {"$set": fields}  # a pause stays
    if gone := {"start_within", "expires"} - fields.keys():
        update["$unset"] = dict.fromkeys(sorted(gone), "")
    if not await _update(filter, update):
        raise _Changed  # after a lost reply by this very update: the next read tells
    if not keeps_dates:
        words = "has a new definition: %s, version %s"
        _warn(definition.name, words, definition.timetable, definition.version)
    return following


async def _update(filter: Mapping[str, Any], update: Mapping[str, Any]) -> bool:
    return await retry_until_reply(Command("update_one", {"filter": filter, "update": update}, has_matched))


# --- what is logged ------------------------------------------------------------------------------


def _warn(name: str, text: str, *words: object, level: int = logging.WARNING) -> None:
    logger.log(level, "schedule %r %s", name, text % words, extra=log_fields())


def _warn_once(broker: BrokerContext, name: str, text: str, *words: object, level: int = logging.WARNING) -> None:
    """Log a line about a schedule, unless this process's last line of this kind was the same."""
    line = text % words
    if broker.schedule_troubles.get((name, text)) != line:
        broker.schedule_troubles[name, text] = line
        _warn(name, text, *words, level=level)


def report_trouble(broker: BrokerContext, document: Mapping[str, Any], error: object) -> None:
    """Log why a schedule cannot tick here, once for each reason."""
    _warn_once(broker, name_of_schedule(document), TROUBLE, str(error)[:MAX_TROUBLE_LETTERS], level=logging.ERROR)


def forget_trouble(broker: BrokerContext, document: Mapping[str, Any]) -> None:
    """Note that a schedule has ticked here: the next trouble is logged again, though it be the same."""
    broker.schedule_troubles.pop((name_of_schedule(document), TROUBLE), None)


# --- of users ------------------------------------------------------------------------------------


async def list_schedules(broker: BrokerContext) -> list[ScheduleRecord]:
    """Return all schedules by name (``find`` by the prefix of ``_id``)."""
    await ensure_broker_ready(broker, write=False)
    filter = prefix_filter(SCHEDULE_PREFIX)
    documents = await find_few(broker, filter, [("_id", 1)], MAX_SCHEDULES, projection=UNREAD, lenient=True)
    now = broker.clock.now()
    return [to_record(document, now) for document in documents]


async def find_schedule(broker: BrokerContext, name: str) -> ScheduleRecord:
    """Return one schedule (``find`` by ``_id``); raises ``ScheduleUnknown``."""
    return to_record((await _find(broker, name, UNREAD)), broker.clock.now())


async def _find(broker: BrokerContext, name: str, projection: Mapping[str, Any] | None = None) -> Document:
    id = SCHEDULE_PREFIX + queue_name(name, "name")
    await ensure_broker_ready(broker, write=False)
    document = await find_one(broker, {"_id": id}, projection, lenient=True)
    if document is None:
        raise (await _unknown(broker, name))
    return document


async def _unknown(broker: BrokerContext, name: str) -> ScheduleUnknown:
    names = [record.name for record in (await list_schedules(broker))]
    return ScheduleUnknown(name, get_close_matches(name, choose_candidates(name, names)), broker.namespace)


async def set_schedule_paused(broker: BrokerContext, name: str, paused: bool) -> None:
    """Pause or resume a schedule (``update``); raises ``ScheduleUnknown``."""
    id = SCHEDULE_PREFIX + queue_name(name, "name")
    await ensure_broker_ready(broker, write=True)
    if not await _update({"_id": id}, {"$set": {"paused": paused}}):
        raise (await _unknown(broker, name))


async def remove_schedule(broker: BrokerContext, name: str) -> bool:
    """Delete a schedule, and return whether there was one (``delete``)."""
    filter = {"_id": SCHEDULE_PREFIX + queue_name(name, "name")}
    await ensure_broker_ready(broker, write=True)
    broker.schedules.pop(name, None)
    return await _delete(filter)


async def prune_schedules(broker: BrokerContext, unseen: Duration) -> list[str]:
    """Delete the schedules whose functions no process had in its code for a time; return their names.

    ``find``, and a ``delete`` for each, fenced by the time when it was seen. A crash leaves the rest.
    """
    length = check_unseen(unseen)
    await ensure_broker_ready(broker, write=True)
    now = broker.clock.now()
    names = []
    for record in await list_schedules(broker):
        filter = {"_id": SCHEDULE_PREFIX + record.name, "seen": record.seen}
        if record.is_unseen_for(length, now) and (await _delete(filter)):
            broker.schedules.pop(record.name, None)
            names.append(record.name)
    return names


async def _delete(filter: Mapping[str, Any]) -> bool:
    command = Command("delete_one", {"filter": filter}, lambda reply: bool(reply.deleted_count))
    return await retry_until_reply(command)


async def run_schedule_now(broker: BrokerContext, name: str) -> ObjectId:
    """Push an extra item of a schedule, and return its id (``find``, and as for a push)."""
    document = await _find(broker, name)
    try:
        stored = read_schedule(document)
        tick = stored.tick(broker.clock.now(), extra=True)
        context, payload = make_payload(broker, stored, tick)
    except (ScheduleUnreadable, NotHere) as error:
        raise ArgumentInvalid("name", f"schedule {name!r} cannot run: {error}") from error
    return await _push_item(context, payload, stored, tick)


# --- of the processes that have them in their code ------------------------------------------------


async def note_own_schedules(broker: BrokerContext) -> None:
    """Note that this process has its schedules in its code, and log those that none has, once each (``find``).

    One ``update`` of many for each version: a definition of a lower version than the stored one does not count.
    """
    await ensure_broker_ready(broker, write=True)
    versions: dict[int, list[str]] = {}
    for local in list(broker.schedules.values()):
        versions.setdefault(local.definition.version, []).append(local.definition.id)
    for version, ids in versions.items():
        filter = {"_id": {"$in": ids}, "version": version}
        update = {"$set": {"seen": broker.clock.now()}}  # not ``by``: another process may have defined it since
        await retry_until_reply(Command("update_many", {"filter": filter, "update": update}, number_matched))
    for record in await list_schedules(broker):
        if record.unseen:
            words = "is in no running code since %s; prune_schedules() or 'mongoq schedules prune' removes it"
            _warn_once(broker, record.name, words, record.seen)


# --- ticks ---------------------------------------------------------------------------------------


class NotHere(Exception):
    """Raised when this process cannot make the payload of a schedule: others may."""


def make_payload(broker: BrokerContext, stored: StoredSchedule, tick: Tick) -> tuple[QueueContext[Any], Any]:
    """Return the queue and the payload of a tick; raises ``NotHere`` without the function, or its version of it."""
    context: QueueContext[Any] = QueueContext(broker, queue_options(stored.queue), broker.untyped)
    if stored.source == "value":
        return context, stored.document.get("payload")
    if stored.source == "tick":
        return context, tick.to_payload()
    local, function = broker.schedules.get(stored.name), f"{stored.document.get('function')!s:.200}"
    if local is None or local.make is None or local.definition.version != stored.version:
        raise NotHere(f"its payload is made by {function}, and this process does not have it in its code")
    try:
        return local.context, local.make(tick)
    except Exception as error:
        # Whatever it is: an error of a server that the function asks is no outage of ours.
        raise NotHere(f"its function {function} has failed: {spoken(error)}") from error


async def find_due(broker: BrokerContext, within: timedelta) -> tuple[list[Document], float]:
    """Find the schedules that tick within a time (``find`` by the prefix of ``_id``).

    Returns their documents, and the local seconds of the read.
    """
    await ensure_broker_ready(broker, write=True)
    until, read_at = broker.clock.now() + within, local_seconds()
    filter = {**prefix_filter(SCHEDULE_PREFIX), "next": {"$lte": until}, "paused": {"$ne": True}}
    return await find_few(broker, filter, [("_id", 1)], MAX_SCHEDULES, lenient=True), read_at


async def make_ticks(broker: BrokerContext, document: Mapping[str, Any], read_at: float) -> tuple[int, datetime | None]:
    """Push the items of the due ticks of a schedule, and go on to the next tick (``insert``, ``update`` for each).

    Returns how many this process has made, and the next tick; ``None`` when there is none, or another process goes on.

    Raises:
        ScheduleUnreadable: another program has written the document, or a later mongoq.
        NotHere: the payload is made by a function that this process does not have.
        ModuleNotFoundError: it goes by a cron expression, and cronsim is not installed.
        Exception: what the function that makes the payload has raised, or a push.
    """
    stored = read_schedule(document)
    now, due = broker.clock.now(), stored.next
    if due is None or due > now:
        return 0, due
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
            if (await find_one(broker, filter, {"_id": 1})) is None:
                return made, None
        when = at + tick_delay(stored.identity, at, stored.jitter)
        options: dict[str, Any] = {"when": when if stored.jitter and when > broker.clock.now() else None}
        options |= {"id": tick_id(stored.identity, at), "once": stored.remember(at, onward)}
        # A duplicate: a process that was killed has pushed it into the queue that the schedule had before a change.
        with suppress(DuplicateItem):
            await _push_item(context, payload, stored, tick, **options)
        # After each one: a process that is killed leaves a single tick to be made again.
        changes: dict[str, Any] = {"next": onward, "last": at, **end_fields(onward, now)}
        if stored.source == "function":
            changes["seen"] = broker.clock.now()  # this process has it in its code
        state = await _advance(stored, reached, changes)
        if state is None:
            return made, None
        if state.get("paused") is True:
            return made + 1, None  # the other ticks wait for the end of the pause
        reached = at if onward is None else onward
    if not ticks and (await _advance(stored, due, {"next": following, **end_fields(following, now)})) is None:
        return 0, None
    if now - first > LATE and not broker.serverless:  # a test moves its clock by hours, and means to
        words = "schedule %r: its tick of %s came late, at %s; made %d"
        logger.warning(words, stored.name, first, now, len(ticks), extra=log_fields(queue=stored.queue))
    return len(ticks), following


async def _advance(stored: StoredSchedule, tick: datetime, changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Go on from a tick (``findAndModify``), and return the state of the pause; ``None`` if the schedule has changed.

    Then another process has made the tick as well, or the schedule was changed or removed: the next look tells.
    """
    arguments = {"filter": _at(stored, tick), "update": {"$set": changes}, "projection": {"_id": 1, "paused": 1}}
    command: Command[Mapping[str, Any] | None] = Command("find_one_and_update", arguments)
    return await retry_until_reply(command)


def _at(stored: StoredSchedule, tick: datetime) -> dict[str, Any]:
    """Return a filter of a schedule as it was read, at a tick."""
    return {**{name: stored.document[name] for name in ("_id", "identity", "edition")}, "next": tick}


async def _push_item(
    context: QueueContext[Any],
    payload: Any,
    stored: StoredSchedule,
    tick: Tick,
    *,
    when: datetime | None = None,
    id: ObjectId | None = None,
    once: Any = None,
) -> ObjectId:
    headers = {**(stored.headers or {}), TICK_HEADER: time_text(tick.at), SCHEDULE_HEADER: tick.name}
    options: dict[str, Any] = {"priority": stored.priority, "headers": headers}
    options |= {"expires": stored.expires, "when": when, "id": id, "once": once}
    pushed: ObjectId = await push(context, payload, delay=None, **options)
    return pushed
