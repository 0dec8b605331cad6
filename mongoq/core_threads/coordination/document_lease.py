# Generated from mongoq/core/coordination/document_lease.py by scripts/unasync.py. Do not edit.
"""Leases of control documents: one process at a time works under a document, by a fenced lease.

``token``, ``until`` and ``by`` of the document are the lease. Every write finds the document under the token. So a
process that has lost the lease writes nothing, however late its command arrives.

Halts: the signal to the parts of a run in other processes that they must end. A halt is a control document with the
id of its run; the TTL index removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from bson import ObjectId

from mongoq.core.command import Command, Duplicate, has_matched
from mongoq.core.coordination.document_lease import (
    HALT_EXPIRY,
    HALT_PREFIX,
    DocumentLease,
    ForeignLease,
    TakenOver,
    end_update,
    holder,
    under,
)
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.retry import retry_until_reply


def take_lease(
    broker: BrokerContext, id: str, length: timedelta, first: Mapping[str, Any]
) -> tuple[ObjectId, dict[str, Any]] | ForeignLease:
    """Take the lease if it is free (``findAndModify``, upsert), or return the lease of its holder.

    Returns the token and the document; a new document holds ``first``. A crash afterwards leaves the lease taken until
    it ends.
    """
    ensure_broker_ready(broker, write=True)
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
        document = retry_until_reply(command)
    # The document exists under another live lease: the filter matched nothing, so the upsert tried to insert its
    # ``_id``.
    except Duplicate:
        return read_holder(broker, id)
    return token, document


def extend_lease(broker: BrokerContext, tenure: DocumentLease) -> None:
    """Extend the lease to its full length from now (``update``); raises ``TakenOver`` when it is lost."""
    write_under_lease(broker, tenure, {"$set": {"until": broker.clock.now() + tenure.length}})


def write_under_lease(broker: BrokerContext, tenure: DocumentLease, update: Mapping[str, Any]) -> None:
    """Change the document under the lease (``update``); raises ``TakenOver`` when it is lost.

    The update must be safe to apply twice: the driver sends it again when its reply is lost.
    """
    if not (_update(tenure, update)):
        raise TakenOver(read_holder(broker, tenure.id))


def give_back(broker: BrokerContext, tenure: DocumentLease) -> None:
    """End the lease at once, so that another process can take it; does nothing if it is lost already (``update``)."""
    _update(tenure, end_update(broker))


def _update(tenure: DocumentLease, update: Mapping[str, Any]) -> bool:
    arguments = {"filter": under(tenure), "update": update}
    return retry_until_reply(Command("update_one", arguments, has_matched, resolved=True))


def read_holder(broker: BrokerContext, id: str) -> ForeignLease:
    """Read the lease of a document (``find``)."""
    return holder(find_one(broker, {"_id": id}, {"by": 1, "until": 1}))


def halt(broker: BrokerContext, run: ObjectId) -> None:
    """Signal all parts of a run to end (``update``, upsert); a second signal changes nothing but the expiry."""
    ensure_broker_ready(broker, write=True)
    filter, update = {"_id": f"{HALT_PREFIX}{run}"}, {"$set": {"expires": broker.clock.now() + HALT_EXPIRY}}
    retry_until_reply(Command("update_one", {"filter": filter, "update": update, "upsert": True}))


def is_halted(broker: BrokerContext, run: ObjectId) -> bool:
    """Return whether the run was halted (``find`` by ``_id``)."""
    return (find_one(broker, {"_id": f"{HALT_PREFIX}{run}"}, {"_id": 1})) is not None
