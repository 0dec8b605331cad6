"""Leases of control documents: one process at a time works under a document, by a fenced lease.

``token``, ``until`` and ``by`` of the document are the lease. Every write finds the document under the token. So a
process that has lost the lease writes nothing, however late its command arrives.

Halts: the signal to the parts of a run in other processes that they must end. A halt is a control document with the
id of its run; the TTL index removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_one
from mongoq.core.base.retry import retry_until_reply
from mongoq.core.command import Command, Duplicate, has_matched
from mongoq.core.state.context import BrokerContext


@dataclass(slots=True)
class DocumentLease:
    """Lease of a control document, as its holder knows it.

    Attributes:
        id: ``_id`` of the control document.
        token: fence, new with each holder; every write must find it in the document.
        length: duration of the lease, from each extension on.
    """

    id: str
    token: ObjectId
    length: timedelta


@dataclass(frozen=True, slots=True)
class ForeignLease:
    """Lease that another process holds.

    Attributes:
        by: identity of the holder; ``None`` when the document names no holder.
        until: end of the lease unless the holder extends it; ``None`` when the document has none.
    """

    by: str | None
    until: datetime | None


class TakenOver(Exception):
    """Raised when the lease is lost: its former holder may write nothing more under it.

    Attributes:
        held: lease of the present holder, as it was read after the loss.
    """

    def __init__(self, held: ForeignLease) -> None:
        super().__init__(f"it is run by {held.by or 'nobody'}")
        self.held = held


async def take_lease(
    broker: BrokerContext, id: str, length: timedelta, first: Mapping[str, Any]
) -> tuple[ObjectId, dict[str, Any]] | ForeignLease:
    """Take the lease if it is free (``findAndModify``, upsert), or return the lease of its holder.

    Returns the token and the document; a new document holds ``first``. A crash afterwards leaves the lease taken until
    it ends.
    """
    await ensure_broker_ready(broker, write=True)
    token, now = ObjectId(), broker.clock.now()
    lease = {"token": token, "until": now + length, "by": str(broker.identity)}
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            # The own token also matches: when the reply is lost and the command is sent again, it finds the lease that
            # it has just taken.
            "filter": {"_id": id, "$or": [{"until": {"$lte": now}}, {"token": token}]},
            "update": {"$set": lease, "$setOnInsert": first},
            "upsert": True,
            "return_document": True,
        },
    )
    try:
        document = await retry_until_reply(command)
    # The document exists under another live lease: the filter matched nothing, so the upsert tried to insert its
    # ``_id``.
    except Duplicate:
        return await read_holder(broker, id)
    return token, document


async def extend_lease(broker: BrokerContext, tenure: DocumentLease) -> None:
    """Extend the lease to its full length from now (``update``); raises ``TakenOver`` when it is lost."""
    await write_under_lease(broker, tenure, {"$set": {"until": broker.clock.now() + tenure.length}})


async def write_under_lease(broker: BrokerContext, tenure: DocumentLease, update: Mapping[str, Any]) -> None:
    """Change the document under the lease (``update``); raises ``TakenOver`` when it is lost.

    The update must be safe to apply twice: the driver sends it again when its reply is lost.
    """
    if not (await _update(tenure, update)):
        raise TakenOver(await read_holder(broker, tenure.id))


async def give_back(broker: BrokerContext, tenure: DocumentLease) -> None:
    """End the lease at once, so that another process can take it; does nothing if it is lost already (``update``)."""
    await _update(tenure, end_update(broker))


def end_update(broker: BrokerContext) -> dict[str, Any]:
    """Return the update that ends a lease at once."""
    return {"$set": {"until": broker.clock.now()}, "$unset": {"token": "", "by": ""}}


async def _update(tenure: DocumentLease, update: Mapping[str, Any]) -> bool:
    arguments = {"filter": under(tenure), "update": update}
    return await retry_until_reply(Command("update_one", arguments, has_matched, resolved=True))


def under(tenure: DocumentLease) -> dict[str, Any]:
    """Return the filter that finds the document under the lease."""
    return {"_id": tenure.id, "token": tenure.token}


async def read_holder(broker: BrokerContext, id: str) -> ForeignLease:
    """Read the lease of a document (``find``)."""
    return holder(await find_one(broker, {"_id": id}, {"by": 1, "until": 1}))


def holder(document: Any) -> ForeignLease:
    """Return the lease that the document contains; both fields are ``None`` if there is no document."""
    document = document or {}
    return ForeignLease(document.get("by"), document.get("until"))


HALT_PREFIX = "halt:"
"""Prefix of the ``_id`` of a halt."""
HALT_EXPIRY = timedelta(days=1)
"""Time after which the TTL index removes a halt: a part that begins later does not learn of it."""


async def halt(broker: BrokerContext, run: ObjectId) -> None:
    """Signal all parts of a run to end (``update``, upsert); a second signal changes nothing but the expiry."""
    await ensure_broker_ready(broker, write=True)
    filter, update = {"_id": f"{HALT_PREFIX}{run}"}, {"$set": {"expires": broker.clock.now() + HALT_EXPIRY}}
    await retry_until_reply(Command("update_one", {"filter": filter, "update": update, "upsert": True}))


async def is_halted(broker: BrokerContext, run: ObjectId) -> bool:
    """Return whether the run was halted (``find`` by ``_id``)."""
    return (await find_one(broker, {"_id": f"{HALT_PREFIX}{run}"}, {"_id": 1})) is not None
