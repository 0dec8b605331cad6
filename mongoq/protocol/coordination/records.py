"""Records of sources: checked and encoded when a source yields them, made into envelopes when they are pushed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, PayloadTooLarge
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.encoding.codec import Encoding
from mongoq.model.encoding.ids import new_ids
from mongoq.model.envelope import Stencil, new_envelope
from mongoq.model.outcomes import Record
from mongoq.model.sequence import check_sequence, topic_problem
from mongoq.protocol.push.publish import MAX_COPIES, MAX_TRANSACTION_BYTES, copy_for_queue
from mongoq.protocol.push.push import check_due, check_expires, check_headers, due_time, last_start
from mongoq.protocol.state.context import QueueContext

POSITION_LIMIT = 64 * 1024
"""Bytes of a position as BSON, at most: it is written with every batch."""
INT_LIMIT = 2**63
"""First int that is too large for BSON."""
ENVELOPE_BYTES = 1024
"""Bytes that an envelope adds to payload and headers, rounded up."""


class Yielded(NamedTuple):
    """A record, checked and encoded when its source yielded it.

    Attributes:
        wrapped: ``{"payload": payload}`` as BSON.
        position: position in the form to send.
        priority: priority that the source gave.
        delay: delay that the source gave.
        headers: headers in the form to send.
        sequence: sequence that the source gave.
        expires: how long the item may wait for its start, or until when; ``None`` for ever.
    """

    wrapped: bytes
    position: Any
    priority: int
    delay: Any
    headers: Any
    sequence: str | None = None
    expires: timedelta | datetime | None = None


def encode_record(context: QueueContext[Any], record: Any) -> Yielded:
    """Encode a record of a source; raises ``ArgumentInvalid`` when it cannot be pushed."""
    if not isinstance(record, Record):
        raise ArgumentInvalid("yield", f"a mongoq.Record(payload, position=…), not {type(record).__name__}")
    if record.position is None:
        raise ArgumentInvalid("position", "None stands for the beginning; give the position behind the record")
    headers = None if record.headers is None else check_headers(record.headers, context.broker.encoding)
    if record.delay is not None:
        check_due(record.delay, None)
    position = _position(context.broker.encoding, record.position)
    sequence = None if record.sequence is None else check_sequence(record.sequence)
    wrapped, priority = context.codec.wrap(record.payload), checked_priority(record.priority)
    expires = check_expires(context.broker.clock, record.expires, record.delay, None)
    return Yielded(wrapped, position, priority, record.delay, headers, sequence, expires)


def _position(encoding: Encoding, position: Any) -> Any:
    """Return a position that later changes by the source cannot affect.

    Most positions are ints; an int cannot change, so it is not encoded.
    """
    if type(position) is int and -INT_LIMIT <= position < INT_LIMIT:
        return position
    return encoding.encode("position", position, limit=POSITION_LIMIT)


class EncodedRecord(NamedTuple):
    """An envelope in the form to send, with the fields that are recorded after the push.

    Attributes:
        queue: name of the queue.
        priority: priority of the item.
        when: time when it is due.
        document: the envelope.
        sequence: sequence at whose end it takes its place when it is pushed.
    """

    queue: str
    priority: int
    when: datetime
    document: RawBSONDocument
    sequence: str | None = None


def documents(context: QueueContext[Any], batch: Sequence[Yielded]) -> tuple[Sequence[Yielded], list[EncodedRecord]]:
    """Return the records that fit one transaction, and their envelopes.

    The envelopes are for the queue itself or, when it is a topic, for each queue that is bound to it.

    Raises:
        PayloadTooLarge: the copies of the first record are more than a transaction can carry.
        ArgumentInvalid: a record for a topic has a sequence.
    """
    bound = context.broker.topics.bound.get(context.name)
    if bound is None:
        return batch, _envelopes(context, batch)
    if any(record.sequence is not None for record in batch):
        raise ArgumentInvalid("sequence", topic_problem(context.name))
    part = _what_fits(batch, len(bound))
    return part, _copies(context, part, bound)


def _envelopes(context: QueueContext[Any], part: Sequence[Yielded]) -> list[EncodedRecord]:
    """Return envelopes for the queue itself.

    Records without delay, headers and ``expires`` differ only in id, payload and priority. They share one encoded
    stencil for each priority.
    """
    stencils: dict[int, tuple[Stencil, datetime]] = {}
    encoded = []
    for record, id in zip(part, new_ids(len(part)), strict=True):
        if record.delay is None and record.headers is None and record.expires is None:
            if record.priority not in stencils:
                stencils[record.priority] = _stencil(context, record, id)
            stencil, when = stencils[record.priority]
        else:
            stencil, when = _stencil(context, record, id)
        document = stencil.envelope(id, record.wrapped)
        encoded.append(EncodedRecord(context.name, record.priority, when, document, record.sequence))
    return encoded


def _stencil(context: QueueContext[Any], record: Yielded, id: bytes) -> tuple[Stencil, datetime]:
    envelope = _envelope(context, record, id)
    return Stencil(context.broker.encoding, envelope), envelope["when"]


def _envelope(context: QueueContext[Any], record: Yielded, id: bytes) -> dict[str, Any]:
    clock = context.broker.clock
    return new_envelope(
        context.name,
        None,
        id=ObjectId(id),
        when=due_time(clock, record.delay, None),
        priority=record.priority,
        headers=record.headers,
        once=None,
        start_by=None if record.expires is None else last_start(clock, record.expires, None),
    )


def _what_fits(batch: Sequence[Yielded], queues: int) -> Sequence[Yielded]:
    """Return the first records that fit one transaction with all their copies."""
    size = 0
    for place, record in enumerate(batch):
        size += _size(record) * queues
        if size > MAX_TRANSACTION_BYTES or (place + 1) * queues > MAX_COPIES:
            if place == 0:
                # Not even one record fits: no smaller batch can help.
                raise PayloadTooLarge(f"payload for {queues} queues", size, MAX_TRANSACTION_BYTES)
            return batch[:place]
    return batch


def _size(record: Yielded) -> int:
    return ENVELOPE_BYTES + len(record.wrapped) + (0 if record.headers is None else len(record.headers.raw))


def _copies(context: QueueContext[Any], part: Sequence[Yielded], queues: Sequence[str]) -> list[EncodedRecord]:
    """Return one copy of each record for each queue that is bound to the topic."""
    broker, at = context.broker, context.broker.clock.now()
    envelopes = [_envelope(context, record, id) for record, id in zip(part, new_ids(len(part)), strict=True)]
    return [
        EncodedRecord(
            queue,
            record.priority,
            envelope["when"],
            copy_for_queue(broker, envelope, record.wrapped, queue, at).document,
        )
        for queue in queues
        for record, envelope in zip(part, envelopes, strict=True)
    ]
