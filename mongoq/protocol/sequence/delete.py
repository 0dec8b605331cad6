"""Deletion in a queue with sequences: where the first item of a sequence goes, the next one follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from mongoq.model.sequence import HAS_PLACE
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready, refresh_settings
from mongoq.protocol.flow import Flow, delete_many
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import QueueContext

DELETED_PER_TRANSACTION = 1_000
"""Items of sequences that are deleted in one transaction, at most."""


def delete_in_order(context: QueueContext[Any], filter: Mapping[str, Any]) -> Flow[int]:
    """Delete the items that match a filter on live items or on ids, and return how many.

    Items with a place are deleted in transactions of up to 1,000, and the next ones follow. The others go in one
    command. A crash in between leaves the rest.
    """
    deleted = 0
    while True:
        number, promoted = yield from run_atomic(context.broker, partial(_delete_page, context, filter))
        record_promoted(context.broker, promoted)
        deleted += number
        if number < DELETED_PER_TRANSACTION:
            return deleted + (yield from delete_many({"$and": [filter, HAS_NO_PLACE]}))


HAS_NO_PLACE = {"place": {"$exists": False}}
"""Condition of an item without a place in a sequence."""


def learn_order(context: QueueContext[Any]) -> Flow[bool]:
    """Return whether items of the queue have places; another process may have pushed the first one a moment ago.

    What this process has read of the queue may be older than that, so a deletion looks for itself (``find``). So may
    its settings, which say whether a letter may hold the sequences: they are read as by a claim.
    """
    if context.state.ordered:
        yield from ensure_ready(context)
        if context.state.ordered:
            return True
    wanted = {"q": context.name, "place": HAS_PLACE}
    found = yield from find_few(context.broker, wanted, [("place", 1)], 1, projection={"_id": 1})
    if found:
        yield from refresh_settings(context)
    context.state.ordered = bool(found)
    return context.state.ordered


def _delete_page(context: QueueContext[Any], filter: Mapping[str, Any]) -> Flow[tuple[int, list[Promoted]]]:
    """Delete some items with a place, inside a transaction."""
    wanted, fields = {"$and": [filter, {"place": HAS_PLACE}]}, {"sequence": 1, "when": 1}
    documents = yield from find_few(context.broker, wanted, [], DELETED_PER_TRANSACTION, projection=fields)
    if not documents:
        return 0, []
    number = yield from delete_many({"_id": {"$in": [document["_id"] for document in documents]}})
    left = Counter(document["sequence"] for document in documents if "when" in document)
    return number, (yield from leave(context.broker, context.name, left))
