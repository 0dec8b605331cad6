"""Halts: the signal to the parts of a run in other processes that they must end.

A halt is a control document with the id of its run; the TTL index removes it.
"""

from __future__ import annotations

from datetime import timedelta

from bson import ObjectId

from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_one
from mongoq.protocol.flow.commands import Command, Flow, ask
from mongoq.protocol.state.context import BrokerContext

__all__ = ["halt", "is_halted"]

HALT_PREFIX = "halt:"
"""Prefix of the ``_id`` of a halt."""
REMEMBERED = timedelta(days=1)
"""Time after which the TTL index removes a halt: a part that begins later does not learn of it."""


def halt(broker: BrokerContext, run: ObjectId) -> Flow[None]:
    """Signal all parts of a run to end (``update``, upsert); a second signal changes nothing but the expiry."""
    yield from ensure_broker_ready(broker, write=True)
    told = {"$set": {"expires": broker.clock.now() + REMEMBERED}}
    yield from ask(Command("update_one", {"filter": {"_id": _id(run)}, "update": told, "upsert": True}))


def is_halted(broker: BrokerContext, run: ObjectId) -> Flow[bool]:
    """Return whether the run was halted (``find`` by ``_id``)."""
    return (yield from find_one(broker, {"_id": _id(run)}, {"_id": 1})) is not None


def _id(run: ObjectId) -> str:
    return f"{HALT_PREFIX}{run}"
