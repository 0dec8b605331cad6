# Generated from mongoq/protocol/claim/filtering.py by scripts/unasync.py. Do not edit.
"""Filters of consumers: items that do not match are settled once, when they are claimed first.

A filter within the claim itself would read such items at every claim: 113 ms a claim behind 100,000 of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bson import ObjectId

from mongoq.errors import FilterInvalid, ReservationLost
from mongoq.model.item import Item, id_key
from mongoq.protocol.base.statements import number_found
from mongoq.protocol.claim.batch_claim import BatchClaim
from mongoq.protocol.claim.filtering import ItemFilter, _make_statements
from mongoq.protocol.command import Command, PartlyRefused
from mongoq.protocol.history.query import is_refused_filter, refusal
from mongoq.protocol.push.draft import due_time
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import find_one
from mongoq.protocol_threads.base.retry import retry_until_reply
from mongoq.protocol_threads.settle.apply_outcomes import apply_outcomes


def check_on_server(context: QueueContext[Any], wanted: ItemFilter) -> None:
    """Let the server check the filter (``find`` of an unused id); raise ``FilterInvalid``."""
    try:
        find_one(context.broker, {"_id": ObjectId(), **wanted.where}, {"_id": 1})
    except Exception as error:
        if is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise


def settle_unmatched(claim: BatchClaim, wanted: ItemFilter) -> int:
    """Settle the candidates of a claim that do not match the filter, in one bulk, and return their number.

    They are not reserved, or not any more. Sent again after a lost reply, the bulk does nothing twice: they are gone by
    then. A crash before it leaves them where they are.
    """
    context, handover, total = claim.context, wanted.handover, 0
    for unmarked in (context, replace(context, stage=None)):
        requests = list(_make_statements(unmarked, claim, wanted))
        command = Command("bulk_write", {"requests": requests, "ordered": False}, number_found, resolved=True)
        try:
            total += retry_until_reply(command)
            break
        except PartlyRefused as refused:
            if unmarked is not context:
                raise
            # a trail that some other program wrote may be no list; what is left goes without marks
            total += refused.total
    if total and handover is None:
        context.count("commit", total)
    elif total and handover is not None:
        context.count("move", total)
        # Items of another program may have a priority that cannot be hashed.
        places = {place for each in claim.candidates.documents if isinstance(place := each.get("priority"), int)}
        priorities = {handover.changes.get("priority", place) for place in places}
        when = due_time(context.broker.clock, handover.delay, handover.when)
        context.broker.record_put(handover.queue, when, *priorities, number=total)
    return total


def is_kept(context: QueueContext[Any], wanted: ItemFilter, item: Item[Any]) -> bool:
    """Return whether a reserved item matches (``find``); one that does not is settled."""
    match = find_one(context.broker, {"_id": item.id, "token": item.token, **wanted.where}, {"_id": 1})
    if match is not None:
        return True
    failed = apply_outcomes(context, [(item, wanted.rest)], wanted.resolve)
    error = failed.get(id_key(item.id))
    if error is not None and not isinstance(error, ReservationLost):
        raise error
    return False
