"""Moves: hand an item to another queue, or to the dead queue, in one fenced update."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX, REASON_BYTES, Duration, queue_name, text
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.encoding.codec import Codec
from mongoq.model.envelope import error_document, origin_document
from mongoq.model.item import Item
from mongoq.model.settings import queue_options
from mongoq.protocol.base.fence import begin_settle, is_gone, run_fenced, update_command
from mongoq.protocol.flow import Duplicate, Flow
from mongoq.protocol.push.keyed import check_key, raise_duplicate
from mongoq.protocol.push.push import check_due, check_headers, due_time
from mongoq.protocol.settle.patch import Patch, check_patch, max_growth, settle_with_patch
from mongoq.protocol.settle.trail import Marker, Marks
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = [
    "ONLY_RUN_REASON",
    "Destination",
    "Handover",
    "burial_update",
    "bury",
    "check_move",
    "dead_context",
    "dead_queue",
    "destination",
    "graveyard",
    "hand_on",
    "move",
    "reason_exhausted",
    "send_move",
]

EXHAUSTED_REASON = "retries exhausted"
ONLY_RUN_REASON = "failed, no retries allowed"
BURIED_REASON = "buried"


def reason_exhausted(attempts: int) -> str:
    """Return the reason for burying an item without retries left, after this number of runs."""
    return ONLY_RUN_REASON if attempts <= 1 else EXHAUSTED_REASON


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue to move to: its name, and the codec of its payloads."""

    name: str
    codec: Codec[Any]


def destination(context: QueueContext[Any], to: str | QueueContext[Any]) -> Destination:
    """Return the destination of a move; a queue of another collection is refused: a move is one update of one document.

    A queue given by its name takes any payload.
    """
    if not isinstance(to, QueueContext):
        return Destination(queue_name(to, "to"), context.broker.untyped)
    if to.broker.namespace != context.broker.namespace:
        raise ArgumentInvalid("to", f"{to.broker.namespace}/{to.name} lies in another collection; push it there")
    return Destination(to.name, to.codec)


def move(context: QueueContext[Any], item: Item[Any], to: Destination, **told: Any) -> Flow[None]:
    """Move an item to another queue with a fresh budget of attempts, in one update; options as for ``check_move``."""
    yield from hand_on(context, item, check_move(context, to, **told))


def hand_on(context: QueueContext[Any], item: Item[Any], handed: Handover) -> Flow[None]:
    """Send a move that was checked."""
    yield from begin_settle(context, item)
    yield from send_move(context, item, handed)


@dataclass(frozen=True, slots=True, eq=False)
class Handover:
    """What a move sets and takes away, checked; when the item is due is reckoned as it is sent.

    Attributes:
        queue: where it goes.
        changes: what it sets, the payload aside.
        gone: the fields it takes away.
        payload: the new payload, as ``{"payload": payload}`` in BSON.
        patch: or the operators that change the payload.
        delay: how long it waits there.
        when: or until when.
    """

    queue: str
    changes: dict[str, Any]
    gone: list[str]
    payload: bytes | None
    patch: Patch
    delay: Duration | None
    when: datetime | None

    def update(self, due: datetime) -> dict[str, Any]:
        """Return the update, without payload and patch."""
        return {"$set": {**self.changes, "when": due}, "$unset": dict.fromkeys(self.gone, "")}


def check_move(
    context: QueueContext[Any],
    to: Destination,
    *,
    payload: Any,
    replace_payload: bool,
    patch: Any,
    delay: Duration | None,
    when: datetime | None,
    priority: int | None,
    headers: Any,
    replace_headers: bool,
    key: str | None = None,
) -> Handover:
    """Check the options of a move."""
    changes: dict[str, Any] = {"q": to.name, "reserved": False, "attempts": 0}
    patched = {} if patch is None else check_patch(context, patch, replaces_payload=replace_payload)
    wrapped = to.codec.wrap(payload) if replace_payload else None
    if key is not None:
        changes["key"] = check_key(key)
    if priority is not None:
        changes["priority"] = checked_priority(priority)
    if replace_headers and headers is not None:
        changes["headers"] = check_headers(headers, context.broker.encoding)
    check_due(delay, when)
    gone = ["token", "error", "batch", "pushed"]
    if key is None:
        gone.append("key")
    if replace_headers and headers is None:
        gone.append("headers")
    return Handover(to.name, changes, gone, wrapped, patched, delay, when)


