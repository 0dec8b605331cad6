"""Push: one envelope, one ``insert``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.model.arguments import Duration, duration, moment, object_id
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.clock import Clock
from mongoq.model.codec import HEADERS_LIMIT, Encoding
from mongoq.model.envelope import new_envelope
from mongoq.protocol.context import QueueContext
from mongoq.protocol.insert import Insert, insert_alone, inserted
from mongoq.protocol.keyed import OnDuplicate, keyed_by, push_keyed
from mongoq.protocol.publish import publish
from mongoq.protocol.request import Flow
from mongoq.protocol.settings import prepared
from mongoq.protocol.topics import refreshed

__all__ = ["REMEMBER", "check_due", "checked_headers", "due", "push", "remembered"]

REMEMBER = timedelta(days=7)
"""How long an id given by the producer is remembered unless it says otherwise."""


def push(
    context: QueueContext[Any],
    payload: Any,
    *,
    delay: Duration | None,
    when: datetime | None,
    priority: int,
    headers: Mapping[str, Any] | None,
    id: ObjectId | None,
    once: Duration | None,
    key: str | None = None,
    on_duplicate: OnDuplicate = "keep",
    insert: Insert = insert_alone,
    joined: bool = False,
) -> Flow[ObjectId]:
    """Insert one item, or a copy of it for each queue bound to this one, and return its id.

    The same ``id`` again, while it is remembered, inserts nothing. ``joined`` is said of a push within a transaction of
    the caller's, before which the bindings were read.
    """
    keyed = keyed_by(key, on_duplicate)
    value = context.codec.encode(payload)
    headers = checked_headers(headers, context.broker.encoding)
    priority = checked_priority(priority)
    given = None if id is None else object_id(id)
    remember = remembered(once, given is not None)
    check_due(delay, when)
    yield from prepared(context, fresh=False)
    if not joined:
        yield from refreshed(context.broker)
    clock = context.broker.clock
    envelope = new_envelope(
        context.name,
        value,
        id=given or ObjectId(),
        when=due(clock, delay, when),
        priority=priority,
        headers=headers,
        once=None if given is None else clock.now() + remember,
    )
    identified = given is not None
    if bound := context.broker.topics.bound.get(context.name):
        yield from publish(context.broker, envelope, bound, keyed, given=identified, joined=joined)
    elif keyed is not None:
        return (yield from push_keyed(context, envelope, keyed, given=identified))
    elif (yield from inserted(envelope, insert, given=identified)):
        context.placed(priority, envelope["when"])
        context.count("put")
        context.broker.tell(context.name, envelope["when"], id=envelope["_id"])
    return envelope["_id"]  # type: ignore[no-any-return]  # made by us a few lines above


def remembered(once: Duration | None, identified: bool) -> timedelta:
    """Return for how long ids are remembered; an item whose id nobody gave is not pushed again."""
    if once is None:
        return REMEMBER
    if not identified:
        raise ArgumentInvalid("once", "says how long a given id is remembered; give the id as well")
    return duration(once, "once", zero=False)


def check_due(delay: Duration | None, when: datetime | None) -> None:
    """Refuse both at once, and either when it makes no time."""
    if delay is not None and when is not None:
        raise ArgumentInvalid("when", "give either delay= or when=, not both")
    if delay is not None:
        duration(delay, "delay")
    if when is not None:
        moment(when, "when")


def due(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return from when an item is eligible: at once, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    return clock.now() + length if length else clock.stamp()


def checked_headers(headers: Mapping[str, Any] | None, encoding: Encoding) -> Any:
    """Return the headers in the form to send; raises ``PayloadInvalid`` or ``PayloadTooLarge``."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise PayloadInvalid("headers", f"a document, not {type(headers).__name__}")
    return encoding.encode("headers", headers, limit=HEADERS_LIMIT)
