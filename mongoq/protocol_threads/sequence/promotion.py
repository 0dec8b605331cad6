# Generated from mongoq/protocol/sequence/promotion.py by scripts/unasync.py. Do not edit.
"""Promotion: the next item of a sequence becomes its first, and gets its date, or goes to a worker at once (hand-over).

A worker whose last claim has found nothing settles the first item. Then the next one is due for nobody but this worker,
and its claim would take half of the time. So the transaction that lets it follow also reserves it. Only an item that
was never claimed, has no date to start by and is due is handed over: it has nothing to be found out by a claim.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from mongoq.model.sequence import HAS_PLACE
from mongoq.protocol.command import Command
from mongoq.protocol.sequence.promotion import (
    FIRST_FIELDS,
    LATEST,
    Promoted,
    _is_handed_over,
    _promoted_fields,
    make_promoted,
)
from mongoq.protocol.state.context import BrokerContext
from mongoq.protocol.state.taker import Handed, Taker
from mongoq.protocol_threads.perform import perform


def promote_first(
    broker: BrokerContext, queue: str, sequence: str, taker: Taker | None
) -> tuple[Promoted | None, bool]:
    """Promote the item with the first place of a sequence, unless it is a head (``findAndModify``).

    Called in a transaction. Returns the item, and false if another program has written a date that cannot be used.
    """
    now = broker.clock.now()
    marks = None if taker is None else taker.reserve(now)
    arguments: dict[str, Any] = {
        "filter": {"q": queue, "sequence": sequence, "place": HAS_PLACE},
        "update": [{"$set": _promoted_fields(now, marks)}],
        "sort": [("place", 1)],
    }
    if marks is None:
        arguments["projection"] = FIRST_FIELDS
    # Undecoded: an error would keep the item before it from being settled.
    before = perform(Command("find_one_and_update", arguments, broker.encoding.read_reply, target="bytes"))
    if before is None:
        return None, True
    if "when" in before:
        return None, isinstance(before["when"], datetime)
    ready_from = before.get("ready_from")
    if not isinstance(ready_from, datetime) or ready_from > LATEST:
        return None, False
    promoted = make_promoted(queue, before, now)
    if taker is not None and marks is not None and _is_handed_over(before, now):
        return Promoted(queue, promoted.id, now, None, partial(taker.accept, Handed(before, marks, now))), True
    return promoted, True
