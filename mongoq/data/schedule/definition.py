"""Definition of a schedule, the ids of its ticks, and the reading of stored documents."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import bson
from bson import ObjectId

from mongoq.data.arguments import Duration, choice, count, duration, queue_name
from mongoq.data.arguments import priority as checked_priority
from mongoq.data.clock import milliseconds
from mongoq.data.encoding.codec import HEADERS_LIMIT, Codec, Encoding
from mongoq.data.encoding.extended_json import duration_text, time_text
from mongoq.data.schedule.timetable import (
    DEFAULT_HORIZON,
    LATE,
    Cron,
    Missed,
    Timetable,
    from_stored,
    timetable,
)
from mongoq.data.settings import Default
from mongoq.errors import ArgumentInvalid, PayloadTooLarge

SCHEDULE_PREFIX = "schedule:"
"""Prefix of the ``_id`` of a schedule's control document."""
TICK_HEADER = "mongoq-tick"
"""Header with the time of the tick, as a text in UTC."""
SCHEDULE_HEADER = "mongoq-schedule"
"""Header with the name of the schedule."""
REMEMBER_LEAST = timedelta(days=7)
"""How long the id of a tick is remembered, at least; a day longer than it can be found due, if that is longer."""
REMEMBER_MOST = timedelta(days=3650)
"""How long the id of a tick is remembered if no other tick follows, and no horizon ends it."""
MAX_PAYLOAD_BYTES = 1024 * 1024
"""Bytes of the payload of a schedule, at most: workers read it with each tick."""
MAX_FUNCTION_LETTERS = 200
"""Letters of the name of a function that are stored."""
UNSEEN_AFTER = timedelta(days=1)
"""Time after which a schedule that no running code defines any more is reported."""
MIN_UNSEEN = timedelta(minutes=30)
"""Shortest time after which a schedule may be pruned: running workers say every ten minutes which ones they have."""
OVER_EXPIRY = timedelta(days=1)
"""Time after which the TTL index deletes a schedule that never ticks again."""
Source = Literal["value", "tick", "function"]
"""What a payload is made of: one value for all ticks, the tick itself, or a function of the tick."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of a schedule, as functions of a schedule get it.

    Attributes:
        name: name of the schedule.
        at: time of the tick by the schedule, aware, in UTC; it may run later.
        timezone: name of the zone of a cron expression; ``None`` for others.
        extra: True if ``run_schedule_now`` has made it, beside the timetable.
    """

    name: str
    at: datetime
    timezone: str | None = None
    extra: bool = False

    @property
    def local(self) -> datetime:
        """Time of the tick in the zone of its schedule, or in UTC without one."""
        return self.at.astimezone(UTC if self.timezone is None else ZoneInfo(self.timezone))

    def to_payload(self) -> dict[str, Any]:
        """Return the tick as a payload: the fields of this class."""
        return {"name": self.name, "at": self.at, "timezone": self.timezone, "extra": self.extra}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """What a schedule in code and a stored one have in common, checked; durations are ``timedelta``.

    ``AsyncBroker.schedule`` describes the options that users give.

    Attributes:
        source: what the payload of an item is made of.
        headers: the headers of its items, in a form to send, or ``None``.
    """

    name: str
    queue: str
    timetable: Timetable
    source: Source
    headers: Any
    priority: int
    missed: Missed
    horizon: timedelta | None
    jitter: timedelta
    version: int
    expires: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition(_Schedule):
    """A schedule that code defines.

    Attributes:
        wrapped: the payload as ``{"payload": payload}`` in BSON; ``None`` unless it is one value.
        function: name of the function that code gives, or ``None``.
    """

    wrapped: bytes | None
    function: str | None = None

    @property
    def id(self) -> str:
        """``_id`` of the control document."""
        return SCHEDULE_PREFIX + self.name

    @property
    def needs_code(self) -> bool:
        """True if a function in code belongs to it, so that it makes no sense without that."""
        return self.function is not None

    def to_stored(self, encoding: Encoding) -> dict[str, Any]:
        """Return the fields that are stored, and a digest of them by which a change is noticed."""
        fields: dict[str, Any] = {
            "queue": self.queue,
            "what": self.timetable.to_stored(),
            "source": self.source,
            "priority": self.priority,
            "missed": self.missed,
            "horizon": None if self.horizon is None else self.horizon.total_seconds(),
            "jitter": self.jitter.total_seconds(),
            "headers": self.headers,
            "payload": None if self.wrapped is None else encoding.unwrap("payload", self.wrapped),
        }
        if self.expires is not None:
            # Not ``expires``: the TTL index goes by that field. Without it the digest is that of earlier versions.
            fields["start_within"] = self.expires.total_seconds()
        # Not by comparing with the document: that has been through the decoder, by the options of any collection.
        digest = hashlib.sha256(bson.encode(fields, codec_options=encoding.options)).hexdigest()
        return {**fields, "digest": digest}


