"""Push: one envelope, one ``insert``, which callers may share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.model.arguments import Duration, duration, moment, object_id
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.encoding.codec import HEADERS_LIMIT, Encoding
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.topics import ensure_ready_to_push
from mongoq.protocol.flow.commands import Flow
from mongoq.protocol.push.draft import Draft
from mongoq.protocol.push.insert import insert_item
from mongoq.protocol.push.keyed import OnDuplicate, check_keyed, push_keyed
from mongoq.protocol.push.publish import publish
from mongoq.protocol.push.shared_push import insert_together
from mongoq.protocol.state.context import QueueContext

__all__ = ["DEFAULT_REMEMBER", "check_due", "check_headers", "push", "remember_time"]

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
    id: ObjectId | None,
    once: Duration | None,
    key: str | None = None,
    on_duplicate: OnDuplicate = "keep",
    session: Any = None,
) -> Flow[ObjectId]:
    """Insert one item, or a copy of it for each queue bound to this one, and return its id.

    The same ``id`` again, while it is remembered, inserts nothing. ``session`` is that of a caller's transaction; the
    bindings were read before that transaction's push.
    """
    broker, joined = context.broker, session is not None
    keyed = None if key is None and on_duplicate == "keep" else check_keyed(key, on_duplicate)
    draft = _make_draft(context, payload, priority=priority, headers=headers, delay=delay, when=when, id=id, once=once)
    yield from ensure_ready(context, fresh=False) if joined else ensure_ready_to_push(context)
    draft.stamp()
    identified = draft.given is not None
    if identified:
        context.state.expect_remembered(draft.remember)
    if bound := broker.topics.bound.get(context.name):
        yield from publish(broker, draft.envelope(), bound, keyed, given=identified, joined=joined)
    elif keyed is not None:
        return (yield from push_keyed(context, draft.envelope(), keyed, given=identified))
    elif joined or broker.batchers is None:
        if (yield from insert_item(broker, draft.encode(), given=identified)):
            draft.record_put()
    else:
        yield from insert_together(broker.batchers, draft)
    return draft.id


def _make_draft(
    context: QueueContext[Any],
    payload: Any,
    *,
    priority: int,
    headers: Mapping[str, Any] | None,
    delay: Duration | None,
    when: datetime | None,
    id: ObjectId | None,
    once: Duration | None,
) -> Draft:
    """Check the arguments of a push."""
    wrapped = context.codec.wrapped(payload)
    stored_headers = None if headers is None else check_headers(headers, context.broker.encoding)
    given = None if id is None else object_id(id)
    remember = DEFAULT_REMEMBER if once is None else remember_time(once, given is not None)
    if delay is not None or when is not None:
        check_due(delay, when)
    return Draft(context, wrapped, checked_priority(priority), stored_headers, delay, when, given, remember)


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
