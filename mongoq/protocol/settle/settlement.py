"""Settlements: the update or deletion that settles items, whether it has happened, and what follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import PatchInvalid
from mongoq.model.clock import Clock
from mongoq.model.encoding.codec import SIZE_LIMIT
from mongoq.model.envelope import Document, attempts_of, ids_of
from mongoq.model.item import Item, id_key, reservation_key
from mongoq.model.operators import padding, patch_update
from mongoq.model.process import Event
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.command import MAX_COMMAND_ITEMS
from mongoq.protocol.push.push import due_time
from mongoq.protocol.settle.trail import Ended, Marks, make_marks
from mongoq.protocol.state.context import BrokerContext, QueueContext

Patch = Mapping[str, Mapping[str, Any]]

MAX_PATCHED_BYTES = SIZE_LIMIT + 32 * 1024
"""Bytes of a whole document that a patch may grow to, so that later claims and burials still fit."""


class Put(NamedTuple):
    """The queue that items are put into.

    Attributes:
        queue: its name.
        when: time from which on they are due there.
        priority: their new priority, if any.
        is_new: they come from another queue, or begin anew in this one.
        is_due: False while they wait for others of their sequence.
    """

    queue: str
    when: datetime
    priority: int | None = None
    is_new: bool = False
    is_due: bool = True

    def record(self, broker: BrokerContext, items: Sequence[Item[Any]]) -> None:
        """Count the items, and wake callers of this process that wait for them."""
        if self.is_new:
            broker.counters.add(self.queue, "put", len(items))
        if not self.is_due:
            return
        priorities = [item.priority for item in items] if self.priority is None else [self.priority]
        # By its id, the waiters of this process recognise the event of the change stream: they ask once, not twice.
        id = items[0].id if len(items) == 1 else None
        broker.record_put(self.queue, self.when, *priorities, number=len(items), id=id, is_new=False)


class Output(NamedTuple):
    """A new item that is written in the transaction that settles another one.

    Attributes:
        document: its envelope.
        raw: the envelope in the form to send.
        sequence: the sequence at whose end it takes its place, or ``None``.
    """

    document: Document
    raw: RawBSONDocument
    sequence: str | None = None


@dataclass(slots=True, eq=False)
class Settlement:
    """How items are settled that are treated alike; items under one token share a statement.

    Attributes:
        update: the update that does it; ``None`` deletes the items.
        event: what to count; ``None`` leaves the items reserved.
        patch: the most bytes that a patch in it adds, or ``None`` without one. Patched items share no statement: a
            patch that does not fit one item must not fail another.
        room: the condition that a patch leaves room.
        size: the bytes of the update and the outputs, when they count.
        is_date_given: the caller gave the date. It proves nothing: another holder may have moved the item to it.
        answer: the answer for the caller.
        put: where the items are put; ``None`` when they leave the queues.
        enters: the sequence at whose end the items take their places in the queue of ``put``.
        is_burial: the items become dead letters, and may hold their sequences.
        outputs: what comes of the one item that is settled so, in the same transaction.
    """

    update: Mapping[str, Any] | None
    event: Event | None
    patch: int | None = None
    room: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    is_date_given: bool = False
    answer: Any = None
    put: Put | None = None
    enters: str | None = None
    is_burial: bool = False
    outputs: Sequence[Output] = ()

    @property
    def leaves(self) -> bool:
        """True when the items do not stay in their queue; one that is moved into the same queue takes a new place."""
        if self.update is None:
            return True
        changes = self.update["$set"]
        return "processed" in changes or "q" in changes

    @property
    def is_proof(self) -> bool:
        """True if no item looks settled in this way unless this update did it.

        An item that was released before, or committed within the same millisecond, looks just the same.
        """
        return self.event not in ("release", "commit", "expired")

    def has_happened(self, item: Item[Any], document: Document | None) -> bool | None:
        """Return whether this was done to an item, from its stored document; ``None`` when that is uncertain."""
        if document is None:
            return None
        is_held = document.get("token") == item.token
        if self.update is None:
            return None if is_held else False  # the delete may still come
        changes, unset = self.update["$set"], self.update.get("$unset", {})
        if "processed" in changes:
            if "settled" in document:
                return (document["settled"], document.get("processed")) == (item.token, changes["processed"])
            return None if is_held else False
        if self.event is None:
            return (document["when"] == changes["when"] or None) if is_held else False
        # It went back or on, which the date that this update wrote shows, and the attempts.
        attempts = changes.get("attempts", item.attempts + self.update.get("$inc", {}).get("attempts", 0))
        if self.is_date_given or (attempts == item.attempts and changes["when"] == item.lease_until):
            return None  # another holder that took the item over and released it leaves it in that very state
        key = changes.get("key", None if "key" in unset else item.key)
        place = document.get("q"), document.get("when"), document.get("key"), attempts_of(document)
        wanted = changes.get("q", item.queue), changes["when"], key, attempts
        return ("token" not in document and place == wanted) or None


class Batch:
    """Shared state of one batch: the moment it is sent, settlements that items share, and their marks."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now()
        self.alike: dict[Any, Settlement] = {}
        self.due = cache(partial(due_time, clock))  # of moments in UTC: two folds of one hour are equal
        self._marks: dict[Any, Any] = {}

    def marks(
        self, context: QueueContext[Any], item: Item[Any], ended: Ended, to: str | None = None, **change: Any
    ) -> Marks:
        """Return the marks of an item with this end; see ``make_marks``."""
        return make_marks(context, item, ended, at=self.now, to=to, known=self._marks, **change)


