"""Sources: a fenced lease decides which process runs one; its records are pushed together with its position.

All of it is in one control document, ``source:PIPELINE/NAME``: ``token``, ``until`` and ``by`` are the lease,
``position`` is that of the last record in the queue, and ``pushed`` counts the records so far. Each batch is one
transaction. It begins with an update of that document, whose filter needs both the token and the count. So a batch with
an unknown result may be sent again: it is pushed once, and never by a process that has lost the lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from mongoq.model.join_state import qualify
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.retry import retry_lost_race
from mongoq.protocol.base.topics import ensure_ready_to_push
from mongoq.protocol.base.transaction import run_in_transaction
from mongoq.protocol.coordination.document_lease import DocumentLease as Lease
from mongoq.protocol.coordination.document_lease import (
    ForeignLease,
    TakenOver,
    extend_lease,
    give_back,
    holder,
    take_lease,
    under,
)
from mongoq.protocol.coordination.records import EncodedRecord, Yielded, documents
from mongoq.protocol.flow import Command, Flow, chunks, has_matched
from mongoq.protocol.sequence.enter import ensure_ready_to_enter, enter_all, with_place
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = [
    "DocumentLease",
    "ForeignLease",
    "TakenOver",
    "extend_lease",
    "give_back",
    "push_records",
    "source_id",
    "take_source",
]

SOURCE_PREFIX = "source:"
"""Prefix of the ``_id`` of a source's control document."""


def source_id(pipeline: str, name: str) -> str:
    """Return the ``_id`` of a source's control document; it is unique for each pair of names."""
    return f"{SOURCE_PREFIX}{qualify(pipeline, name, '/')}"


@dataclass(slots=True)
class DocumentLease(Lease):
    """Lease of a source, as its holder knows it.

    Attributes:
        pushed: records of the source pushed so far, by all holders; ``pushed`` adds each batch.
        position: position of the last record, as it is stored; ``None`` at the beginning. It changes with each batch.
    """

    pushed: int
    position: Any


class _Unmatched(Exception):
    """Raised when no control document has both the token and the count."""


def take_source(broker: BrokerContext, id: str, length: timedelta) -> Flow[DocumentLease | ForeignLease]:
    """Take the lease of a source if it is free (``findAndModify``, upsert), or return the lease of its holder.

    A crash afterwards leaves the lease taken until it ends.
    """
    lease = yield from take_lease(broker, id, length, {"pushed": 0})
    if isinstance(lease, ForeignLease):
        return lease
    token, document = lease
    return DocumentLease(id, token, length, document["pushed"], document.get("position"))


def push_records(context: QueueContext[Any], tenure: DocumentLease, batch: Sequence[Yielded]) -> Flow[int]:
    """Push at least the first record of a batch, and return how many; each queue bound to a topic gets a copy.

    One transaction (``update``, ``insert``) writes the items, the position of the last one and the new end of the
    lease. A crash before its commit leaves nothing of it, a crash after it leaves all of it.

    Raises:
        TakenOver: another process has the lease, or has had it.
        PayloadTooLarge: the copies of one record for all bound queues are more than a transaction can carry.
    """
    broker = context.broker
    yield from ensure_ready_to_push(context)
    part, encoded = documents(context, batch)
    if any(record.sequence is not None for record in part):
        yield from ensure_ready_to_enter(broker, [context.name], joined=False)
    attempt = partial(_attempt, broker, tenure, len(part), part[-1].position, encoded)
    promoted: list[Promoted] = []
    try:
        promoted = yield from retry_lost_race(lambda: run_in_transaction(broker, attempt))
    except _Unmatched:
        yield from _resolve_lost_reply(broker, tenure, len(part))
    tenure.pushed += len(part)
    tenure.position = broker.encoding.decode_sendable(part[-1].position)
    # A blocked item counts as if it were due: at most, a claim looks for it in vain.
    numbers = Counter((copy.queue, copy.priority, copy.when) for copy in encoded)
    for (queue, priority, when), number in numbers.items():
        broker.record_put(queue, when, priority, number=number)
    record_promoted(broker, promoted)
    return len(part)


def _attempt(
    broker: BrokerContext, tenure: DocumentLease, number: int, position: Any, encoded: Sequence[EncodedRecord]
) -> Flow[list[Promoted]]:
    """Push records and store the position, inside a transaction; return older items that became heads meanwhile."""
    now = broker.clock.now()
    fields = {"position": position, "pushed": tenure.pushed + number, "at": now, "until": now + tenure.length}
    # The count makes the batch safe to send again: after a commit it has changed, and the filter matches nothing.
    filter = {**under(tenure), "pushed": tenure.pushed}
    if not (yield from Command("update_one", {"filter": filter, "update": {"$set": fields}}, has_matched)):
        raise _Unmatched
    entries = yield from enter_all(broker, [(copy.queue, copy.sequence) for copy in encoded if copy.sequence])
    documents = [
        copy.document
        if copy.sequence is None
        else broker.encoding.raw(with_place(copy.document, entries[copy.queue, copy.sequence]))
        for copy in encoded
    ]
    for chunk in chunks(documents, lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})
    return [item for entry in entries.values() for item in entry.promoted]


def _resolve_lost_reply(broker: BrokerContext, tenure: DocumentLease, number: int) -> Flow[None]:
    """Return if an earlier attempt with a lost reply has committed the batch; else raise ``TakenOver``."""
    document = yield from find_one(broker, {"_id": tenure.id})
    if document is None or document.get("token") != tenure.token or document.get("pushed") != tenure.pushed + number:
        raise TakenOver(holder(document))
