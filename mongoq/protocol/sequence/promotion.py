"""Promotion: the next item of a sequence becomes its first, and gets its date, or goes to a worker at once (hand-over).

A worker whose last claim has found nothing settles the first item. Then the next one is due for nobody but this worker,
and its claim would take half of the time. So the transaction that lets it follow also reserves it. Only an item that
was never claimed, has no date to start by and is due is handed over: it has nothing to be found out by a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Document
from mongoq.model.sequence import HAS_PLACE
from mongoq.protocol.command import Command
from mongoq.protocol.perform import perform
from mongoq.protocol.state.context import BrokerContext
from mongoq.protocol.state.taker import Handed, Taker

NEXT_FIELDS = {"ready_from": 1, "priority": 1, "place": 1}
"""Projection of an item that is next in its sequence."""
FIRST_FIELDS = {**NEXT_FIELDS, "when": 1}
"""Projection of the item with the first place, which may be a head."""
LATEST = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
"""Dates of other programs beyond it cannot be decoded."""
MAY_FOLLOW = {"$gte": BEGINNING, "$lte": LATEST, "$not": {"$type": "array"}}
"""Condition on ``ready_from`` of an item that may follow: a date that can be used, and no list of dates."""
OBSTACLES = ("by", "start_by")
"""Fields that keep an item from being handed over: it was claimed before, or may have expired."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """An item that is first in its sequence now.

    Attributes:
        queue: the queue.
        id: the item.
        when: the time from which on it is eligible.
        priority: its priority.
        hand_over: gives it to the worker for which it is reserved; ``None`` for an item that is to be claimed.
    """

    queue: str
    id: Any
    when: datetime
    priority: Any
    hand_over: Callable[[], None] | None = None


def make_promoted(queue: str, document: Document, now: datetime) -> Promoted:
    """Return what becomes of an item that is next in its sequence."""
    return Promoted(queue, document["_id"], max(document["ready_from"], now), document.get("priority"))


def record_promoted(broker: BrokerContext, promoted: Iterable[Promoted]) -> None:
    """Hand items over, and wake the waiters of this process for the others; called after the commit.

    Waiters of other processes hear of them by the change stream.
    """
    for item in promoted:
        if item.hand_over is not None:
            item.hand_over()
            continue
        priorities = [item.priority] if isinstance(item.priority, int) else []
        broker.record_put(item.queue, item.when, *priorities, id=item.id, is_new=False)


async def promote_first(
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
    before = await perform(Command("find_one_and_update", arguments, broker.encoding.read_reply, target="bytes"))
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


def _promoted_fields(now: datetime, marks: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is set in the first item of a sequence: nothing if it is a head."""
    ready_from = "$ready_from"
    is_next = [
        {"$eq": [{"$type": "$when"}, "missing"]},
        {"$eq": [{"$type": ready_from}, "date"]},
        {"$gte": [ready_from, BEGINNING]},
        {"$lte": [ready_from, LATEST]},
    ]
    fields: dict[str, Any] = {
        "when": {"$cond": [{"$and": is_next}, {"$max": [ready_from, now]}, "$when"]},
        "ready_from": {"$cond": [{"$and": is_next}, "$$REMOVE", ready_from]},
    }
    if marks is None:
        return fields
    is_handed_over = {
        "$and": [
            *is_next,
            {"$lte": [ready_from, now]},
            *({"$eq": [{"$type": f"${name}"}, "missing"]} for name in OBSTACLES),
            {"$in": [{"$type": "$attempts"}, ["int", "long"]]},
            {"$eq": ["$attempts", 0]},
        ]
    }
    for name, value in {**marks, "attempts": 1}.items():
        fields[name] = {"$cond": [is_handed_over, {"$literal": value}, fields.get(name, f"${name}")]}
    return fields


def _is_handed_over(before: Document, now: datetime) -> bool:
    """Return whether the update has reserved an item that is next; the server's condition, for the item as it was."""
    attempts = before.get("attempts")
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts:
        return False
    return not any(name in before for name in OBSTACLES) and before["ready_from"] <= now