Wanted = tuple[Item[Any], Settlement]


class Group(NamedTuple):
    """The items of one statement: reserved under one token, and settled alike.

    Their ids are kept: to ask each item again after a command takes longer.
    """

    settlement: Settlement
    items: list[Item[Any]]
    ids: list[Any]

    def statement(self) -> Statement:
        """Return the fenced statement that settles the items."""
        return make_statement(self.items[0].token, self.ids, self.settlement.update, self.settlement.room)


def group_by_statement(wanted: Iterable[Wanted]) -> Iterator[Group]:
    """Group items that may share a statement: the same token, and the same update or deletion."""
    groups: dict[Any, tuple[Settlement, list[Item[Any]]]] = {}
    for item, settlement in wanted:
        # Forks of one batch differ only in their outputs, and share the update.
        alike = id_key(item.token), id(settlement.update), settlement.event
        key = alike if settlement.patch is None else id_key(item.id)
        if key in groups:
            groups[key][1].append(item)
        else:
            groups[key] = settlement, [item]
    for settlement, items in groups.values():
        ids = ids_of(items)
        for start in range(0, len(items), MAX_COMMAND_ITEMS):
            end = start + MAX_COMMAND_ITEMS
            yield Group(settlement, items[start:end], ids[start:end])


def make_statement(
    token: ObjectId | None, ids: Sequence[Any], update: Any, room: Mapping[str, Any] | None = None
) -> Statement:
    """Return the fenced statement for items under one token; the driver can retry the statement of a single item."""
    multi = len(ids) > 1
    arguments: dict[str, Any] = {
        "filter": {"_id": {"$in": list(ids)} if multi else ids[0], "token": token, **(room or {})}
    }
    if update is not None:
        arguments["update"] = update
    return ("Delete" if update is None else "Update") + ("Many" if multi else "One"), arguments


def record_settled(context: QueueContext[Any], groups: Iterable[Group]) -> None:
    """Count settled items, and wake the waiters of the queues they go to."""
    events: Counter[Event] = Counter()
    puts: dict[Put, list[Item[Any]]] = {}
    for settlement, items, _ in groups:
        if settlement.event is not None:
            if context.broker.unsettled:
                # The end of a ``reserved()`` block settles the reservations that are still in this set.
                context.broker.unsettled.difference_update(map(reservation_key, items))
            events[settlement.event] += len(items)
        if settlement.put is not None:
            puts.setdefault(settlement.put, []).extend(items)
    for put, put_items in puts.items():
        put.record(context.broker, put_items)
    for event, number in events.items():
        context.count(event, number)


# --- patches -------------------------------------------------------------------------------------


def check_patch(context: QueueContext[Any], patch: Any, *, replaces_payload: bool) -> Patch:
    """Return the operators to send, none without a patch; a patch beside a new payload is refused."""
    if patch is None:
        return {}
    if replaces_payload:
        raise PatchInvalid("patch", "give either payload= or patch=, not both")
    return patch_update(patch, context.broker.encoding)


def merge_patch(context: QueueContext[Any], settlement: Settlement, patch: Patch) -> None:
    """Add a patch to a settlement, and the condition that it leaves room: the item must stay small enough to claim."""
    update = settlement.update
    if not patch or update is None:
        return
    size = max_growth(context, patch)
    whole: dict[str, Any] = {"$bsonSize": "$$ROOT"}
    limit = MAX_PATCHED_BYTES - size
    if "trail" in update["$set"]:  # which makes room
        whole = {"$subtract": [whole, {"$bsonSize": {"trail": "$trail"}}]}
        limit -= context.broker.encoding.size({"trail": update["$set"]["trail"]})
    merged = {operator: {**update.get(operator, {}), **fields} for operator, fields in patch.items()}
    settlement.update = {**update, **merged}
    settlement.patch, settlement.room = size, {"$expr": {"$lte": [whole, limit]}}
    settlement.size = context.broker.encoding.size(settlement.update)


def max_growth(context: QueueContext[Any], patch: Patch) -> int:
    """Return the most bytes that a patch can add."""
    return context.broker.encoding.size(patch) + padding(patch) if patch else 0
