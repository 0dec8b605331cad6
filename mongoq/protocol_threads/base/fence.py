# Generated from mongoq/protocol/base/fence.py by scripts/unasync.py. Do not edit.
"""The fence: commands that only the holder of a token can make, and the meaning of an empty or lost reply.

``run_fenced`` decides about a single update that matched nothing, or whose reply was lost; ``settle.bulk`` and
``settle.exchange`` decide about many.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mongoq.errors import ReservationLost
from mongoq.model.item import Item, reservation_key
from mongoq.model.process import Event
from mongoq.protocol.base.fence import Verdict, check_owner, make_lost_error, may_be_new
from mongoq.protocol.command import Command
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import find_one
from mongoq.protocol_threads.base.queue_settings import ensure_ready
from mongoq.protocol_threads.base.retry import retry_and_report
from mongoq.protocol_threads.perform import perform


def run_fenced(
    context: QueueContext[Any], item: Item[Any], command: Command[bool], happened: Verdict, event: Event | None
) -> None:
    """Send a fenced command, and raise ``ReservationLost`` when the token no longer holds the item.

    The driver sends the command as a retryable write. The server keeps a record of it, and after a lost reply the
    record tells the exact result. ``ReplyLost`` arrives here in two cases: there is no record (a standalone server,
    ``retryWrites=false``), or none of the sends was answered. Then the command is sent again. This is safe: it takes
    the token away, or sets the same values.

    If the second command finds nothing, the first one may be the reason, and ``happened`` decides from the stored
    document. That document is durable, since the second command has waited for the majority, even though it changed
    nothing. A delete leaves nothing to read, so a missing item stays uncertain: no local clock can tell whether the
    lease still ran when the server got the command, since a paused machine stops all its clocks.

    ``event`` is the event to count; ``None`` for a command that does not settle the item.
    """
    has_happened, was_lost = retry_and_report(partial(perform, command))
    if was_lost and not has_happened:
        # Without the payload: it may be large, and no verdict reads it.
        document = find_one(context.broker, {"_id": item.id}, {"payload": 0})
        verdict = None if document is None else happened(document)
        if document is None or verdict is None or (verdict and may_be_new(document, item)):
            raise ReservationLost(item.id, item.queue, certain=False)
        has_happened = verdict
    if not has_happened:
        fields = {"by": 1, "when": 1, "reserved": 1, "q": 1}
        raise make_lost_error(context, item, (find_one(context.broker, {"_id": item.id}, fields)))
    if event is not None:
        if context.broker.unsettled:
            # The end of a ``reserved()`` block settles the reservations that are still in this set.
            context.broker.unsettled.discard(reservation_key(item))
        context.count(event)


def begin_settle(context: QueueContext[Any], item: Item[Any]) -> None:
    """Check that this handle owns the item, and make the broker ready."""
    check_owner(context, item)
    return ensure_ready(context)
