"""Filters of consumers: items that do not match are settled once, when they are claimed first.

A filter within the claim itself would read such items at every claim: 113 ms a claim behind 100,000 of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, FilterInvalid, ReservationLost
from mongoq.model.envelope import trace_to_keep
from mongoq.model.indexes import CLAIM_FIELDS
from mongoq.model.item import Document, Item, id_key, is_countable
from mongoq.model.operators import where_filter
from mongoq.model.outcomes import Drop, Move, make_unknown_error
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.base.statements import Statement, number_found
from mongoq.protocol.claim.batch_claim import BatchClaim
from mongoq.protocol.command import Command, PartlyRefused
from mongoq.protocol.history.query import is_refused_filter, refusal
from mongoq.protocol.push.push import due_time
from mongoq.protocol.settle.apply_outcomes import apply_outcomes
from mongoq.protocol.settle.move import CheckedMove, Moves, Resolve, make_move
from mongoq.protocol.settle.settle import make_commit
from mongoq.protocol.settle.settlement import Batch
from mongoq.protocol.state.context import QueueContext

FILTER_FIELDS = {**CLAIM_FIELDS, "once": 1, "hops": 1}
"""Projection of items that a filter may settle."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemFilter:
    """The filter of a consumer.

    Attributes:
        where: the filter on envelopes.
        rest: the outcome of the other items, ``Drop`` or ``Move``.
        handover: the checked ``Move``, if there is one.
        resolve: turns the handle in a ``Move`` into its context.
    """

    where: Mapping[str, Any]
    rest: Drop | Move
    handover: CheckedMove | None
    resolve: Resolve

    @property
    def fields(self) -> Mapping[str, int]:
        """Projection of the items that it may settle; a move that replaces their headers keeps the trace in them."""
        replaces_headers = self.handover is not None and self.handover.sets_headers
        return FILTER_FIELDS | {"headers": 1} if replaces_headers else FILTER_FIELDS


def make_filter(context: QueueContext[Any], where: Any, rest: Drop | Move, resolve: Resolve) -> ItemFilter:
    """Return a filter, checked as far as that goes without the server."""
    handover = None
    match rest:
        case Move():
            handover = Moves(context, resolve).check(rest)
            if handover.sequence is not None:
                raise ArgumentInvalid("sequence", "a filter moves no item into a sequence; let a handler do it")
        case Drop():
            pass
        case _:
            raise make_unknown_error(rest)
    return ItemFilter(where_filter(where, context.broker.encoding), rest, handover, resolve)


async def check_on_server(context: QueueContext[Any], wanted: ItemFilter) -> None:
    """Let the server check the filter (``find`` of an unused id); raise ``FilterInvalid``."""
    try:
        await find_one(context.broker, {"_id": ObjectId(), **wanted.where}, {"_id": 1})
    except Exception as error:
        if is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise


async def settle_unmatched(claim: BatchClaim, wanted: ItemFilter) -> int:
    """Settle the candidates of a claim that do not match the filter, in one bulk, and return their number.

    They are not reserved, or not any more. Sent again after a lost reply, the bulk does nothing twice: they are gone by
    then. A crash before it leaves them where they are.
    """
    context, handover, total = claim.context, wanted.handover, 0
    for unmarked in (context, replace(context, stage=None)):
        requests = list(_make_statements(unmarked, claim, wanted))
        command = Command("bulk_write", {"requests": requests, "ordered": False}, number_found, resolved=True)
        try:
            total += await retry_until_reply(command)
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


def _make_statements(context: QueueContext[Any], claim: BatchClaim, wanted: ItemFilter) -> Iterator[Statement]:
    """Make one statement for all items with the same update.

    An item with a remembered id is kept as long as the id, and a move that replaces headers keeps the trace of each.
    """
    batch, by = Batch(context.broker.clock), claim.mine["by"]
    groups: dict[str, tuple[Document, list[Any]]] = {}
    for document in claim.candidates.documents:
        facts = _settled_by(document, wanted)
        groups.setdefault(repr(facts), (facts, []))[1].append(document["_id"])
    for facts, ids in groups.values():
        filter = {**claim.eligible_filter(ids), "$nor": [wanted.where]}
        item: Item[Any] = context.raw_item({"q": context.name, "token": claim.token, "by": by, **facts}, claim.now)
        if wanted.handover is not None:
            update = make_move(context, item, batch, wanted.handover).update or {}
            # `by` tells other processes that have read the item ahead that it was claimed.
            yield "UpdateMany", {"filter": filter, "update": {**update, "$set": {**update["$set"], "by": by}}}
        elif (kept := make_commit(context, item, batch).update) is not None:
            yield "UpdateMany", {"filter": filter, "update": kept}
        else:
            yield "DeleteMany", {"filter": filter}


def _settled_by(document: Document, wanted: ItemFilter) -> Document:
    """Return the fields of a document that its settlement depends on."""
    if wanted.handover is None:
        once = document.get("once")
        return {"once": once} if isinstance(once, datetime) else {}
    headers = document.get("headers") if wanted.handover.sets_headers else None
    kept = {"headers": trace_to_keep(headers, {})} if isinstance(headers, Mapping) else {}
    hops = document.get("hops", 0)
    return kept if is_countable(hops) else {**kept, "hops": hops}


async def is_kept(context: QueueContext[Any], wanted: ItemFilter, item: Item[Any]) -> bool:
    """Return whether a reserved item matches (``find``); one that does not is settled."""
    match = await find_one(context.broker, {"_id": item.id, "token": item.token, **wanted.where}, {"_id": 1})
    if match is not None:
        return True
    failed = await apply_outcomes(context, [(item, wanted.rest)], wanted.resolve)
    error = failed.get(id_key(item.id))
    if error is not None and not isinstance(error, ReservationLost):
        raise error
    return False
