"""The fence: commands that only the holder of a token can make, and the meaning of an empty or lost reply.

``run_fenced`` decides about a single update that matched nothing, or whose reply was lost; ``settle.bulk`` and
``settle.exchange`` decide about many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, ItemForeign, ReservationLost
from mongoq.model.envelope import Document, attempts_of
from mongoq.model.item import Item, is_held_in, reservation_key
from mongoq.model.process import Event
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_and_report
from mongoq.protocol.command import Command, has_matched
from mongoq.protocol.perform import perform
from mongoq.protocol.state.context import QueueContext

LEASE_MARGIN = timedelta(seconds=1)
"""Rest of a lease within which another consumer may claim the item while a command about it is under way."""

Verdict = Callable[[Document], bool | None]
"""Return whether a command with a lost reply took effect, given the stored document; ``None`` when it is uncertain."""


def has_deleted(reply: Any) -> bool:
    """Return whether a delete found the item under its token."""
    return bool(reply.deleted_count)


def update_command(id: ObjectId, token: ObjectId | None, update: Mapping[str, Any]) -> Command[bool]:
    """Return an update of an item that only the holder of the token can make."""
    return Command("update_one", {"filter": {"_id": id, "token": token}, "update": update}, has_matched)


async def run_fenced(
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
    has_happened, was_lost = await retry_and_report(partial(perform, command))
    if was_lost and not has_happened:
        # Without the payload: it may be large, and no verdict reads it.
        document = await find_one(context.broker, {"_id": item.id}, {"payload": 0})
        verdict = None if document is None else happened(document)
        if document is None or verdict is None or (verdict and may_be_new(document, item)):
            raise ReservationLost(item.id, item.queue, certain=False)
        has_happened = verdict
    if not has_happened:
        fields = {"by": 1, "when": 1, "reserved": 1, "q": 1}
        raise make_lost_error(context, item, (await find_one(context.broker, {"_id": item.id}, fields)))
    if event is not None:
        if context.broker.unsettled:
            # The end of a ``reserved()`` block settles the reservations that are still in this set.
            context.broker.unsettled.discard(reservation_key(item))
        context.count(event)


def ends_by(item: Item[Any], soon: datetime) -> bool:
    """Return whether the lease of an item ends by that time; also true when its end is unknown."""
    until = item.lease_until
    return not isinstance(until, datetime) or until <= soon  # another program may have written any type


def make_lost_error(context: QueueContext[Any], item: Item[Any], document: Document | None) -> ReservationLost:
    """Return the error of a lost reservation; it names the present holder, if there is one."""
    holder = document if document and document.get("reserved") and document["when"] > context.broker.clock.now() else {}
    return ReservationLost(item.id, item.queue, held_by=holder.get("by"), held_until=holder.get("when"))


def check_owner(context: QueueContext[Any], item: Any) -> None:
    """Refuse an item that another handle reserved, and an item that was never reserved."""
    if isinstance(item, Item) and is_held_in(item, context.broker.namespace, context.name):
        return
    if not isinstance(item, Item):
        raise ArgumentInvalid("item", f"an Item that reserve() returned, not {type(item).__name__}")
    if (item.namespace, item.queue) != (context.broker.namespace, context.name):
        raise ItemForeign(item.id, f"{context.broker.namespace}/{context.name}", f"{item.namespace}/{item.queue}")
    raise ReservationLost(item.id, item.queue, reserved=False)


async def begin_settle(context: QueueContext[Any], item: Item[Any]) -> None:
    """Check that this handle owns the item, and make the broker ready."""
    check_owner(context, item)
    return await ensure_ready(context)


def may_be_new(document: Document, item: Item[Any]) -> bool:
    """Return whether a push of the same key may have put the stored document in the item's place."""
    free = "token" not in document and "settled" not in document and not attempts_of(document)
    return free and item.key is not None and (document.get("q"), document.get("key")) == (item.queue, item.key)
