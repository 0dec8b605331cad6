# Generated from mongoq/core/coordination/schedules.py by scripts/unasync.py. Do not edit.
"""Schedules: their control documents, ``schedule:NAME``, what callers do with them, and their ticks.

``identity`` is new when a schedule is made anew, and the ids of its ticks derive from it. ``edition`` is new with each
change of the definition; every write that depends on what was read finds the document under it.

Ticks: one item for each, whichever processes make it, and however often. The item of a tick has an id that derives from
the schedule and the tick, and the push remembers it. Then the control document goes on to the next tick, by an update
that finds it at the tick just made. A process that is killed between the two leaves the tick due: the next process
pushes the same id, which inserts nothing, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.core.base.find import prefix_filter
from mongoq.core.command import Command, ReplyLost, has_matched, number_matched
from mongoq.core.coordination.schedules import (
    FENCE,
    FRESH_SECONDS,
    MAX_SCHEDULES,
    UNREAD,
    NotHere,
    _at,
    _Changed,
    _warn,
    _warn_once,
    logger,
    make_payload,
)
from mongoq.core.coordination.schedules import LocalSchedule as LocalSchedule
from mongoq.core.coordination.schedules import forget_trouble as forget_trouble
from mongoq.core.coordination.schedules import report_trouble as report_trouble
from mongoq.core.history.mistaken import choose_candidates
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import find_few, find_one
from mongoq.core_threads.base.retry import retry_lost_race, retry_until_reply
from mongoq.core_threads.perform import perform
from mongoq.core_threads.push.push import push
from mongoq.data.arguments import Duration, queue_name
from mongoq.data.clock import local_seconds
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
    read_schedule,
    tick_delay,
    tick_id,
    to_record,
)
from mongoq.data.schedule.timetable import LATE, Single, adapt_tick, select_ticks
from mongoq.errors import ArgumentInvalid, DuplicateItem, ScheduleUnknown


def define_schedule(broker: BrokerContext, local: LocalSchedule) -> datetime | None:
    """Store a definition (``find``, and ``insert`` or ``update`` if there is a change); return the next tick.

    A crash leaves the definition as it was before, or as it is afterwards. The next tick of a new definition comes
    after now. A tick that is due already, and not made yet, still comes: a change swallows nothing.
    """
    ensure_broker_ready(broker, write=True)
    definition = local.definition
    # A date without a function is data: a program that defines one for each reminder keeps none of them in memory.
    if definition.needs_code or not isinstance(definition.timetable, Single):
        broker.schedules[definition.name] = local
    else:
        broker.schedules.pop(definition.name, None)
    return retry_lost_race(partial(_try_define, broker, definition))


def _try_define(broker: BrokerContext, definition: Definition) -> datetime | None:
    document = find_one(broker, {"_id": definition.id}, UNREAD, lenient=True)
    now, fields = broker.clock.now(), definition.to_stored(broker.encoding)
    fields |= {"seen": now, "by": str(broker.identity)}
    fields |= {"version": definition.version, "function": definition.function}
    if document is None:
        first = definition.timetable.after(now)
        own = {"_id": definition.id, "identity": ObjectId(), "edition": ObjectId(), "next": first, "paused": False}
        try:
            perform(Command[Any]("insert_one", {"document": {**own, **end_fields(first, now), **fields}}))
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
    if not _update(filter, update):
        raise _Changed  # after a lost reply by this very update: the next read tells
    if not keeps_dates:
        words = "has a new definition: %s, version %s"
        _warn(definition.name, words, definition.timetable, definition.version)
    return following


def _update(filter: Mapping[str, Any], update: Mapping[str, Any]) -> bool:
    return retry_until_reply(Command("update_one", {"filter": filter, "update": update}, has_matched))


# --- what is logged ------------------------------------------------------------------------------


# --- of users ------------------------------------------------------------------------------------


def list_schedules(broker: BrokerContext) -> list[ScheduleRecord]:
    """Return all schedules by name (``find`` by the prefix of ``_id``)."""
    ensure_broker_ready(broker, write=False)
    filter = prefix_filter(SCHEDULE_PREFIX)
    documents = find_few(broker, filter, [("_id", 1)], MAX_SCHEDULES, projection=UNREAD, lenient=True)
    now = broker.clock.now()
    return [to_record(document, now) for document in documents]


def find_schedule(broker: BrokerContext, name: str) -> ScheduleRecord:
    """Return one schedule (``find`` by ``_id``); raises ``ScheduleUnknown``."""
    return to_record((_find(broker, name, UNREAD)), broker.clock.now())


def _find(broker: BrokerContext, name: str, projection: Mapping[str, Any] | None = None) -> Document:
    id = SCHEDULE_PREFIX + queue_name(name, "name")
    ensure_broker_ready(broker, write=False)
    document = find_one(broker, {"_id": id}, projection, lenient=True)
    if document is None:
        raise (_unknown(broker, name))
    return document


def _unknown(broker: BrokerContext, name: str) -> ScheduleUnknown:
    names = [record.name for record in (list_schedules(broker))]
    return ScheduleUnknown(name, get_close_matches(name, choose_candidates(name, names)), broker.namespace)


def set_schedule_paused(broker: BrokerContext, name: str, paused: bool) -> None:
    """Pause or resume a schedule (``update``); raises ``ScheduleUnknown``."""
    id = SCHEDULE_PREFIX + queue_name(name, "name")
    ensure_broker_ready(broker, write=True)
    if not _update({"_id": id}, {"$set": {"paused": paused}}):
        raise (_unknown(broker, name))


def remove_schedule(broker: BrokerContext, name: str) -> bool:
    """Delete a schedule, and return whether there was one (``delete``)."""
    filter = {"_id": SCHEDULE_PREFIX + queue_name(name, "name")}
    ensure_broker_ready(broker, write=True)
    broker.schedules.pop(name, None)
    return _delete(filter)


def prune_schedules(broker: BrokerContext, unseen: Duration) -> list[str]:
    """Delete the schedules whose functions no process had in its code for a time; return their names.

    ``find``, and a ``delete`` for each, fenced by the time when it was seen. A crash leaves the rest.
    """
    length = check_unseen(unseen)
    ensure_broker_ready(broker, write=True)
    now = broker.clock.now()
    names = []
    for record in list_schedules(broker):
        filter = {"_id": SCHEDULE_PREFIX + record.name, "seen": record.seen}
        if record.is_unseen_for(length, now) and (_delete(filter)):
            broker.schedules.pop(record.name, None)
            names.append(record.name)
    return names


def _delete(filter: Mapping[str, Any]) -> bool:
    command = Command("delete_one", {"filter": filter}, lambda reply: bool(reply.deleted_count))
    return retry_until_reply(command)


def run_schedule_now(broker: BrokerContext, name: str) -> ObjectId:
    """Push an extra item of a schedule, and return its id (``find``, and as for a push)."""
    document = _find(broker, name)
    try:
        stored = read_schedule(document)
        tick = stored.tick(broker.clock.now(), extra=True)
        context, payload = make_payload(broker, stored, tick)
    except (ScheduleUnreadable, NotHere) as error:
        raise ArgumentInvalid("name", f"schedule {name!r} cannot run: {error}") from error
    return _push_item(context, payload, stored, tick)


# --- of the processes that have them in their code ------------------------------------------------


def note_own_schedules(broker: BrokerContext) -> None:
    """Note that this process has its schedules in its code, and log those that none has, once each (``find``).

    One ``update`` of many for each version: a definition of a lower version than the stored one does not count.
    """
    ensure_broker_ready(broker, write=True)
    versions: dict[int, list[str]] = {}
    for local in list(broker.schedules.values()):
        versions.setdefault(local.definition.version, []).append(local.definition.id)
    for version, ids in versions.items():
        filter = {"_id": {"$in": ids}, "version": version}
        update = {"$set": {"seen": broker.clock.now()}}  # not ``by``: another process may have defined it since
        retry_until_reply(Command("update_many", {"filter": filter, "update": update}, number_matched))
    for record in list_schedules(broker):
        if record.unseen:
            words = "is in no running code since %s; prune_schedules() or 'mongoq schedules prune' removes it"
            _warn_once(broker, record.name, words, record.seen)


# --- ticks ---------------------------------------------------------------------------------------


def find_due(broker: BrokerContext, within: timedelta) -> tuple[list[Document], float]:
    """Find the schedules that tick within a time (``find`` by the prefix of ``_id``).

    Returns their documents, and the local seconds of the read.
    """
    ensure_broker_ready(broker, write=True)
    until, read_at = broker.clock.now() + within, local_seconds()
    filter = {**prefix_filter(SCHEDULE_PREFIX), "next": {"$lte": until}, "paused": {"$ne": True}}
    return find_few(broker, filter, [("_id", 1)], MAX_SCHEDULES, lenient=True), read_at


def make_ticks(broker: BrokerContext, document: Mapping[str, Any], read_at: float) -> tuple[int, datetime | None]:
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
            if (find_one(broker, filter, {"_id": 1})) is None:
                return made, None
        when = at + tick_delay(stored.identity, at, stored.jitter)
        options: dict[str, Any] = {"when": when if stored.jitter and when > broker.clock.now() else None}
        options |= {"id": tick_id(stored.identity, at), "once": stored.remember(at, onward)}
        # A duplicate: a process that was killed has pushed it into the queue that the schedule had before a change.
        with suppress(DuplicateItem):
            _push_item(context, payload, stored, tick, **options)
        # After each one: a process that is killed leaves a single tick to be made again.
        changes: dict[str, Any] = {"next": onward, "last": at, **end_fields(onward, now)}
        if stored.source == "function":
            changes["seen"] = broker.clock.now()  # this process has it in its code
        state = _advance(stored, reached, changes)
        if state is None:
            return made, None
        if state.get("paused") is True:
            return made + 1, None  # the other ticks wait for the end of the pause
        reached = at if onward is None else onward
    if not ticks and (_advance(stored, due, {"next": following, **end_fields(following, now)})) is None:
        return 0, None
    if now - first > LATE and not broker.serverless:  # a test moves its clock by hours, and means to
        words = "schedule %r: its tick of %s came late, at %s; made %d"
        logger.warning(words, stored.name, first, now, len(ticks), extra=log_fields(queue=stored.queue))
    return len(ticks), following


def _advance(stored: StoredSchedule, tick: datetime, changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Go on from a tick (``findAndModify``), and return the state of the pause; ``None`` if the schedule has changed.

    Then another process has made the tick as well, or the schedule was changed or removed: the next look tells.
    """
    arguments = {"filter": _at(stored, tick), "update": {"$set": changes}, "projection": {"_id": 1, "paused": 1}}
    command: Command[Mapping[str, Any] | None] = Command("find_one_and_update", arguments)
    return retry_until_reply(command)


def _push_item(
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
    pushed: ObjectId = push(context, payload, delay=None, **options)
    return pushed
