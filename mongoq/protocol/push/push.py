"""Push: one envelope, one ``insert``, which callers may share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.model.arguments import Duration, Expires, Id, duration, moment, object_id
from mongoq.model.arguments import expires as checked_expires
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.clock import Clock, milliseconds, time_of
from mongoq.model.encoding.codec import HEADERS_LIMIT, Encoding
from mongoq.model.encoding.ids import new_id
from mongoq.model.envelope import Document, fresh_envelope, new_envelope
from mongoq.model.sequence import check_sequence
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.topics import ensure_ready_to_push
from mongoq.protocol.flow import Command, Duplicate, Flow, PartlyRefused, ReplyLost, Shared, chunks, copies
from mongoq.protocol.push.in_order import push_in_order
from mongoq.protocol.push.insert import (
    KEYED,
    Keyed,
    OnDuplicate,
    check_keyed,
    insert_command,
    insert_item,
    is_new,
    push_keyed,
)
from mongoq.protocol.push.publish import publish
from mongoq.protocol.sequence.control import ensure_possible
from mongoq.protocol.state.context import QueueContext

Kind = tuple[str, int, int]
"""Queue, priority and due time of an item, the last in milliseconds since 1970."""


@dataclass(slots=True, eq=False)
class Draft:
    """One checked push.

    Attributes:
        context: the queue.
        wrapped: the payload, as ``{"payload": payload}`` in BSON.
        priority: the item's priority.
        headers: the headers in the form to send, or ``None``.
        delay: how long the item waits; ``None`` when it does not, or has a ``when``.
        when: the time from which on it is eligible, or ``None``.
        given_id: the id given by the producer, or ``None``.
        remember: how long a given id is remembered.
        expires: how long the item may wait for its start, or until when; ``None`` for ever.
        id: the item's id; set by ``stamp``.
        at: the time from which on it is eligible, in milliseconds since 1970; set by ``stamp``.
        start_by: the time by which it must be started; set by ``stamp``.
    """

    context: QueueContext[Any]
    wrapped: bytes
    priority: int
    headers: Any
    delay: Duration | None
    when: datetime | None
    given_id: ObjectId | None
    remember: timedelta
    expires: timedelta | datetime | None = None
    id: ObjectId = field(init=False)
    at: int = field(init=False)
    start_by: datetime | None = field(init=False, default=None)

    def stamp(self) -> None:
        """Set the item's id and times: its place in the queue, before all later pushes, in any batch."""
        clock = self.context.broker.clock
        self.id = self.given_id or new_id()
        undelayed = self.delay is None and self.when is None
        self.at = clock.now_milliseconds() if undelayed else milliseconds(due_time(clock, self.delay, self.when))
        if self.expires is not None:
            due = time_of(self.at) if is_put_off(self.delay, self.when) else None
            self.start_by = last_start(clock, self.expires, due)

    @property
    def kind(self) -> Kind:
        """Queue, priority and due time: items of one kind are counted and announced together."""
        return self.context.name, self.priority, self.at

    @property
    def size(self) -> int:
        """Bytes that the draft adds to a batch, approximately."""
        return len(self.wrapped) if self.headers is None else len(self.wrapped) + len(self.headers.raw)

    def record_put(self) -> None:
        """Count the inserted item, and wake the waiters of its queue."""
        self.context.record_put(self.priority, self.at, id=self.id)

    def encode(self) -> Document:
        """Return the envelope in the form to send."""
        if self.headers is None and self.given_id is None and self.start_by is None:
            return fresh_envelope(self.context.name, self.wrapped, id=self.id, at=self.at, priority=self.priority)
        return self.envelope()

    def envelope(self) -> Document:
        """Return the envelope as a document with readable fields."""
        return new_envelope(
            self.context.name,
            self.context.broker.encoding.unwrap("payload", self.wrapped),
            id=self.id,
            when=time_of(self.at),
            priority=self.priority,
            headers=self.headers,
            once=None if self.given_id is None else self.context.broker.clock.now() + self.remember,
            start_by=self.start_by,
        )


