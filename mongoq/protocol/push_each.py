"""Pushes of many items under ids that are given, each told by itself when it is due, how urgent, and its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.model.envelope import Stencil, new_envelope
from mongoq.protocol.batch import chunks
from mongoq.protocol.context import QueueContext
from mongoq.protocol.keyed import Keyed, push_keyed
from mongoq.protocol.publish import BYTES, COPIES, publish, publish_many
from mongoq.protocol.push import due
from mongoq.protocol.push_many import inserted_in_chunks
from mongoq.protocol.request import Flow
from mongoq.protocol.settings import prepared
from mongoq.protocol.topics import refreshed

__all__ = ["Push", "Told", "push_each"]

CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What a push is told besides its payload, checked; pushes that are told alike share it.

    Attributes:
        delay: how long it waits.
        when: or until when.
        priority: its priority.
        headers: its headers, in the form to send.
        key: its key; while an item of that key is live, nothing is pushed.
    """

    delay: timedelta | None = None
    when: datetime | None = None
    priority: int = 0
    headers: Any = None
    key: str | None = None


class Push(NamedTuple):
    """One push: its id, its payload as ``{"payload": payload}`` in BSON, and what it is told."""

    id: ObjectId
    wrapped: bytes
    told: Told


def push_each(context: QueueContext[Any], pushes: Sequence[Push], *, remember: timedelta) -> Flow[None]:
    """Insert items (``insert`` of many), or copies of them for each bound queue, each id once while it is remembered.

    Those with a key follow, one by one (``find``, ``findAndModify``). A crash in between leaves some of them pushed;
    push all again. Raises ``BatchIncomplete``, or the driver's error when nothing was pushed.
    """
    if not pushes:
        return
    yield from prepared(context, fresh=False)
    yield from refreshed(context.broker)
    envelopes = _Envelopes(context, remember)
    plain = [push for push in pushes if push.told.key is None]
    if bound := context.broker.topics.bound.get(context.name):
        yield from _published(context, plain, envelopes, bound)
    elif plain:
        try:
            yield from inserted_in_chunks(context, plain, envelopes.encoded, again=True)
        finally:
            envelopes.place()
    for push in pushes:
        if push.told.key is not None:
            yield from _keyed(context, push, push.told.key, envelopes)


class _Envelopes:
    """The envelopes of pushes; what those share that are told alike is made once."""

    def __init__(self, context: QueueContext[Any], remember: timedelta) -> None:
        self._context = context
        self._until = context.broker.clock.now() + remember
        self._stencils: dict[Told, Stencil] = {}
        self._due: dict[Told, datetime] = {}

    def encoded(self, push: Push) -> RawBSONDocument:
        """Return the envelope of a push without a key, as it is sent."""
        id, wrapped, told = push
        stencil = self._stencils.get(told)
        if stencil is None:
            stencil = self._stencils[told] = Stencil(self._context.broker.encoding, self.document(push, None))
        return stencil.envelope(id, wrapped)

    def document(self, push: Push, payload: Any) -> dict[str, Any]:
        """Return the envelope of a push as a document."""
        id, _, told = push
        if told not in self._due:
            self._due[told] = due(self._context.broker.clock, told.delay, told.when)
        return new_envelope(
            self._context.name,
            payload,
            id=id,
            when=self._due[told],
            priority=told.priority,
            headers=told.headers,
            once=self._until,
        )

    def place(self) -> None:
        """Tell the claims of this process where something was put."""
        for priority, when in {(told.priority, self._due[told]) for told in self._stencils}:
            self._context.placed(priority, when)


def _published(
    context: QueueContext[Any], pushes: Iterable[Push], envelopes: _Envelopes, bound: Sequence[str]
) -> Flow[None]:
    """Put copies into each bound queue, as many in a transaction as fit one."""
    for part in _transactions(pushes, len(bound)):
        envelope = envelopes.document(part[0], None)
        fresh = [(push.id, push.wrapped) for push in part]
        yield from publish_many(context.broker, envelope, fresh, bound, given=True)


def _transactions(pushes: Iterable[Push], queues: int) -> Iterator[list[Push]]:
    alike: dict[Told, list[Push]] = {}
    for push in pushes:
        alike.setdefault(push.told, []).append(push)
    share = CHUNK_BYTES * queues / BYTES
    for same in alike.values():
        yield from chunks(same, lambda push: int(len(push.wrapped) * share) + 1, most=max(COPIES // queues, 1))


def _keyed(context: QueueContext[Any], push: Push, key: str, envelopes: _Envelopes) -> Flow[None]:
    broker, keyed = context.broker, Keyed(key, "keep")
    envelope = envelopes.document(push, broker.encoding.unwrapped("payload", push.wrapped))
    if bound := broker.topics.bound.get(context.name):
        yield from publish(broker, envelope, bound, keyed, given=True, joined=False)
    else:
        yield from push_keyed(context, envelope, keyed, given=True)
