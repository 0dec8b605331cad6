"""Burials: an item moves to the dead queue, and its origin records why."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX, REASON_BYTES, queue_name, text
from mongoq.model.envelope import error_document, origin_document
from mongoq.model.item import Item
from mongoq.model.settings import queue_options
from mongoq.protocol.settle.send import settle_item
from mongoq.protocol.settle.settlement import Batch, Put, Settlement
from mongoq.protocol.settle.trail import Marks, make_marks
from mongoq.protocol.state.context import BrokerContext, QueueContext

EXHAUSTED_REASON = "retries exhausted"
ONLY_RUN_REASON = "failed, no retries allowed"
BURIED_REASON = "buried"


def reason_exhausted(attempts: int) -> str:
    """Return the reason for burying an item without retries left, after this number of runs."""
    return ONLY_RUN_REASON if attempts <= 1 else EXHAUSTED_REASON


async def bury(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any, attempts: int | None = None
) -> None:
    """Move an item to the dead queue; its origin records the reason."""
    if reason is not None:
        text(reason, "reason", REASON_BYTES)
    await settle_item(context, item, partial(make_burial, reason=reason, error=error, attempts=attempts))


def make_burial(
    context: QueueContext[Any],
    item: Item[Any],
    batch: Batch,
    *,
    reason: str | None,
    error: Any,
    attempts: int | None = None,
) -> Settlement:
    """Return the settlement that buries an item; ``attempts`` are the runs that count, if not all."""
    now, dead = batch.now, dead_queue(context)
    counted = item.attempts if attempts is None else attempts
    update, marks = burial_update(context, item, reason=reason, error=error, attempts=counted, now=now)
    return Settlement(marks.on(update), "dead", size=marks.size, put=Put(dead, now, is_new=True), is_burial=True)


def burial_update(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any, attempts: int, now: datetime
) -> tuple[dict[str, Any], Marks]:
    """Return the update that moves an item to the dead queue, and the marks left on the item."""
    failure, dead = error_document(error, now), dead_queue(context)
    text = reason or (failure["message"] if failure else "") or BURIED_REASON
    stage = None if context.stage is None else context.stage.name
    changes = {
        "origin": origin_document(item, reason=text, attempts=attempts, at=now, stage=stage),
        **({"error": failure} if failure else {}),
        "q": dead,
        "when": now,
        "reserved": False,
        "attempts": 0,
    }
    unset = {"token": "", "key": "", "batch": "", "pushed": ""}
    if item.stored("start_by") is not None:  # a letter does not expire
        unset["start_by"] = ""
    update = {"$set": changes, "$unset": unset}
    return update, make_marks(context, item, "dead", at=now, to=dead, attempts=attempts)


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
    return QueueContext(broker, queue_options(name), broker.untyped, assumed={"dead": None})
