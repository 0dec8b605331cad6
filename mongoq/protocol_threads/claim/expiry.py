# Generated from mongoq/protocol/claim/expiry.py by scripts/unasync.py. Do not edit.
"""Expiry: what becomes of items that were not started in time, and the sweep of those at the head of a queue.

Nothing looks for such items beside the claims (``judge``). A claim that meets one settles the others at the head of the
queue with it, so that a queue full of them is emptied in few commands. An item of a sequence is met when it is the
first one, or when an expired one before it is; it leaves in a transaction, in which the next one follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from mongoq.model.encoding.ids import new_id
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.item import Item, has_place, id_key
from mongoq.model.sequence import HAS_PLACE, blocked_filter
from mongoq.protocol.claim.expiry import (
    MAX_SEQUENCES,
    MAX_SWEEP,
    UNREAD,
    _make_statements,
    _record_expired,
    _select_expired,
)
from mongoq.protocol.command import PartlyRefused, Refused, Unreadable
from mongoq.protocol.sequence.hold import Letter
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import find_few
from mongoq.protocol_threads.base.retry import retry_and_report
from mongoq.protocol_threads.base.statements import send_statements
from mongoq.protocol_threads.sequence.control import run_atomic
from mongoq.protocol_threads.sequence.hold import hold
from mongoq.protocol_threads.sequence.leave import leave


def settle_expired_head(context: QueueContext[Any]) -> None:
    """Settle the expired items among the first 1,000 of the queue (``find``, ``bulkWrite``).

    They are not reserved for it: as long as ``start_by`` is there, the item was handed out to nobody. Those in
    sequences leave in transactions, with the expired ones behind them, and the next ones follow. As long as items
    follow, the head is read again. A crash leaves them where they are.
    """
    while True:
        try:
            following = _settle_head(context)
        except (Refused, PartlyRefused):
            if context.stage is None:
                raise
            context = replace(context, stage=None)  # some other program wrote a trail that takes no marks
        else:
            if not following:
                return


def _settle_head(context: QueueContext[Any]) -> int:
    """Settle the expired items at the head once, and return how many items have followed them."""
    now = context.broker.clock.now()
    start = context.state.claim_hints.start(context.name, now)
    try:
        documents = find_few(context.broker, start.filter, CLAIM_ORDER, MAX_SWEEP, projection=UNREAD)
    except Unreadable:  # a document of another program: a claim finds and buries it
        return 0
    expired = _select_expired(context, documents, now, new_id())
    alone = [item for item in expired if not has_place(item)]
    placed = [item for item in expired if has_place(item)]
    following = 0
    if alone:
        still = {**eligible(context.name, now), "start_by": {"$lte": now}}
        statements = list(_make_statements(context, alone, still))
        number, _ = retry_and_report(partial(send_statements, context.broker, statements))
        _record_expired(context, number, now)
    for begin in range(0, len(placed), MAX_SEQUENCES):
        attempt = partial(_settle_placed, context, placed[begin : begin + MAX_SEQUENCES], now)
        number, promoted = run_atomic(context.broker, attempt)
        _record_expired(context, number, now)
        record_promoted(context.broker, promoted)
        following += len(promoted)
    return following


def _settle_placed(context: QueueContext[Any], heads: Sequence[Item[Any]], now: datetime) -> tuple[int, list[Promoted]]:
    """Settle expired heads of sequences and the expired items behind them, inside a transaction.

    Returns how many, and the items that have followed. Heads that were settled or started meanwhile are left out.
    """
    ids = [item.id for item in heads]
    still = {"_id": {"$in": ids}, **eligible(context.name, now), "start_by": {"$lte": now}, "place": HAS_PLACE}
    found = find_few(context.broker, still, [("_id", 1)], len(ids), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in found}
    leaving = [item for item in heads if id_key(item.id) in keys]
    sequences = Counter(str(item.sequence) for item in leaving)
    behind: list[Item[Any]] = []
    holds = context.settings.holds_sequences and context.settings.buries_expired
    for sequence in () if holds else sequences:  # behind a letter that holds its sequence, none leaves
        blocked, most = {**blocked_filter(context.name), "sequence": sequence}, MAX_SWEEP // len(sequences)
        documents = find_few(context.broker, blocked, [("place", 1)], most, projection=UNREAD)
        behind += _select_expired(context, documents, now, heads[0].token)
    if not leaving:
        return 0, []
    # Read in this transaction, they are as they were: another writer of one makes it try again.
    number = send_statements(context.broker, list(_make_statements(context, [*leaving, *behind], {})))
    if holds:
        letters = [
            Letter(item.id, str(context.settings.dead), str(item.sequence), item.stored("place")) for item in leaving
        ]
        hold(context.broker, context.name, letters)
        return number, []
    return number, (leave(context.broker, context.name, sequences))
