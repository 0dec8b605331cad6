"""Runs that took too long: their items keep an error, and come back when their leases end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.model.envelope import error_document
from mongoq.model.item import Item
from mongoq.protocol.flow.commands import Command, Flow
from mongoq.protocol.settle.bulk import Statement, make_statement
from mongoq.protocol.state.context import QueueContext

__all__ = ["record_timeout"]


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
