"""Sources: a fenced lease decides which process runs one; its records are pushed together with its position.

All of it is in one control document, ``source:PIPELINE/NAME``: ``token``, ``until`` and ``by`` are the lease,
``position`` is that of the last record in the queue, and ``pushed`` counts the records so far. Each batch is one
transaction. It begins with an update of that document, whose filter needs both the token and the count. So a batch with
an unknown result may be sent again: it is pushed once, and never by a process that has lost the lease.

Records are checked and encoded when a source yields them, and made into envelopes when they are pushed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.find import find_one
from mongoq.core.base.retry import retry_lost_race
from mongoq.core.base.topics import ensure_ready_to_push
from mongoq.core.base.transaction import run_in_transaction
from mongoq.core.command import Command, chunks, has_matched
from mongoq.core.coordination.document_lease import (
    DocumentLease,
    ForeignLease,
    TakenOver,
    holder,
    take_lease,
    under,
)
from mongoq.core.perform import perform, sleep
from mongoq.core.push.draft import Draft
from mongoq.core.push.publish import MAX_COPIES, MAX_TRANSACTION_BYTES, copy_for_queue
from mongoq.core.sequence.places import Promoted, ensure_ready_to_enter, enter_all, record_promoted, with_place
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import priority as checked_priority
from mongoq.data.clock import MILLISECOND, SLEW_RATE, time_of
from mongoq.data.join_state import qualify
from mongoq.data.outcomes import Record
from mongoq.data.push_options import check_due, check_expires, check_headers, last_start
from mongoq.data.sequence import check_sequence, topic_problem
from mongoq.errors import ArgumentInvalid, PayloadTooLarge

SOURCE_PREFIX = "source:"
"""Prefix of the ``_id`` of a source's control document."""
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
        draft: options of its push; the times are set when it is pushed.
        expires: how long the item may wait for its start, or until when; ``None`` for ever.
    """

    wrapped: bytes
    position: Any
    draft: Draft
    expires: timedelta | datetime | None = None


def encode_record(context: QueueContext[Any], record: Any) -> Yielded:
    """Encode a record of a source; raises ``ArgumentInvalid`` when it cannot be pushed."""
    if not isinstance(record, Record):
        raise ArgumentInvalid("yield", f"a mongoq.Record(payload, position=…), not {type(record).__name__}")
    position, encoding = record.position, context.broker.encoding
    if position is None:
        raise ArgumentInvalid("position", "None stands for the beginning; give the position behind the record")
    headers = None if record.headers is None else check_headers(record.headers, encoding)
    if record.delay is not None:
        check_due(record.delay, None)
    # Most positions are ints. An int cannot change; of anything else the source may change what it has yielded.
    if type(position) is not int or not -INT_LIMIT <= position < INT_LIMIT:
        position = encoding.encode("position", position, limit=POSITION_LIMIT)
    sequence = None if record.sequence is None else check_sequence(record.sequence)
    wrapped, priority = context.codec.wrap(record.payload), checked_priority(record.priority)
    expires = check_expires(context.broker.clock, record.expires, record.delay, None)
    draft = Draft(delay=record.delay, priority=priority, headers=headers, sequence=sequence)
    return Yielded(wrapped, position, draft, expires)


class EncodedRecord(NamedTuple):
    """An envelope in the form to send, with its queue and the options that are recorded after the push."""

    queue: str
    draft: Draft
    document: RawBSONDocument


def _encode(
    context: QueueContext[Any], batch: Sequence[Yielded], bound: Sequence[str] | None
) -> tuple[Sequence[Yielded], list[EncodedRecord]]:
    """Return the records to push in one transaction, and their envelopes, of a topic one for each bound queue."""
    if bound is not None:
        if any(record.draft.sequence is not None for record in batch):
            raise ArgumentInvalid("sequence", topic_problem(context.name))
        size = 0
        for place, record in enumerate(batch):
            size += (ENVELOPE_BYTES + record.draft.size(record.wrapped)) * len(bound)
            if size > MAX_TRANSACTION_BYTES or (place + 1) * len(bound) > MAX_COPIES:
                if place == 0:  # not even one record fits: no smaller batch can help
                    raise PayloadTooLarge(f"payload for {len(bound)} queues", size, MAX_TRANSACTION_BYTES)
                batch = batch[:place]
                break
    broker, encoded = context.broker, list[EncodedRecord]()
    at = broker.clock.now()
    for record in batch:
        draft, id = record.draft, ObjectId()
        draft.stamp(broker.clock, None)
        if record.expires is not None:  # a time that is over is no error: the first claim settles the item
            draft.start_by = last_start(broker.clock, record.expires)
        if bound is None:
            encoded.append(EncodedRecord(context.name, draft, draft.encode(context, id, record.wrapped)))
            continue
        envelope = draft.document(context, id, None)
        copies = [copy_for_queue(broker, envelope, record.wrapped, queue, at) for queue in bound]
        encoded += [EncodedRecord(copy.queue, draft, copy.document) for copy in copies]
    return batch, encoded


def source_id(pipeline: str, name: str) -> str:
    """Return the ``_id`` of a source's control document; it is unique for each pair of names."""
    return f"{SOURCE_PREFIX}{qualify(pipeline, name, '/')}"


