"""Pushes of many items with given ids, each with its own due time, priority and key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.model.envelope import Stencil, new_envelope
from mongoq.protocol.base.topics import ensure_ready_to_push
from mongoq.protocol.flow.chunking import BYTES as CHUNK
from mongoq.protocol.flow.chunking import chunks
from mongoq.protocol.flow.commands import Flow
from mongoq.protocol.push.draft import due
from mongoq.protocol.push.keyed import Keyed, push_keyed
from mongoq.protocol.push.publish import MAX_COPIES, MAX_TRANSACTION_BYTES, publish, publish_many
from mongoq.protocol.push.push_many import insert_in_chunks
from mongoq.protocol.state.context import QueueContext

__all__ = ["Push", "PushOptions", "push_each"]


@dataclass(frozen=True, slots=True, eq=False)
class PushOptions:
    """Options of one push besides its payload, checked; pushes with the same options share one object.

    Attributes:
        delay: how long the item waits; ``None`` when it does not, or has a ``when``.
        when: the time from which on it is eligible, or ``None``.
        priority: its priority.
        headers: its headers, in the form to send.
        key: its key; while an item of that key is live, nothing is pushed.
    """

    delay: timedelta | None = None
    when: datetime | None = None
    priority: int = 0
    headers: Any = None
    key: str | None = None


Push = tuple[bytes, bytes, int]
"""One push: its id in 12 bytes, its payload as ``{"payload": payload}`` in BSON, and the index of its options.

It holds only bytes and numbers, since the interpreter's garbage collector skips tuples of them.
"""


def push_each(
    context: QueueContext[Any], options: Sequence[PushOptions], pushes: Sequence[Push], *, remember: timedelta
) -> Flow[None]:
    """Insert items (``insert`` of many), or copies of them for each bound queue, each id once while it is remembered.

    Items with a key follow, one by one (``find``, ``findAndModify``). A crash in between leaves some of them pushed;
    push all again. Raises ``BatchIncomplete``, or the driver's error when nothing was pushed.
    """
    if not pushes:
        return
    yield from ensure_ready_to_push(context)
    envelopes = _Envelopes(context, options, remember)
    keyed = (
        [push for push in pushes if options[push[2]].key is not None] if any(chosen.key for chosen in options) else []
    )
    plain = [push for push in pushes if options[push[2]].key is None] if keyed else pushes
    if bound := context.broker.topics.bound.get(context.name):
        yield from _publish_parts(context, plain, envelopes, bound)
    elif plain:
        try:
            yield from insert_in_chunks(context, plain, envelopes.encode, envelopes.size, again=True)
        finally:
            envelopes.record_hints()
    for push in keyed:
        yield from _push_with_key(context, push, str(options[push[2]].key), envelopes)


class _Envelopes:
    """Envelopes of pushes; the part that pushes with the same options share is made once."""

    def __init__(self, context: QueueContext[Any], options: Sequence[PushOptions], remember: timedelta) -> None:
        clock = context.broker.clock
        self._context = context
        self._options = options
        self._due = [due(clock, chosen.delay, chosen.when) for chosen in options]
        self._until = clock.now() + remember
        self._stencils: list[Stencil | None] = [None] * len(options)

    def encode(self, push: Push) -> RawBSONDocument:
        """Return the envelope of a push without a key, in the form to send."""
        return self._stencil(push).envelope(push[0], push[1])

    def size(self, push: Push) -> int:
        """Return the envelope's size in bytes."""
        return self._stencil(push).size(push[1])

    def _stencil(self, push: Push) -> Stencil:
        stencil = self._stencils[push[2]]
        if stencil is None:
            stencil = self._stencils[push[2]] = Stencil(self._context.broker.encoding, self.document(push, None))
        return stencil

    def document(self, push: Push, payload: Any) -> dict[str, Any]:
        """Return the envelope of a push as a document."""
        id, _, place = push
        chosen = self._options[place]
        return new_envelope(
            self._context.name,
            payload,
            id=ObjectId(id),
            when=self._due[place],
            priority=chosen.priority,
            headers=chosen.headers,
            once=self._until,
        )

    def record_hints(self) -> None:
        """Update the claim hints of this process with the places of the new items."""
        for priority, when in {(chosen.priority, when) for chosen, when in zip(self._options, self._due, strict=True)}:
            self._context.placed(priority, when)


def _publish_parts(
    context: QueueContext[Any], pushes: Iterable[Push], envelopes: _Envelopes, bound: Sequence[str]
) -> Flow[None]:
    """Put copies into each bound queue, as many in a transaction as fit."""
    for part in _transactions(pushes, len(bound)):
        envelope = envelopes.document(part[0], None)
        fresh = [(ObjectId(id), wrapped) for id, wrapped, _ in part]
        yield from publish_many(context.broker, envelope, fresh, bound, given=True)


def _transactions(pushes: Iterable[Push], queues: int) -> Iterator[list[Push]]:
    alike: dict[int, list[Push]] = {}
    for push in pushes:
        alike.setdefault(push[2], []).append(push)
    share = CHUNK * queues / MAX_TRANSACTION_BYTES
    for same in alike.values():
        yield from chunks(same, lambda push: int(len(push[1]) * share) + 1, most=max(MAX_COPIES // queues, 1))


def _push_with_key(context: QueueContext[Any], push: Push, key: str, envelopes: _Envelopes) -> Flow[None]:
    broker, keyed = context.broker, Keyed(key, "keep")
    envelope = envelopes.document(push, broker.encoding.unwrapped("payload", push[1]))
    if bound := broker.topics.bound.get(context.name):
        yield from publish(broker, envelope, bound, keyed, given=True, joined=False)
    else:
        yield from push_keyed(context, envelope, keyed, given=True)
