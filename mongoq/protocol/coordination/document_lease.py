"""Tenures: a control document that one process at a time works under, by a fenced lease.

``token``, ``until`` and ``by`` of the document are the lease. Whoever wants to write to it finds it under the token, so
that nothing is written by who has lost it, however late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_one
from mongoq.protocol.flow.commands import Command, Duplicate, Flow, matched, persisted
from mongoq.protocol.state.context import BrokerContext

__all__ = [
    "DocumentLease",
    "ForeignLease",
    "TakenOver",
    "begun",
    "extended",
    "given_back",
    "holder",
    "under",
    "written",
]


@dataclass(slots=True)
class DocumentLease:
    """A lease, as its holder knows it.

    Attributes:
        id: of the control document.
        token: the fence.
        length: how long the lease lasts from each extension on.
    """

    id: str
    token: ObjectId
    length: timedelta


@dataclass(frozen=True, slots=True)
class ForeignLease:
    """The lease that another process has: who, and until when unless it is extended."""

    by: str | None
    until: datetime | None


class TakenOver(Exception):
    """The lease is lost; nothing more may be written under it.

    Attributes:
        held: who has it now.
    """

    def __init__(self, held: ForeignLease) -> None:
        super().__init__(f"it is run by {held.by or 'nobody'}")
        self.held = held


def begun(
    broker: BrokerContext, id: str, length: timedelta, first: Mapping[str, Any]
) -> Flow[tuple[ObjectId, dict[str, Any]] | ForeignLease]:
    """Take the lease if nobody has it (``findAndModify``, upsert), or say who does.

    Returns its token and the document; a new document holds ``first``. A crash afterwards leaves it taken until it
    ends.
    """
    yield from ensure_broker_ready(broker, write=True)
    token, now = ObjectId(), broker.clock.now()
    lease = {"token": token, "until": now + length, "by": str(broker.identity)}
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": {"_id": id, "$or": [{"until": {"$lte": now}}, {"token": token}]},
            "update": {"$set": lease, "$setOnInsert": first},
            "upsert": True,
            "return_document": True,
        },
    )
    try:
        found, _ = yield from persisted(command.__iter__)
    except Duplicate:
        return holder((yield from find_one(broker, {"_id": id}, {"by": 1, "until": 1})))
    return token, found


def extended(broker: BrokerContext, tenure: DocumentLease) -> Flow[None]:
    """Let the lease end its length from now (``update``); raises ``TakenOver`` when it is lost."""
    yield from written(broker, tenure, {"$set": {"until": broker.clock.now() + tenure.length}})


def written(broker: BrokerContext, tenure: DocumentLease, update: Mapping[str, Any]) -> Flow[None]:
    """Change the document under the lease (``update``); raises ``TakenOver`` when it is lost.

    The update is one that may be sent twice: it is when its reply is lost.
    """
    command = Command("update_one", {"filter": under(tenure), "update": update}, matched, resolved=True)
    found, _ = yield from persisted(command.__iter__)
    if not found:
        raise TakenOver(holder((yield from find_one(broker, {"_id": tenure.id}, {"by": 1, "until": 1}))))


def given_back(broker: BrokerContext, tenure: DocumentLease) -> Flow[None]:
    """Let another process have the lease at once, unless one has it already (``update``)."""
    update = {"$set": {"until": broker.clock.now()}, "$unset": {"token": "", "by": ""}}
    command = Command("update_one", {"filter": under(tenure), "update": update}, matched, resolved=True)
    yield from persisted(command.__iter__)


def under(tenure: DocumentLease) -> dict[str, Any]:
    """Return the filter that finds the document under the lease."""
    return {"_id": tenure.id, "token": tenure.token}


def holder(found: Any) -> ForeignLease:
    """Return who has the lease, by the document."""
    found = found or {}
    return ForeignLease(found.get("by"), found.get("until"))
