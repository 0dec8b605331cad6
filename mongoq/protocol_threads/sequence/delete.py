# Generated from mongoq/protocol/sequence/delete.py by scripts/unasync.py. Do not edit.
"""Deletion of items with places in sequences, and of dead letters that hold one: the next item follows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mongoq.model.sequence import blocked_filter, held_target
from mongoq.protocol.command import delete_many
from mongoq.protocol.sequence.delete import DELETED_PER_TRANSACTION, IN_ORDER, NOT_IN_ORDER
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import find_few
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.control import run_atomic
from mongoq.protocol_threads.sequence.hold import release
from mongoq.protocol_threads.sequence.leave import leave


def delete_in_order(context: QueueContext[Any], filter: Mapping[str, Any], *, blocked: bool = False) -> int:
    """Delete the items that match a filter on items that are not blocked, and return how many.

    Items that others may wait for are deleted in transactions of up to 1,000, and the next ones follow; all others
    before that in one command, with ``blocked`` ones in another. A crash in between leaves the rest.

    This process may not have heard yet of the queue's first sequence, or first dead letter that holds one, so each
    command names the items that it may delete.
    """
    deleted = (perform(delete_many(blocked_filter(context.name)))) if blocked else 0
    deleted += perform(delete_many({"$and": [filter, NOT_IN_ORDER]}))
    return deleted + (delete_placed(context, filter))


def delete_placed(context: QueueContext[Any], filter: Mapping[str, Any]) -> int:
    """Delete those of the items that others may wait for."""
    broker, wanted, deleted = context.broker, {"$and": [filter, IN_ORDER]}, 0
    fields = {"sequence": 1, "when": 1, "place": 1, "origin.queue": 1, "origin.place": 1}
    while True:
        # Found outside the transaction, which then reads by ids alone and is short.
        page = find_few(broker, wanted, [], DELETED_PER_TRANSACTION, projection={"_id": 1})
        ids = {"_id": {"$in": [document["_id"] for document in page]}}

        def delete_page(ids: Mapping[str, Any] = ids) -> tuple[int, list[Promoted]]:
            still: dict[str, Any] = {"$and": [wanted, ids]}
            documents = find_few(broker, still, [], DELETED_PER_TRANSACTION, projection=fields, lenient=True)
            if not documents:
                return 0, []
            number = perform(delete_many({"_id": {"$in": [document["_id"] for document in documents]}}))
            left = Counter(document["sequence"] for document in documents if "place" in document and "when" in document)
            promoted = leave(broker, context.name, left)
            # What is left of a letter ends its hold.
            targets = [target for document in documents if (target := held_target(document)) is not None]
            return number, promoted + (release(broker, targets))

        if page:
            number, promoted = run_atomic(broker, delete_page)
            record_promoted(broker, promoted)
            deleted += number
        if len(page) < DELETED_PER_TRANSACTION:
            return deleted
