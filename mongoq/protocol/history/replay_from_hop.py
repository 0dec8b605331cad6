"""Replay from a hop: items go back to a queue that their trails lead through, with the payload they had there."""

from __future__ import annotations

from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import queue_name
from mongoq.model.trail import hop_before
from mongoq.protocol.settle.move import Destination, destination
from mongoq.protocol.state.context import QueueContext

__all__ = ["hop_destination", "payload_at"]


def hop_destination(
    context: QueueContext[Any], hop: str | None, to: str | QueueContext[Any] | None
) -> Destination | None:
    """Return the destination of items, by a hop or by ``to``; ``None`` when neither is given.

    A hop is named by its queue, because a stage may have several input queues.
    """
    target = None if to is None else destination(context, to)
    if hop is None:
        return target
    name = queue_name(hop, "hop")
    if target is None:
        return Destination(name, context.broker.untyped)
    if target.name != name:
        raise ArgumentInvalid("to", f"a hop goes to its own queue, {name!r}, and not to {target.name!r}; leave it out")
    return target


def payload_at(trail: Any, queue: str) -> Any:
    """Return the payload that an item had when it last left a queue; raises ``ArgumentInvalid`` where none was kept."""
    hop = hop_before(trail, queue)
    if hop is None:
        raise ArgumentInvalid("hop", f"its trail does not lead through queue {queue!r}")
    if hop.joined:
        raise ArgumentInvalid("hop", f"it was joined with others behind {queue!r}; those would be lost")
    if not hop.kept:
        raise ArgumentInvalid(
            "hop", "its payload there was too large to be kept" if hop.large else "its payload there was not kept"
        )
    return hop.payload
