"""Extend leases while handlers work: all queues of a worker in one command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.model.envelope import error_document
from mongoq.model.item import Item, id_key
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.flow import IDS, Command, Flow, number_matched
from mongoq.protocol.settle.bulk import Statement, make_statement
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = ["ExtendedItems", "extend_leases", "record_timeout"]


@dataclass(frozen=True, slots=True)
class ExtendedItems:
    """Items under one token with leases to extend.

    Attributes:
        token: the fence.
        ids: the ids of the items.
        lease: the new length of the leases, from now.
    """

    token: ObjectId
    ids: Sequence[Any]
    lease: timedelta


def extend_leases(
    broker: BrokerContext, wanted: Sequence[ExtendedItems]
) -> Flow[tuple[list[datetime], set[tuple[Any, Any]]]]:
    """Extend leases (``bulkWrite`` of ``update`` of many); return their new ends, and the lost items.

    Lost items are named by ``id_key`` and token: another consumer has them, or they were settled meanwhile. The command
    is sent again when the reply is lost, which is safe: it sets the same values. A lease that a handler has made longer
    stays so.
    """
    now = broker.clock.now()
    ends = [now + one.lease for one in wanted]
    requests = list(_make_statements(wanted, ends))
    arguments = {"requests": requests, "ordered": False}
    command: Command[int] = Command("bulk_write", arguments, number_matched, resolved=True)
    held = yield from retry_until_reply(command)
    if held == sum(len(one.ids) for one in wanted):
        return ends, set()
    return ends, (yield from _find_lost(broker, wanted))


def _make_statements(wanted: Iterable[ExtendedItems], ends: Iterable[datetime]) -> Iterable[Statement]:
    for one, until in zip(wanted, ends, strict=True):
        for start in range(0, len(one.ids), IDS):
            yield make_statement(one.token, one.ids[start : start + IDS], {"$max": {"when": until}})


def _find_lost(broker: BrokerContext, wanted: Iterable[ExtendedItems]) -> Flow[set[tuple[Any, Any]]]:
    """Read the present holders of all items together, since leases not read yet are not extended meanwhile."""
    held = [(id, one.token) for one in wanted for id in one.ids]
    tokens: dict[Any, Any] = {}
    for start in range(0, len(held), IDS):
        ids = [id for id, _ in held[start : start + IDS]]
        found = yield from find_few(broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection={"token": 1})
        tokens.update((id_key(document["_id"]), document.get("token")) for document in found)
    return {(id_key(id), token) for id, token in held if tokens.get(id_key(id)) != token}


def record_timeout(context: QueueContext[Any], items: Sequence[Item[Any]], error: TimeoutError) -> Flow[None]:
    """Keep an error on the items of a run that took too long (``bulkWrite``, fenced); their leases stay as they are.

    An item that ran by itself loses the mark of its batch: it took too long, and no neighbour of it, so that the next
    claim buries it when its retries are used up. A crash before it gives that item one run more.
    """
    update: dict[str, Any] = {"$set": {"error": error_document(error, context.broker.clock.now())}}
    if len(items) == 1:
        update["$unset"] = {"batch": ""}
    tokens: dict[Any, list[Any]] = {}
    for item in items:
        tokens.setdefault(item.token, []).append(item.id)
    requests: list[Statement] = [make_statement(token, ids, update) for token, ids in tokens.items()]
    yield Command("bulk_write", {"requests": requests, "ordered": False})
