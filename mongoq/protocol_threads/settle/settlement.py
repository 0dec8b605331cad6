# Generated from mongoq/protocol/settle/settlement.py by scripts/unasync.py. Do not edit.
"""Settlements: the update or deletion that settles items, whether it has happened, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mongoq.errors import ReservationLost
from mongoq.model.envelope import Document
from mongoq.model.item import Item, id_key
from mongoq.protocol.base.fence import has_deleted, update_command
from mongoq.protocol.command import Command, Refused
from mongoq.protocol.settle.settlement import STATE_FIELDS, Settlement, patch_misfit_error, patch_too_large_error
from mongoq.protocol.state.context import BrokerContext, QueueContext
from mongoq.protocol_threads.base.fence import run_fenced
from mongoq.protocol_threads.base.find import find_few, find_one


def settle_alone(context: QueueContext[Any], item: Item[Any], settlement: Settlement, *, joined: bool = False) -> Any:
    """Settle one item by a command of its own, whose answer is exact; return the answer for the caller.

    A transaction (``joined``) may be tried again, so it is recorded by ``record_settled`` once it is over.
    """
    if settlement.update is None:
        command = Command("delete_one", {"filter": {"_id": item.id, "token": item.token}}, has_deleted)
    else:
        command = update_command(item.id, item.token, settlement.update)
        if not context.broker.serverless:  # mongomock has no ``$bsonSize``
            command.arguments["filter"].update(settlement.room)
    event, put = None if joined else settlement.event, settlement.put
    try:
        run_fenced(context, item, command, partial(settlement.has_happened, item), event)
    except Refused as refused:
        if settlement.patch is None:
            raise
        raise patch_misfit_error(refused) from refused.cause
    except ReservationLost as lost:
        # The room for a patch is a part of the filter, so an item that has none looks like one that was lost.
        if settlement.patch is not None and lost.certain:
            ours = {"_id": item.id, "token": item.token}
            if (find_one(context.broker, ours, {"_id": 1})) is not None:
                raise patch_too_large_error(settlement.patch) from None
        raise
    if put is not None and not joined:
        put.record(context.broker, [item])
    return settlement.answer


def read_states(broker: BrokerContext, ids: Sequence[Any]) -> dict[Any, Document]:
    """Read the present states of items (``find``), by ``id_key``; items that are gone are left out."""
    documents = find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection=STATE_FIELDS)
    return {id_key(document["_id"]): document for document in documents}
