"""The fence: commands that only the holder of a token can make, and what it means when they found nothing.

``run_fenced`` is the one place that decides what an update that matched nothing, or whose reply was lost, means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, ItemForeign, ReservationLost
from mongoq.model.envelope import Document, attempts_of
from mongoq.model.item import Item, is_held_in, reservation_key
from mongoq.model.process.counters import Event
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow.commands import Command, Flow, ReplyLost, matched, persisted
from mongoq.protocol.state.context import QueueContext

__all__ = [
    "LEASE_MARGIN",
    "Verdict",
    "begin_settle",
    "check_owner",
    "ends_by",
    "has_deleted",
    "is_back",
    "is_gone",
    "lost_error",
    "may_be_new",
    "run_fenced",
    "update_command",
]

LEASE_MARGIN = timedelta(seconds=1)
"""An item whose lease ends so soon may be taken by somebody else while a command about it is under way."""

Verdict = Callable[[Document], bool | None]
"""Given the stored document, whether our lost command happened; ``None`` when that cannot be told."""


def has_deleted(reply: Any) -> bool:
    """Say whether a delete found the item under its token."""
    return bool(reply.deleted_count)


def update_command(id: ObjectId, token: ObjectId | None, update: Mapping[str, Any]) -> Command[bool]:
    """Return the update of an item that only the holder of the token can make."""
    return Command("update_one", {"filter": {"_id": id, "token": token}, "update": update}, matched)


def run_fenced(
    context: QueueContext[Any],
    item: Item[Any],
    command: Command[bool],
    happened: Verdict,
    event: Event | None,
) -> Flow[None]:
    """Send a fenced command, and raise ``ReservationLost`` when the token no longer holds the item.

    The driver sends it as a retryable write: the server keeps a record of it, and tells exactly what became of a
    command whose reply was lost. ``ReplyLost`` comes here where there is no record (a standalone server,
    ``retryWrites=false``) or no answer to any of the sends. Then the command is sent again, which is safe: it takes the
    token away, or sets the same values. That it finds nothing then may be its own doing, and ``happened`` decides from
    what is stored. What it reads is durable, since the second command has waited for the majority, even though it
    changed nothing. A delete leaves nothing to read, and what is gone stays uncertain: no local clock can tell whether
    the lease still ran when the server got the command, since a paused machine stops all its clocks. ``event`` is what
    to count; ``None`` for a command that does not settle the item.
    """
    try:
        done = yield command
    except ReplyLost:
        done, _ = yield from persisted(command.__iter__, sent=1)
        if not done:
            done = yield from _resolve_lost_reply(context, item, happened)
    if not done:
        yield from _raise_lost(context, item)
    if event is not None:
        if context.broker.unsettled:
            context.broker.unsettled.discard(reservation_key(item))
        context.count(event)


def _resolve_lost_reply(context: QueueContext[Any], item: Item[Any], happened: Verdict) -> Flow[bool]:
    found = yield from find_one(context.broker, {"_id": item.id}, {"payload": 0})
    verdict = None if found is None else happened(found)
    if found and verdict and may_be_new(found, item):
        verdict = None
    if verdict is None:
        raise ReservationLost(item.id, item.queue, certain=False)
    return verdict


def ends_by(item: Item[Any], soon: datetime) -> bool:
    """Say whether the lease of an item ends by then, or cannot be told."""
    until = item.lease_until
    return not isinstance(until, datetime) or until <= soon  # other programs may have written anything there


def _raise_lost(context: QueueContext[Any], item: Item[Any]) -> Flow[NoReturn]:
    fields = {"by": 1, "when": 1, "reserved": 1, "q": 1}
    raise lost_error(context, item, (yield from find_one(context.broker, {"_id": item.id}, fields)))


def lost_error(context: QueueContext[Any], item: Item[Any], found: Document | None) -> ReservationLost:
    """Return the error that says who holds the item now, if anybody does."""
    holder = found if found and found.get("reserved") and found["when"] > context.broker.clock.now() else {}
    return ReservationLost(item.id, item.queue, held_by=holder.get("by"), held_until=holder.get("when"))


def check_owner(context: QueueContext[Any], item: Any) -> None:
    """Refuse an item that another handle reserved, or that nobody reserved."""
    if isinstance(item, Item) and is_held_in(item, context.broker.namespace, context.name):
        return
    if not isinstance(item, Item):
        raise ArgumentInvalid("item", f"an Item that reserve() returned, not {type(item).__name__}")
    if (item.namespace, item.queue) != (context.broker.namespace, context.name):
        raise ItemForeign(item.id, f"{context.broker.namespace}/{context.name}", f"{item.namespace}/{item.queue}")
    raise ReservationLost(item.id, item.queue, reserved=False)


def begin_settle(context: QueueContext[Any], item: Item[Any]) -> Flow[None] | tuple[()]:
    """Do what must come before an item is settled: it is this handle's to settle, and the broker is ready."""
    check_owner(context, item)
    return ensure_ready(context)


def is_back(found: Document, item: Item[Any], when: datetime, *, fewer: int = 0) -> bool | None:
    """Recognise an update that let the item go where it was, by the date it wrote, with so many attempts fewer.

    A holder that took the item over and released it leaves it just so at the end of our lease.
    """
    if not fewer and when == item.lease_until:
        return None
    return _is_placed(found, item.queue, when, item.key, item.attempts - fewer)


def is_gone(
    found: Document, _: Item[Any], queue: str, when: datetime, *, key: str | None = None, fixed: bool = False
) -> bool | None:
    """Recognise an update that handed an item on to a queue, with that key there, by the date it wrote.

    A ``fixed`` date, which the caller gave, tells nothing: another holder may have handed the item on with the same.
    """
    return None if fixed else _is_placed(found, queue, when, key, 0)


def _is_placed(found: Document, queue: str, when: datetime, key: str | None, attempts: int) -> bool | None:
    place = found.get("q"), found.get("when"), found.get("key"), attempts_of(found)
    return ("token" not in found and place == (queue, when, key, attempts)) or None


def may_be_new(found: Document, item: Item[Any]) -> bool:
    """Say whether what lies where the item did may be what a push of its key has brought in its place."""
    free = "token" not in found and "settled" not in found and not attempts_of(found)
    return free and item.key is not None and (found.get("q"), found.get("key")) == (item.queue, item.key)
