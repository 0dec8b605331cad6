"""Pushes of callers who share an ``insert``: each is told exactly what became of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.model.arguments import priority as checked_priority
from mongoq.model.codec import Wrapped
from mongoq.model.envelope import Document, Stencil, new_envelope
from mongoq.model.ids import new_ids
from mongoq.protocol import push as pushing
from mongoq.protocol.batch import chunks
from mongoq.protocol.context import BrokerContext, QueueContext
from mongoq.protocol.insert import confirmed, insert_alone
from mongoq.protocol.lane import Lanes, copies
from mongoq.protocol.request import Command, Flow, PartlyRefused, ReplyLost, Shared
from mongoq.protocol.settings import prepared
from mongoq.protocol.topics import refreshed

__all__ = ["push"]


@dataclass(slots=True, eq=False)
class _Plain:
    """A push that is told nothing but its payload and its priority: its envelope is made with those of others.

    Attributes:
        id: the id that it got there.
        when: from when on it is eligible.
    """

    context: QueueContext[Any]
    wrapped: bytes
    priority: int
    id: ObjectId = field(init=False)
    when: datetime = field(init=False)

    def envelope(self, payload: Any) -> Document:
        """Return its envelope."""
        return new_envelope(
            self.context.name, payload, id=self.id, when=self.when, priority=self.priority, headers=None, once=None
        )


Entry = Mapping[str, Any] | _Plain
"""What a caller asks for: an envelope to insert, or a push whose envelope is still to be made."""


def push(context: QueueContext[Any], payload: Any, *, session: Any, **told: Any) -> Flow[ObjectId]:
    """Insert one item, with those of other callers, and return its id."""
    lanes, joined = context.broker.lanes, session is not None
    if lanes is None or joined:
        return pushing.push(context, payload, joined=joined, **told)
    if _is_plain(**told):
        return _push_plain(context, payload, lanes, told)
    return pushing.push(context, payload, insert=partial(_insert, context.broker, lanes), **told)


def _is_plain(  # noqa: PLR0917
    priority: Any, on_duplicate: Any, delay: Any, when: Any, headers: Any, key: Any, id: Any, once: Any
) -> bool:
    told = delay is not None or when is not None or headers is not None or key is not None
    return not (told or id is not None or once is not None or on_duplicate != "keep")


def _push_plain(context: QueueContext[Any], payload: Any, lanes: Lanes, told: Mapping[str, Any]) -> Flow[ObjectId]:
    broker, plain = context.broker, _Plain(context, context.codec.wrapped(payload), checked_priority(told["priority"]))
    yield from prepared(context, fresh=False)
    yield from refreshed(broker)
    if context.name in broker.topics.bound:
        return (yield from pushing.push(context, Wrapped(plain.wrapped), **told))
    try:
        yield from _insert(broker, lanes, plain)
    except ReplyLost:
        if not (yield from confirmed(plain.id)):
            raise
    context.placed(plain.priority, plain.when)
    context.count("put")
    broker.tell(context.name, plain.when, id=plain.id)
    return plain.id


def _insert(broker: BrokerContext, lanes: Lanes, entry: Entry) -> Flow[Any]:
    lane = lanes.lane("push", partial(_inserted, broker), abreast=True)
    shared: Shared[Any] = Shared(lane, entry)
    return (yield shared)


def _inserted(broker: BrokerContext, entries: list[Entry]) -> Flow[list[Any]]:
    """Insert the envelopes of several pushes; a lost reply, or any other error, is told to those of its command."""
    envelopes = _envelopes(broker, entries)
    if len(envelopes) == 1:
        return [(yield from insert_alone(envelopes[0]))]
    told: list[Any] = []
    for chunk in chunks(envelopes, partial(_size, broker)):
        refusals: Mapping[int, Exception] = {}
        try:
            yield from Command[Any]("insert_many", {"documents": chunk, "ordered": False})
        except PartlyRefused as refused:
            refusals = refused.refusals
        except Exception as error:
            refusals = dict(enumerate(copies(error, len(chunk))))
        told += [refusals.get(place) for place in range(len(chunk))]
    return told


def _envelopes(broker: BrokerContext, entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
    """Return the envelopes of pushes, those that were still to be made with ids in the order of the callers."""
    plain = [entry for entry in entries if isinstance(entry, _Plain)]
    _identify(plain, broker)
    if len(entries) == 1 and plain:
        return [plain[0].envelope(broker.encoding.unwrapped("payload", plain[0].wrapped))]
    stencils: dict[tuple[str, int], Stencil] = {}
    envelopes: list[Mapping[str, Any]] = []
    for entry in entries:
        if not isinstance(entry, _Plain):
            envelopes.append(entry)
            continue
        kind = entry.context.name, entry.priority
        if kind not in stencils:
            stencils[kind] = Stencil(broker.encoding, entry.envelope(None))
        envelopes.append(stencils[kind].envelope(entry.id.binary, entry.wrapped))
    return envelopes


def _identify(pushes: Sequence[_Plain], broker: BrokerContext) -> None:
    when = broker.clock.stamp()
    for push, id in zip(pushes, new_ids(len(pushes)), strict=True):
        push.id, push.when = ObjectId(id), when


def _size(broker: BrokerContext, envelope: Mapping[str, Any]) -> int:
    if isinstance(envelope, RawBSONDocument):
        return len(envelope.raw)
    payload = envelope["payload"]
    return len(payload.raw) if isinstance(payload, RawBSONDocument) else broker.encoding.size(envelope)