def due_time(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return the time from which on an item is eligible: now, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    try:
        return clock.now() + length if length else clock.stamp()
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("delay", f"ends beyond the year 9999: {delay!r}") from None


def last_start(clock: Clock, expires: timedelta | datetime, due: datetime | None) -> datetime:
    """Return the time by which an item must be started; refuse one before a delayed item is ``due``.

    A time that is over is no error without a delay: then the first claim that meets the item settles it.
    """
    try:
        start_by = expires if isinstance(expires, datetime) else clock.now() + expires
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("expires", f"ends beyond the year 9999: {expires!r}") from None
    if due is not None and due >= start_by:
        problem = f"the item is due at {due:%Y-%m-%d %H:%M:%S} UTC and must start before {start_by:%Y-%m-%d %H:%M:%S}"
        raise ArgumentInvalid("expires", f"{problem} UTC, so it could never start; give a longer time than the delay")
    return start_by


def check_expires(
    clock: Clock, expires: Any, delay: Duration | None, when: datetime | None
) -> timedelta | datetime | None:
    """Return how long an item that is pushed later may wait for its start, or until when, checked.

    ``delay`` and ``when`` were checked before. An item that could never start is refused, as far as that is known now.
    """
    if expires is None:
        return None
    lasts = checked_expires(expires)
    last_start(clock, lasts, due_time(clock, delay, when) if is_put_off(delay, when) else None)
    return lasts


def is_put_off(delay: Duration | None, when: datetime | None) -> bool:
    """Return whether an item waits before it is due; a delay of zero is none."""
    return when is not None or bool(delay)


DEFAULT_REMEMBER = timedelta(days=7)
"""How long an id given by the producer is remembered by default."""


def push(
    context: QueueContext[Any],
    payload: Any,
    *,
    delay: Duration | None,
    when: datetime | None,
    priority: int,
    headers: Mapping[str, Any] | None,
    id: Id | None,
    once: Duration | None,
    key: str | None = None,
    on_duplicate: OnDuplicate = "keep",
    sequence: str | None = None,
    expires: Expires | None = None,
    session: Any = None,
) -> Flow[ObjectId]:
    """Insert one item, or a copy of it for each queue bound to this one, and return its id.

    The same ``id`` again, while it is remembered, inserts nothing. ``session`` is that of a caller's transaction; the
    bindings were read before that transaction's push.
    """
    keyed = None if key is None and on_duplicate == "keep" else check_keyed(key, on_duplicate)
    if sequence is not None:
        check_sequence(sequence)
        if keyed is not None:
            raise ArgumentInvalid("sequence", KEYED)
    wrapped = context.codec.wrap(payload)
    stored_headers = check_headers(headers, context.broker.encoding)
    given_id = None if id is None else object_id(id)
    remember = remember_time(once, given_id is not None)
    check_due(delay, when)
    lasts = None if expires is None else checked_expires(expires)
    draft = Draft(context, wrapped, checked_priority(priority), stored_headers, delay, when, given_id, remember, lasts)
    joined = session is not None
    if sequence is not None and not joined:
        yield from ensure_possible(context.broker)
    yield from ensure_ready(context, fresh=False) if joined else ensure_ready_to_push(context)
    draft.stamp()
    if given_id is not None:
        context.state.expect_remembered(remember)
    if sequence is not None:
        id_given = given_id is not None
        pushed = [(draft.envelope(), sequence)]
        yield from push_in_order(context, pushed, id_given=id_given, joined=joined)
        return draft.id
    return (yield from _insert_draft(draft, keyed, joined=joined))


def _insert_draft(draft: Draft, keyed: Keyed | None, *, joined: bool) -> Flow[ObjectId]:
    """Insert the item of a draft in one of four ways, and return its id, or that of the live item with its key."""
    context, broker, identified = draft.context, draft.context.broker, draft.given_id is not None
    if bound := broker.topics.bound.get(context.name):
        yield from publish(broker, draft.envelope(), bound, keyed, id_given=identified, joined=joined)
    elif keyed is not None:
        return (yield from push_keyed(context, draft.envelope(), keyed, id_given=identified))
    elif joined or not broker.group_commit:
        if (yield from insert_item(broker, draft.encode(), id_given=identified)):
            draft.record_put()
    else:
        yield from insert_together(draft)
    return draft.id


def remember_time(once: Duration | None, identified: bool) -> timedelta:
    """Return how long ids are remembered; ``once`` needs a given id, since only its item is pushed again."""
    if once is None:
        return DEFAULT_REMEMBER
    if not identified:
        raise ArgumentInvalid("once", "says how long a given id is remembered; give the id as well")
    return duration(once, "once", zero=False)


def check_due(delay: Duration | None, when: datetime | None) -> None:
    """Refuse ``delay`` and ``when`` together, and either one when it is no valid time."""
    if delay is not None and when is not None:
        raise ArgumentInvalid("when", "give either delay= or when=, not both")
    if delay is not None:
        duration(delay, "delay")
    if when is not None:
        moment(when, "when")


def check_headers(headers: Mapping[str, Any] | None, encoding: Encoding) -> Any:
    """Return the headers in the form to send; raise ``PayloadInvalid`` or ``PayloadTooLarge``."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise PayloadInvalid("headers", f"a document, not {type(headers).__name__}")
    return encoding.encode("headers", headers, limit=HEADERS_LIMIT)


def insert_together(draft: Draft) -> Flow[None]:
    """Insert the item of a draft together with other callers' items."""
    try:
        yield Shared("push", _insert_drafts, draft)
    except (Duplicate, ReplyLost) as error:
        if (yield from is_new(draft.context.broker, error, draft.encode(), id_given=draft.given_id is not None)):
            draft.record_put()


def _insert_drafts(drafts: list[Draft]) -> Flow[list[Any]]:
    """Insert the items of several drafts; a lost reply, or any other error, goes to the callers of its command."""
    if len(drafts) == 1:
        yield insert_command(drafts[0].encode())
        drafts[0].record_put()
        return [None]
    refusals_by_place: list[Any] = []
    for chunk in chunks(drafts, lambda draft: draft.size):
        refusals: Mapping[int, Exception] = {}
        documents = [draft.encode() for draft in chunk]
        try:
            yield from Command[Any]("insert_many", {"documents": documents, "ordered": False})
        except PartlyRefused as refused:
            refusals = refused.refusals
        except Exception as error:
            refusals = dict(enumerate(copies(error, len(chunk))))
        _record_drafts(draft for place, draft in enumerate(chunk) if place not in refusals)
        refusals_by_place += [refusals.get(place) for place in range(len(chunk))]
    return refusals_by_place


def _record_drafts(drafts: Iterable[Draft]) -> None:
    """Count inserted items, and wake the waiters of their queues."""
    kinds: dict[Kind, list[Draft]] = {}
    for draft in drafts:
        kinds.setdefault(draft.kind, []).append(draft)
    for (queue, priority, at), group in kinds.items():
        context = group[0].context
        if queue in context.broker.registry.wait_queues:
            # The change stream reports each item once more; a waiter recognises it by its id.
            for draft in group:
                context.record_put(priority, at, id=draft.id)
        else:
            context.record_put(priority, at, number=len(group))
