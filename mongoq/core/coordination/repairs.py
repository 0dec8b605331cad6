"""Repairs of sequences by workers: one process at a time looks at the sequences of a queue, 1,000 in each turn."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.coordination.document_lease import DocumentLease, ForeignLease, take_lease, write_under_lease
from mongoq.core.sequence.hold import find_miscounted, find_uncounted, release_all, repair_all
from mongoq.core.state.context import QueueContext

REPAIR_PREFIX = "repair:"
"""Prefix of the ``_id`` of the control document whose lease a worker takes to look at a queue's sequences."""
REPAIR_INTERVAL = timedelta(minutes=1)
"""Time from one look at a queue's sequences to the next, over all processes."""
REPAIR_EXPIRY = timedelta(days=1)
"""Time after the last look at which the TTL index removes that document."""


async def repair_in_turn(context: QueueContext[Any]) -> int:
    """Look at held sequences and the next 1,000 others, repair them, and return how many items go, or wait, by that.

    Workers call it for their queues. It does nothing for a queue without sequences, nor within a minute after another
    process has done it: that one holds a lease (``findAndModify``), which is left to end. The look is two ``find`` and
    two ``aggregate``, whose places are written under the lease (``update``). A crash in between leaves the rest of
    these sequences for the next round.
    """
    await ensure_ready(context)
    if not context.state.ordered:
        return 0
    broker, id = context.broker, REPAIR_PREFIX + context.name
    expires = broker.clock.now() + REPAIR_EXPIRY
    taken = await take_lease(broker, id, REPAIR_INTERVAL, {"queue": context.name, "expires": expires})
    if isinstance(taken, ForeignLease):
        return 0
    token, document = taken
    number = await release_all(broker, context.name)
    looked: dict[str, Any] = {"expires": expires}
    for field, find in (("after", find_miscounted), ("after_sequence", find_uncounted)):
        after = document.get(field)
        sequences, following = await find(broker, context.name, after if isinstance(after, str) else "")
        number += await repair_all(broker, context.name, sequences)
        looked[field] = following or ""
    await write_under_lease(broker, DocumentLease(id, token, REPAIR_INTERVAL), {"$set": looked})
    return number