def send_move(context: QueueContext[Any], item: Item[Any], handed: Handover) -> Flow[None]:
    """Send the update of a move."""
    broker, to, payload = context.broker, handed.queue, handed.payload
    until = due_time(broker.clock, handed.delay, handed.when)
    update = handed.update(until)
    if payload is not None:
        update["$set"]["payload"] = broker.encoding.unwrap("payload", payload)
    marker = Marker(context, "moved", at=broker.clock.now(), to=to)
    marks = marker.marks(item, payload=payload, added=max_growth(context, handed.patch))
    key, fixed = handed.changes.get("key"), handed.when is not None
    is_moved = partial(is_gone, queue=to, when=until, key=key, fixed=fixed)
    try:
        yield from settle_with_patch(
            context,
            item,
            marks.on(update),
            patch=handed.patch,
            happened=lambda found: is_moved(found, item),
            event="move",
        )
        priority = handed.changes.get("priority", item.priority)
        broker.record_put(to, until, priority, id=item.id, is_new=False)
    except Duplicate as duplicate:
        if "key" not in handed.changes:
            raise
        yield from raise_duplicate(broker, to, handed.changes["key"], duplicate.cause)


def bury(
    context: QueueContext[Any],
    item: Item[Any],
    *,
    reason: str | None,
    error: Any,
    attempts: int | None = None,
) -> Flow[None]:
    """Move an item to the dead queue; its origin records the reason."""
    if reason is not None:
        text(reason, "reason", REASON_BYTES)
    yield from begin_settle(context, item)
    now = context.broker.clock.now()
    counted = item.attempts if attempts is None else attempts
    marker = Marker(context, "dead", at=now, to=dead_queue(context))
    update, marks = burial_update(context, item, marker, reason=reason, error=error, attempts=counted, now=now)
    command = update_command(item.id, item.token, marks.on(update))
    dead = update["$set"]["q"]
    yield from run_fenced(context, item, command, lambda found: is_gone(found, item, dead, now), "dead")
    context.broker.record_put(dead, now, item.priority, id=item.id, is_new=False)


def burial_update(
    context: QueueContext[Any],
    item: Item[Any],
    marker: Marker,
    *,
    reason: str | None,
    error: Any,
    attempts: int,
    now: datetime,
) -> tuple[dict[str, Any], Marks]:
    """Return the update that moves an item to the dead queue, and the marks left on the item."""
    failure = error_document(error, now)
    told = reason or (failure["message"] if failure else "") or BURIED_REASON
    stage = None if context.stage is None else context.stage.name
    changes = {
        "origin": origin_document(item, reason=told, attempts=attempts, at=now, stage=stage),
        **({"error": failure} if failure else {}),
        "q": dead_queue(context),
        "when": now,
        "reserved": False,
        "attempts": 0,
    }
    update = {"$set": changes, "$unset": {"token": "", "key": "", "batch": "", "pushed": ""}}
    return update, marker.marks(item, attempts=attempts)


def dead_queue(context: QueueContext[Any]) -> str:
    """Return the name of the dead queue; raises when the queue has none."""
    if context.settings.dead is None:
        why = "is a dead queue" if context.name.endswith(DEAD_SUFFIX) else "was opened with dead=None"
        raise ArgumentInvalid("queue", f"{context.name!r} {why}, and has no dead queue; move the item, or commit it")
    return context.settings.dead


def dead_context(context: QueueContext[Any]) -> QueueContext[Any]:
    """Return the context of the dead queue, untyped; it has no dead queue itself."""
    return graveyard(context.broker, dead_queue(context))


def graveyard(broker: BrokerContext, name: str) -> QueueContext[Any]:
    """Return the context of a queue of dead letters by its own name, untyped; it has no dead queue itself."""
    name = queue_name(name)
    options = queue_options(name) if name.endswith(DEAD_SUFFIX) else queue_options(name, dead=None)
    return QueueContext(broker, options, broker.untyped, settings_from="stored")  # its options are none of the code's
