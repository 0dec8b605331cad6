"""Dropped queues: delete all stored data of a queue, items first, then control documents."""

from __future__ import annotations

from mongoq.errors import ArgumentInvalid, QueueNotEmpty
from mongoq.model.arguments import PRIORITIES, queue_name
from mongoq.model.indexes import BEGINNING
from mongoq.protocol.admin.expiry import END_PREFIX
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.queue_settings import CONTROL_PREFIX, COUNTERS_PREFIX
from mongoq.protocol.flow.commands import Command, Flow, delete_many
from mongoq.protocol.history.read import in_state
from mongoq.protocol.history.stats import flush
from mongoq.protocol.state.context import BrokerContext

__all__ = ["drop"]


def drop(broker: BrokerContext, name: str, *, force: bool) -> Flow[int]:
    """Delete all stored data of a queue, and return the number of live items among it (``find``, ``delete``).

    Items are deleted first and settings last. A call that was cut short therefore leaves a queue that keeps its
    settings.
    """
    queue = queue_name(name)
    if not isinstance(force, bool):
        raise ArgumentInvalid("force", f"True or False, not {force!r:.60}")
    yield from ensure_broker_ready(broker, write=True)
    live, deleted = in_state(queue, None, BEGINNING), 0
    if force:
        deleted = yield from delete_many(live)
    elif (yield from find_one(broker, live, {"_id": 1})) is not None:
        number: int = yield from Command("count_documents", {"filter": live})
        raise QueueNotEmpty(queue, max(number, 1))
    yield from delete_many({"q": queue, "processed": {"$gte": BEGINNING}})
    # Write this process's counts first: a later flush would create the counters again.
    yield from flush(broker)
    marks = [f"{END_PREFIX}{priority}:{queue}" for priority in PRIORITIES]
    yield from delete_many({"_id": {"$in": [COUNTERS_PREFIX + queue, *marks, CONTROL_PREFIX + queue]}})
    _forget(broker, queue)
    return deleted


def _forget(broker: BrokerContext, queue: str) -> None:
    """Reset this process's state of the queue; a handle with options stores them again when it is used."""
    broker.stats = None
    state = broker.states.get(queue)
    if state is not None:
        state.put(paused=False, stored={})
        state.asserted.clear()
        state.fenced_off.clear()
        broker.tell(queue)