def define(
    name: Any,
    encoding: Encoding,
    codec: Codec[Any],
    *,
    cron: Any = None,
    every: Any = None,
    at: Any = None,
    timezone: Any = None,
    start: Any = None,
    payload: Any,
    make: Any = None,
    headers: Any = None,
    **options: Any,
) -> Definition:
    """Check the arguments of a schedule.

    Raises:
        ArgumentInvalid: one of them cannot be used.
        ModuleNotFoundError: a cron expression without cronsim.
    """
    checked = _check_options(name, **options)
    if headers is not None:
        if not isinstance(headers, Mapping):
            raise ArgumentInvalid("headers", f"a document, not {type(headers).__name__}")
        if own := {TICK_HEADER, SCHEDULE_HEADER} & headers.keys():
            raise ArgumentInvalid(f"headers.{min(own)}", "mongoq writes this one itself, from the tick")
        headers = encoding.encode("headers", headers, limit=HEADERS_LIMIT)
    has_value = not isinstance(payload, Default)
    if make is not None and has_value:
        raise ArgumentInvalid("make", "makes the payload; give either payload= or make=, not both")
    if make is not None and (not callable(make) or inspect.iscoroutinefunction(make)):
        problem = "a plain function of the tick that returns the payload, such as lambda tick: {'day': tick.at}"
        raise ArgumentInvalid("make", f"{problem}, not {make!r:.60}")
    wrapped = codec.wrap(payload) if has_value else None
    if wrapped is not None and len(wrapped) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge("payload", len(wrapped), MAX_PAYLOAD_BYTES)
    return Definition(
        timetable=timetable(cron=cron, every=every, at=at, timezone=timezone, start=start),
        source="value" if has_value else "tick" if make is None else "function",
        wrapped=wrapped,
        headers=headers,
        function=None if make is None else function_name(make),
        **checked,
    )


def _check_options(
    name: Any,
    *,
    queue: Any,
    priority: Any = 0,
    missed: Any = "last",
    horizon: Duration | None = None,
    jitter: Duration | None = None,
    expires: Any = None,
    version: Any = 0,
) -> dict[str, Any]:
    """Return the options that a schedule in code and a stored one have, checked."""
    choice(missed, "missed", Missed)
    if horizon is not None and missed == "skip":
        raise ArgumentInvalid("horizon", "says how far back missed ticks are made, and missed='skip' makes none")
    spread, within = duration(0 if jitter is None else jitter, "jitter"), None
    if isinstance(expires, datetime):
        raise ArgumentInvalid("expires", "a time from each tick on, such as 600, and no date")
    if expires is not None:
        within = duration(expires, "expires", zero=False)
        if within <= spread:
            problem = f"must be longer than the jitter of {spread}, or some items could never start"
            raise ArgumentInvalid("expires", problem)
    return {
        "name": queue_name(name, "name"),
        "queue": queue_name(queue),
        "priority": checked_priority(priority),
        "missed": missed,
        "horizon": None if horizon is None else duration(horizon, "horizon", zero=False),
        "jitter": spread,
        "version": count(version, "version", least=0),
        "expires": within,
    }


