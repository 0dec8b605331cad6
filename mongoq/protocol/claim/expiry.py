"""Expiry: what becomes of items that were not started in time, and the sweep of those at the head of a queue.

Nothing looks for such items beside the claims (``judge``). A claim that meets one settles the others at the head of the
queue with it, so that a queue full of them is emptied in few commands. An item of a sequence is met when it is the
first one, or when an expired one before it is; it leaves in a transaction, in which the next one follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.model.encoding.ids import new_id
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.item import Document, Item, has_place, id_key
from mongoq.model.sequence import HAS_PLACE, blocked_filter
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.retry import retry_and_report
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.command import PartlyRefused, Refused, Unreadable
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.hold import Letter, hold
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.settle import make_burial, make_unstarted
from mongoq.protocol.settle.settlement import Batch, Settlement
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext

EXPIRED_REASON = "expired"
"""Reason in the origin of a dead letter that was not started in time."""
MAX_SWEEP = 1_000
"""Items at the head of a queue that are checked at once, at most."""
MAX_SEQUENCES = 100
"""Sequences whose expired items are settled in one transaction, at most."""
UNREAD = {"payload": 0, "headers": 0, "error": 0, "trail": 0}
"""Projection of items that are settled unread."""


def is_expired(item: Item[Any], now: datetime) -> bool:
    """Return whether an item that was not started can no longer start; a date of another type never expires."""
    start_by = item.start_by
    return isinstance(start_by, datetime) and start_by <= now


def make_expiry(context: QueueContext[Any], item: Item[Any], batch: Batch, *, claimed: bool) -> Settlement:
    """Return the settlement of an item that was not started in time; the attempt of a claim that found it is none."""
    if context.settings.buries_expired:
        attempts = item.attempts - claimed
        burial = make_burial(context, item, batch, reason=EXPIRED_REASON, error=None, attempts=attempts)
        return replace(burial, event="expired")
    return make_unstarted(context, item, batch, claimed=claimed)


async def settle_expired_head(context: QueueContext[Any]) -> None:
    """Settle the expired items among the first 1,000 of the queue (``find``, ``bulkWrite``).

    They are not reserved for it: as long as ``start_by`` is there, the item was handed out to nobody. Those in
    sequences leave in transactions, with the expired ones behind them, and the next ones follow. As long as items
    follow, the head is read again. A crash leaves them where they are.
    """
    while True:
        try:
            following = await _settle_head(context)
        except (Refused, PartlyRefused):
            if context.stage is None:
                raise
            context = replace(context, stage=None)  # some other program wrote a trail that takes no marks
        else:
            if not following:
                return


async def _settle_head(context: QueueContext[Any]) -> int:
    """Settle the expired items at the head once, and return how many items have followed them."""
    now = context.broker.clock.now()
    start = context.state.claim_hints.start(context.name, now)
    try:
        documents = await find_few(context.broker, start.filter, CLAIM_ORDER, MAX_SWEEP, projection=UNREAD)
    except Unreadable:  # a document of another program: a claim finds and buries it
        return 0
    expired = _select_expired(context, documents, now, new_id())
    alone = [item for item in expired if not has_place(item)]
    placed = [item for item in expired if has_place(item)]
    following = 0
    if alone:
        still = {**eligible(context.name, now), "start_by": {"$lte": now}}
        statements = list(_make_statements(context, alone, still))
        number, _ = await retry_and_report(partial(send_statements, context.broker, statements))
        _record_expired(context, number, now)
    for begin in range(0, len(placed), MAX_SEQUENCES):
        attempt = partial(_settle_placed, context, placed[begin : begin + MAX_SEQUENCES], now)
        number, promoted = await run_atomic(context.broker, attempt)
        _record_expired(context, number, now)
        record_promoted(context.broker, promoted)
        following += len(promoted)
    return following


def _select_expired(
    context: QueueContext[Any], documents: Iterable[Document], now: datetime, token: ObjectId | None
) -> list[Item[Any]]:
    """Return the expired items among documents, under one token, so that they share a settlement."""
    items: list[Item[Any]] = [context.raw_item({**document, "token": token}, now) for document in documents]
    return [item for item in items if is_expired(item, now)]


def _record_expired(context: QueueContext[Any], number: int, now: datetime) -> None:
    context.count("expired", number)
    if number and context.settings.buries_expired and context.settings.dead is not None:
        context.broker.record_put(context.settings.dead, now, number=number)


async def _settle_placed(
    context: QueueContext[Any], heads: Sequence[Item[Any]], now: datetime
) -> tuple[int, list[Promoted]]:
    """Settle expired heads of sequences and the expired items behind them, inside a transaction.

    Returns how many, and the items that have followed. Heads that were settled or started meanwhile are left out.
    """
    ids = [item.id for item in heads]
    still = {"_id": {"$in": ids}, **eligible(context.name, now), "start_by": {"$lte": now}, "place": HAS_PLACE}
    found = await find_few(context.broker, still, [("_id", 1)], len(ids), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in found}
    leaving = [item for item in heads if id_key(item.id) in keys]
    sequences = Counter(str(item.sequence) for item in leaving)
    behind: list[Item[Any]] = []
    holds = context.settings.holds_sequences and context.settings.buries_expired
    for sequence in () if holds else sequences:  # behind a letter that holds its sequence, none leaves
        blocked, most = {**blocked_filter(context.name), "sequence": sequence}, MAX_SWEEP // len(sequences)
        documents = await find_few(context.broker, blocked, [("place", 1)], most, projection=UNREAD)
        behind += _select_expired(context, documents, now, heads[0].token)
    if not leaving:
        return 0, []
    # Read in this transaction, they are as they were: another writer of one makes it try again.
    number = await send_statements(context.broker, list(_make_statements(context, [*leaving, *behind], {})))
    if holds:
        letters = [
            Letter(item.id, str(context.settings.dead), str(item.sequence), item.stored("place")) for item in leaving
        ]
        await hold(context.broker, context.name, letters)
        return number, []
    return number, (await leave(context.broker, context.name, sequences))


def _make_statements(
    context: QueueContext[Any], items: Iterable[Item[Any]], still: Mapping[str, Any]
) -> Iterator[Statement]:
    """Make one statement for all items with the same settlement; each finds only items that ``still`` match."""
    batch, by = Batch(context.broker.clock), str(context.broker.identity)
    groups: dict[int, tuple[Settlement, list[Item[Any]]]] = {}
    for item in items:
        settlement = make_expiry(context, item, batch, claimed=False)
        groups.setdefault(id(settlement), (settlement, []))[1].append(item)
    for settlement, alike in groups.values():
        filter = {"_id": {"$in": [item.id for item in alike]}, **still}
        if settlement.update is None:
            yield "DeleteMany", {"filter": filter}
        else:
            update = settlement.update
            if "by" not in update["$unset"]:  # a stub loses it
                # It tells other processes that have read the item ahead that it was taken.
                update = {**update, "$set": {**update["$set"], "by": by}}
            if any(map(has_place, alike)):
                update = {**update, "$unset": {**update["$unset"], "place": "", "ready_from": ""}}
            yield "UpdateMany", {"filter": filter, "update": update}
