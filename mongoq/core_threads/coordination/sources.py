# Generated from mongoq/core/coordination/sources.py by scripts/unasync.py. Do not edit.
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
from datetime import timedelta
from typing import Any

from mongoq.core.command import Command, chunks, has_matched
from mongoq.core.coordination.document_lease import ForeignLease, TakenOver, holder, under
from mongoq.core.coordination.sources import SourceLease, Yielded, _encode, _Unmatched
from mongoq.core.sequence.places import Promoted, record_promoted, with_place
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.retry import retry_lost_race
from mongoq.core_threads.base.topics import ensure_ready_to_push
from mongoq.core_threads.base.transaction import run_in_transaction
from mongoq.core_threads.coordination.document_lease import take_lease
from mongoq.core_threads.perform import perform, sleep
from mongoq.core_threads.sequence.places import ensure_ready_to_enter, enter_all
from mongoq.data.clock import MILLISECOND, SLEW_RATE, time_of


def take_source(broker: BrokerContext, id: str, length: timedelta) -> SourceLease | ForeignLease:
    """Take the lease of a source if it is free (``findAndModify``, upsert), or return the lease of its holder.

    Each process dates its pushes by its own reading of the server's clock, minus the error that it may have. A new
    holder waits until it dates later than the last holder, so the records stay in their order. A crash afterwards
    leaves the lease taken until it ends.
    """
    lease = take_lease(broker, id, length, {"pushed": 0})
    if isinstance(lease, ForeignLease):
        return lease
    token, document = lease
    last = document.get("at")
    if last is not None and (gap := last - broker.clock.stamp()) >= timedelta(0):
        sleep((gap + MILLISECOND).total_seconds() / SLEW_RATE)  # the clock may be running so slowly
    return SourceLease(id, token, length, document["pushed"], document.get("position"))


def push_records(context: QueueContext[Any], tenure: SourceLease, batch: Sequence[Yielded]) -> int:
    """Push at least the first record of a batch, and return how many; each queue bound to a topic gets a copy.

    One transaction (``update``, ``insert``) writes the items, the position of the last one and the new end of the
    lease. A crash before its commit leaves nothing of it, a crash after it leaves all of it.

    Raises:
        TakenOver: another process has the lease, or has had it.
        PayloadTooLarge: the copies of one record for all bound queues are more than a transaction can carry.
        ArgumentInvalid: a record for a topic has a sequence.
    """
    broker = context.broker
    ensure_ready_to_push(context)
    part, encoded = _encode(context, batch, broker.topics.bound.get(context.name))
    if any(record.draft.sequence is not None for record in part):
        ensure_ready_to_enter(broker, [context.name], joined=False)

    def attempt() -> list[Promoted]:
        """Push records and store the position; return older items that became heads meanwhile."""
        now = broker.clock.now()
        fields = {"position": part[-1].position, "pushed": tenure.pushed + len(part)}
        fields |= {"at": now, "until": now + tenure.length}
        # The count makes the batch safe to send again: after a commit it has changed, and the filter matches nothing.
        filter = {**under(tenure), "pushed": tenure.pushed}
        if not (perform(Command("update_one", {"filter": filter, "update": {"$set": fields}}, has_matched))):
            raise _Unmatched
        places = [(copy.queue, copy.draft.sequence) for copy in encoded if copy.draft.sequence is not None]
        entries = enter_all(broker, places)
        documents = [
            copy.document
            if copy.draft.sequence is None
            else broker.encoding.raw(with_place(copy.document, entries[copy.queue, copy.draft.sequence]))
            for copy in encoded
        ]
        for chunk in chunks(documents, lambda document: len(document.raw)):
            perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))
        return [item for entry in entries.values() for item in entry.promoted]

    promoted: list[Promoted] = []
    try:
        promoted = retry_lost_race(lambda: run_in_transaction(broker, attempt))
    except _Unmatched:
        # An earlier attempt, whose reply was lost, may have committed the batch.
        stored = (find_one(broker, {"_id": tenure.id})) or {}
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