def function_name(function: Any) -> str:
    """Return the module and name of a function, as they are stored."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return f"{getattr(function, '__module__', None)}.{name}"[:MAX_FUNCTION_LETTERS]


# --- ticks ---------------------------------------------------------------------------------------


def tick_id(identity: ObjectId, at: datetime) -> ObjectId:
    """Return the id of a tick's item: the time of the tick in seconds, as in any ``ObjectId``, and a hash."""
    stamp = milliseconds(at)
    digest = hashlib.sha256(identity.binary + stamp.to_bytes(8, "big", signed=True)).digest()
    return ObjectId((stamp // 1000 % 2**32).to_bytes(4, "big") + digest[:8])


def tick_delay(identity: ObjectId, at: datetime, jitter: timedelta) -> timedelta:
    """Return the delay of a tick's item: below ``jitter``, and the same in every process."""
    digest = hashlib.sha256(b"jitter" + tick_id(identity, at).binary).digest()
    return jitter * (int.from_bytes(digest[:6], "big") / 2**48)


def end_fields(following: datetime | None, now: datetime) -> dict[str, Any]:
    """Return the field by which a schedule expires that has no tick any more; nothing if one follows."""
    return {} if following is not None else {"expires": now + min(OVER_EXPIRY, datetime.max.replace(tzinfo=UTC) - now)}


# --- stored documents ----------------------------------------------------------------------------


class ScheduleUnreadable(ValueError):
    """A stored schedule that another program has written, or a later mongoq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule(_Schedule):
    """A schedule as its control document holds it.

    Attributes:
        document: the control document.
        identity: id of the schedule, new when it is removed and made anew.
        next: the next tick; ``None`` when there is none.
    """

    document: Mapping[str, Any]
    identity: ObjectId
    next: datetime | None

    @property
    def timezone(self) -> str | None:
        """Name of the zone of a cron expression."""
        return self.timetable.timezone if isinstance(self.timetable, Cron) else None

    def remember(self, at: datetime, following: datetime | None) -> timedelta:
        """Return how long the id of a tick is remembered: longer than any process can find the tick due.

        A process that is killed before it goes on to the ``following`` tick leaves this one due.
        """
        due = self.horizon or DEFAULT_HORIZON
        if self.missed == "last" and self.horizon is None:
            # It is the latest tick until the following one, however long no process runs.
            due = REMEMBER_MOST if following is None else min(following - at, REMEMBER_MOST)
        return max(REMEMBER_LEAST, due + timedelta(days=1))

    def tick(self, at: datetime, *, extra: bool = False) -> Tick:
        """Return a tick of the schedule."""
        return Tick(self.name, at, self.timezone, extra)


def read_schedule(document: Mapping[str, Any]) -> StoredSchedule:
    """Return a schedule as it is stored; raises ``ScheduleUnreadable``."""
    identity, due = document.get("identity"), document.get("next")
    source, headers = document.get("source"), document.get("headers")
    try:
        if not isinstance(identity, ObjectId) or not isinstance(document.get("edition"), ObjectId):
            raise ScheduleUnreadable("it has no identity")
        if not isinstance(due, datetime | None) or not isinstance(headers, Mapping | None):
            raise ScheduleUnreadable("its next tick is no date, or its headers are no document")
        if source not in ("value", "tick", "function"):
            raise ScheduleUnreadable(f"its payload is of an unknown kind: {source!r:.60}")
        options = {name: document.get(name) for name in ("queue", "priority", "missed", "horizon", "jitter", "version")}
        return StoredSchedule(
            document=document,
            identity=identity,
            timetable=from_stored(document.get("what")),
            source=source,
            next=due,
            headers=headers,
            **_check_options(name_of_schedule(document), **options, expires=document.get("start_within")),
        )
    except ValueError as error:
        raise ScheduleUnreadable(str(error)) from error


def name_of_schedule(document: Mapping[str, Any]) -> str:
    """Return the name of the schedule that a control document holds."""
    return str(document["_id"]).removeprefix(SCHEDULE_PREFIX)


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule, as ``broker.schedules()`` lists it.

    Attributes:
        name: name of the schedule.
        what: the timetable as a text, such as ``cron 0 6 * * * Europe/Berlin``.
        queue: queue that its items go to.
        next: the next tick; ``None`` when there is none any more.
        last: the last tick that was made; ``None`` before the first one.
        paused: True while it does not tick.
        late: time since the next tick has been due, from a minute on: no process ticks, or none that can.
        missed: what becomes of missed ticks.
        version: version of the definition.
        where: process that has defined it last, after the function that belongs to it, if any.
        seen: last time that a process had it in its code.
        unseen: True if a function belongs to it, and no process had it in its code for a day.
        trouble: why it cannot be read; ``None`` if it can. Then most fields are empty.
        needs_code: True if a function belongs to it.
        timezone: name of the zone of a cron expression; ``None`` for others.
    """

    name: str
    what: str = ""
    queue: str = ""
    next: datetime | None = None
    last: datetime | None = None
    paused: bool = False
    late: timedelta = timedelta(0)
    missed: str = ""
    version: int = 0
    where: str = ""
    seen: datetime | None = None
    unseen: bool = False
    trouble: str | None = None
    needs_code: bool = False
    timezone: str | None = None

    @property
    def is_over(self) -> bool:
        """True if it never ticks again: its date has passed."""
        return self.next is None and self.trouble is None

    @property
    def next_local(self) -> datetime | None:
        """The next tick in the zone of the cron expression; ``None`` without one, or if this machine lacks the zone."""
        if self.next is None or self.timezone is None:
            return None
        try:
            return self.next.astimezone(ZoneInfo(self.timezone))
        except (ValueError, KeyError, OSError, OverflowError):
            # The document names a zone that this machine does not know, or no zone at all.
            return None

    @property
    def notes(self) -> list[str]:
        """What is odd about it, for people."""
        late = timedelta(seconds=int(self.late.total_seconds()))
        notes = [
            "paused" if self.paused else "",
            f"late by {duration_text(late)}" if self.late else "",
            "in no running code" if self.unseen else "",
            self.trouble or "",
        ]
        return list(filter(None, notes))

    def is_unseen_for(self, length: timedelta, now: datetime) -> bool:
        """Return whether it belongs to a function that no process had in its code for a time."""
        return self.needs_code and (self.seen is None or now - self.seen > length)

    def to_document(self) -> dict[str, Any]:
        """Return the record as values of JSON."""
        plain = ("what", "queue", "paused", "missed", "version", "where", "unseen", "trouble", "timezone")
        local = self.next_local
        document = {
            "schedule": self.name,
            **{field: getattr(self, field) for field in plain},
            "late": self.late.total_seconds(),
            "over": self.is_over,
            "next_local": None if local is None else local.isoformat(timespec="milliseconds"),
        }
        for field in ("next", "last", "seen"):
            time = getattr(self, field)
            document[field] = None if time is None else time_text(time)
        return document


def check_unseen(unseen: Any) -> timedelta:
    """Return the time after which schedules are pruned; refuse one in which running workers may have said nothing."""
    length = duration(unseen, "unseen")
    if length < MIN_UNSEEN:
        reason = "since running workers say every ten minutes what they have in their code"
        problem = f"30 minutes or more, such as timedelta(hours=1), {reason}; not {length.total_seconds():g} s"
        raise ArgumentInvalid("unseen", problem)
    return length


def to_record(document: Mapping[str, Any], now: datetime) -> ScheduleRecord:
    """Return the record of a stored schedule; one that cannot be read says why."""
    try:
        stored = read_schedule(document)
    except ScheduleUnreadable as error:
        return ScheduleRecord(name_of_schedule(document), trouble=f"it cannot be read: {error}")
    paused = document.get("paused") is True
    last, seen = (time if isinstance(time := document.get(field), datetime) else None for field in ("last", "seen"))
    late = timedelta(0) if paused or stored.next is None else now - stored.next
    place = [part for part in (document.get("function"), document.get("by")) if isinstance(part, str)]
    needs_code = isinstance(document.get("function"), str)
    return ScheduleRecord(
        name=stored.name,
        what=str(stored.timetable),
        queue=stored.queue,
        next=stored.next,
        last=last,
        paused=paused,
        late=late if late >= LATE else timedelta(0),
        missed=stored.missed,
        version=stored.version,
        where=" in ".join(place),
        seen=seen,
        unseen=needs_code and (seen is None or now - seen > UNSEEN_AFTER),
        needs_code=needs_code,
        timezone=stored.timezone,
    )
