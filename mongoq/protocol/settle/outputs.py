"""Outputs: the new items made from an item that is settled, or that has left its queue."""

from __future__ import annotations

from typing import Any

from bson import ObjectId

from mongoq.errors import OutcomeInvalid
from mongoq.model.envelope import Document, new_envelope
from mongoq.model.item import Item
from mongoq.model.outcomes import Move
from mongoq.model.settings import KEEP
from mongoq.protocol.push.draft import due
from mongoq.protocol.settle.move_many import Moves
from mongoq.protocol.state.context import QueueContext

__all__ = ["make_output", "record_output"]


def make_output(
    context: QueueContext[Any], item: Item[Any], move: Move, moves: Moves, *, id: ObjectId
) -> dict[str, Any]:
    """Return the envelope of a new item, by a move of the old one."""
    handed, payload = moves.check(move)
    if handed.patch:
        raise OutcomeInvalid("what comes of an item is a new one, and has nothing to patch; give payload=")
    return new_envelope(
        handed.queue,
        item.stored("payload") if payload is None else context.broker.encoding.unwrapped("payload", payload),
        id=id,
        when=due(context.broker.clock, handed.delay, handed.when),
        priority=handed.changes.get("priority", item.priority),
        headers=handed.changes.get("headers") if move.headers is not KEEP else dict(item.headers) or None,
        once=None,
    )


def record_output(context: QueueContext[Any], envelope: Document) -> None:
    """Count a new item of a queue, and wake the queue's waiters in this process."""
    broker, queue = context.broker, envelope["q"]
    broker.state(queue).claim_hints.note(envelope["priority"], envelope["when"])
    broker.counters.add(queue, "put", 1)
    broker.tell(queue, envelope["when"], id=envelope["_id"])
