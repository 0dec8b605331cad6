# Generated from mongoq/core/coordination/repairs.py by scripts/unasync.py. Do not edit.
"""Repairs of sequences by workers: one process at a time looks at the sequences of a queue, 1,000 in each turn."""

from __future__ import annotations

from typing import Any

from mongoq.core.coordination.document_lease import DocumentLease, ForeignLease
from mongoq.core.coordination.repairs import REPAIR_EXPIRY, REPAIR_INTERVAL, REPAIR_PREFIX
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.coordination.document_lease import take_lease, write_under_lease
from mongoq.core_threads.sequence.hold import find_miscounted, find_uncounted, release_all, repair_all


def repair_in_turn(context: QueueContext[Any]) -> int:
    """Look at held sequences and the next 1,000 others, repair them, and return how many items go, or wait, by that.

    Workers call it for their queues. It does nothing for a queue without sequences, nor within a minute after another
    process has done it: that one holds a lease (``findAndModify``), which is left to end. The look is two ``find`` and
    two ``aggregate``, whose places are written under the lease (``update``). A crash in between leaves the rest of
    these sequences for the next round.
    """
    ensure_ready(context)
    if not context.state.ordered:
        return 0
    broker, id = context.broker, REPAIR_PREFIX + context.name
    expires = broker.clock.now() + REPAIR_EXPIRY
    taken = take_lease(broker, id, REPAIR_INTERVAL, {"queue": context.name, "expires": expires})
    if isinstance(taken, ForeignLease):
        return 0
    token, document = taken
    number = release_all(broker, context.name)
    looked: dict[str, Any] = {"expires": expires}
    for field, find in (("after", find_miscounted), ("after_sequence", find_uncounted)):
        after = document.get(field)
        sequences, following = find(broker, context.name, after if isinstance(after, str) else "")
        number += repair_all(broker, context.name, sequences)
        looked[field] = following or ""
    write_under_lease(broker, DocumentLease(id, token, REPAIR_INTERVAL), {"$set": looked})
    return number