@dataclass(slots=True)
class SourceLease(DocumentLease):
    """Lease of a source, as its holder knows it.

    Attributes:
        pushed: records of the source pushed so far, by all holders; ``pushed`` adds each batch.
        position: position of the last record, as it is stored; ``None`` at the beginning. It changes with each batch.
    """

    pushed: int
    position: Any


class _Unmatched(Exception):
    """Raised when no control document has both the token and the count."""


async def take_source(broker: BrokerContext, id: str, length: timedelta) -> SourceLease | ForeignLease:
    """Take the lease of a source if it is free (``findAndModify``, upsert), or return the lease of its holder.

    Each process dates its pushes by its own reading of the server's clock, minus the error that it may have. A new
    holder waits until it dates later than the last holder, so the records stay in their order. A crash afterwards
    leaves the lease taken until it ends.
    """
    lease = await take_lease(broker, id, length, {"pushed": 0})
    if isinstance(lease, ForeignLease):
        return lease
    token, document = lease
    last = document.get("at")
    if last is not None and (gap := last - broker.clock.stamp()) >= timedelta(0):
        await sleep((gap + MILLISECOND).total_seconds() / SLEW_RATE)  # the clock may be running so slowly
    return SourceLease(id, token, length, document["pushed"], document.get("position"))


async def push_records(context: QueueContext[Any], tenure: SourceLease, batch: Sequence[Yielded]) -> int:
    """Push at least the first record of a batch, and return how many; each queue bound to a topic gets a copy.

    One transaction (``update``, ``insert``) writes the items, the position of the last one and the new end of the
    lease. A crash before its commit leaves nothing of it, a crash after it leaves all of it.

    Raises:
        TakenOver: another process has the lease, or has had it.
        PayloadTooLarge: the copies of one record for all bound queues are more than a transaction can carry.
        ArgumentInvalid: a record for a topic has a sequence.
    """
    broker = context.broker
    await ensure_ready_to_push(context)
    part, encoded = _encode(context, batch, broker.topics.bound.get(context.name))
    if any(record.draft.sequence is not None for record in part):
        await ensure_ready_to_enter(broker, [context.name], joined=False)

    async def attempt() -> list[Promoted]:
        """Push records and store the position; return older items that became heads meanwhile."""
        now = broker.clock.now()
        fields = {"position": part[-1].position, "pushed": tenure.pushed + len(part)}
        fields |= {"at": now, "until": now + tenure.length}
        # The count makes the batch safe to send again: after a commit it has changed, and the filter matches nothing.
        filter = {**under(tenure), "pushed": tenure.pushed}
        if not (await perform(Command("update_one", {"filter": filter, "update": {"$set": fields}}, has_matched))):
            raise _Unmatched
        places = [(copy.queue, copy.draft.sequence) for copy in encoded if copy.draft.sequence is not None]
        entries = await enter_all(broker, places)
        documents = [
            copy.document
            if copy.draft.sequence is None
            else broker.encoding.raw(with_place(copy.document, entries[copy.queue, copy.draft.sequence]))
            for copy in encoded
        ]
        for chunk in chunks(documents, lambda document: len(document.raw)):
            await perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))
        return [item for entry in entries.values() for item in entry.promoted]

    promoted: list[Promoted] = []
    try:
        promoted = await retry_lost_race(lambda: run_in_transaction(broker, attempt))
    except _Unmatched:
        # An earlier attempt, whose reply was lost, may have committed the batch.
        stored = (await find_one(broker, {"_id": tenure.id})) or {}
        if (stored.get("token"), stored.get("pushed")) != (tenure.token, tenure.pushed + len(part)):
            raise TakenOver(holder(stored)) from None
    tenure.pushed += len(part)
    tenure.position = broker.encoding.decode_sendable(part[-1].position)
    # A blocked item counts as if it were due: at most, a claim looks for it in vain.
    numbers = Counter((copy.queue, copy.draft.priority, copy.draft.at) for copy in encoded)
    for (queue, priority, at), number in numbers.items():
        broker.record_put(queue, time_of(at), priority, number=number)
    record_promoted(broker, promoted)
    return len(part)
