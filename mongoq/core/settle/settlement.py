"""Settlements: the update or deletion that settles items, whether it has happened, and what follows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Literal, NamedTuple

from bson.raw_bson import RawBSONDocument

from mongoq.core.base.statements import Statement
from mongoq.core.command import MAX_COMMAND_ITEMS
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.clock import Clock
from mongoq.data.encoding.codec import SIZE_LIMIT
from mongoq.data.envelope import Document, attempts_of, shorten, splice
from mongoq.data.item import (
    LARGE_PAYLOAD_BYTES,
    ClaimedPayload,
    Item,
    id_key,
    is_countable,
    most_hops,
    reservation_key,
    without_payloads,
)
from mongoq.data.operators import padding, patch_update
from mongoq.data.process import Event
from mongoq.data.push_options import due_time
from mongoq.errors import PatchInvalid

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
        context: the queue that the items are reserved from.
        update: the update that does it; ``None`` deletes the items.
        event: what to count; ``None`` leaves the items reserved.
        patch: the most bytes that a patch in it adds, or ``None`` without one. Patched items share no statement: a
            patch that does not fit one item must not fail another.
        room: the condition that a patch leaves room.
        fence: the condition that finds the items, if not their token: those that wait in a join have none.
        size: the bytes of the update and the outputs, when they count.
        is_date_given: the caller gave the date. It proves nothing: another holder may have moved the item to it.
        answer: the answer for the caller.
        put: where the items are put; ``None`` when they leave the queues.
        enters: the sequence at whose end the items take their places in the queue of ``put``.
        is_burial: the items become dead letters, and may hold their sequences.
        parks: the items wait in a join, and may come back to their sequences.
        outputs: what comes of the one item that is settled so, in the same transaction.
    """

    context: QueueContext[Any]
    update: Mapping[str, Any] | None
    event: Event | None
    patch: int | None = None
    room: Mapping[str, Any] | None = None
    fence: Mapping[str, Any] | None = None
    size: int = 0
    is_date_given: bool = False
    answer: Any = None
    put: Put | None = None
    enters: str | None = None
    is_burial: bool = False
    parks: bool = False
    outputs: Sequence[Output] = ()

    @property
    def leaves(self) -> bool:
        """True when the items do not stay in their queue; one that is moved into the same queue takes a new place."""
        if self.update is None:
            return True
        changes = self.update["$set"]
        return "processed" in changes or "q" in changes

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
        if "token" in document or place != wanted:
            return None
        # A push of the same key may have put this document in the item's place.
        is_new = not attempts and item.key is not None and (place[0], place[2]) == (item.queue, item.key)
        return None if is_new else True


# --- marks: traces of a pipeline's stage on the items that it settles ----------------------------


Ended = Literal["moved", "done", "dead"]
MAX_BY_BYTES = 128
MAX_TRAIL_BYTES = 32 * 1024
"""More than a trail takes that has no payloads."""
EMPTY_TRAIL: list[Any] = []


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Fields that a stage adds to items as it settles them; items with equal fields share an object.

    Attributes:
        operators: operators of the update other than ``$set``.
        changes: fields of ``$set``.
        size: maximum bytes of both.
    """

    operators: Mapping[str, Mapping[str, Any]]
    changes: Mapping[str, Any]
    size: int = 0

    def on(self, update: dict[str, Any]) -> dict[str, Any]:
        """Return the update with the marks added."""
        changes = {"$set": {**update["$set"], **self.changes}} if self.changes else {}
        return {**update, **self.operators, **changes}

    def trail(self, stored: Any) -> Any:
        """Return the trail of a new document: that of an item, with what these marks append to it."""
        appended = self.operators.get("$push", {}).get("trail")
        if appended is None:
            return self.changes.get("trail", stored)
        return [*stored, *appended["$each"]][appended["$slice"] :]


NO_MARKS = Marks({}, {})
ANOTHER_HOP, FIRST_HOP = Marks({"$inc": {"hops": 1}}, {}), Marks({}, {"hops": 1})


class Batch:
    """Shared state of one batch: the moment it is sent, settlements that items share, and their marks."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now()
        self.alike: dict[Any, Settlement] = {}
        self.due = cache(partial(due_time, clock))  # of moments in UTC: two folds of one hour are equal
        self._marks: dict[Any, Any] = {}

    def marks(
        self,
        context: QueueContext[Any],
        item: Item[Any],
        ended: Ended,
        to: str | None = None,
        *,
        payload: bytes | None = None,
        added: int = 0,
        attempts: int | None = None,
    ) -> Marks:
        """Return the marks of an item.

        A handle without a stage counts hops. It writes no trail, but clears one that leaves no room for a large
        payload.

        Args:
            context: the queue that it was claimed from.
            item: as it was claimed.
            ended: how it leaves the queue.
            to: the queue that it goes to.
            payload: its new payload, as ``{"payload": payload}`` in BSON.
            added: the most bytes that a patch adds to the present payload.
            attempts: the attempts that count, if not all.
        """
        stage, hop = context.stage, NO_MARKS
        if ended == "moved":  # the next visit of a queue is another delivery
            origin = item.stored("origin") if stage is None and item.queue != to else None
            if not (isinstance(origin, Mapping) and origin.get("queue") == to):  # a letter sent back is the same one
                hop = ANOTHER_HOP if is_countable(item.stored("hops", 0)) else FIRST_HOP
        payload_bytes = 0 if payload is None else len(payload)
        if added:
            payload_bytes = _claimed_payload(context, item).size + added
        is_large = payload_bytes > LARGE_PAYLOAD_BYTES  # it leaves no room for other payloads in the trail
        if stage is None and not is_large:
            return hop
        trail = item.stored("trail", EMPTY_TRAIL)
        has_payloads = isinstance(trail, list) and any("payload" in each for each in trail if isinstance(each, Mapping))
        cleared = without_payloads(trail) if is_large and has_payloads else None
        if stage is None:
            return hop if cleared is None else Marks(hop.operators, {**hop.changes, "trail": cleared}, MAX_TRAIL_BYTES)
        if stage.trail and not isinstance(trail, list):
            cleared = []  # another program wrote it, and the server would not append to it
        counted = item.attempts if attempts is None else attempts
        key = stage, ended, to, hop, stage.trail and (item.read_at, item.by, counted)
        is_shared = cleared is None and not stage.keeps
        if is_shared and key in self._marks:
            return self._marks[key]  # type: ignore[no-any-return]
        operators, changes = dict(hop.operators), dict(hop.changes)
        size = 0 if cleared is None else MAX_TRAIL_BYTES
        if stage.trail:
            keeps = stage.keeps and item.stored("payload", self._marks) is not self._marks  # or settled unseen
            own = _claimed_payload(context, item).wrapped if keeps and not is_large else None
            is_left_out = keeps and own is None
            bare = self._marks.get(("entry", *key, is_left_out))
            if bare is None:
                fields = {
                    "queue": context.name,
                    "stage": stage.name,
                    "by": shorten(str(item.by), MAX_BY_BYTES),
                    "taken": item.read_at,
                    "settled": self.now,
                    "attempts": counted,
                    "ended": ended,
                    **({} if to is None else {"to": to}),
                    **({"large": True} if is_left_out else {}),
                }
                bare = self._marks["entry", *key, is_left_out] = bytes(context.broker.encoding.raw(fields).raw)
            entry = context.broker.encoding.of_bytes(bare if own is None else splice(bare, own))
            most = most_hops(bare)
            size += len(entry.raw)
            if cleared is None:
                operators["$push"] = {"trail": {"$each": [entry], "$slice": -most}}
            else:
                changes["trail"] = [*cleared, entry][-most:]
        elif cleared is not None:
            changes["trail"] = cleared
        marks = Marks(operators, changes, size)
        if is_shared:
            self._marks[key] = marks
        return marks


def _claimed_payload(context: QueueContext[Any], item: Item[Any]) -> ClaimedPayload:
    return item.kept or context.as_claimed(item.stored("payload"))


# --- statements ----------------------------------------------------------------------------------


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
        fence = self.settlement.fence or {"token": self.items[0].token}
        return make_statement({**fence, **(self.settlement.room or {})}, self.ids, self.settlement.update)


def group_by_statement(wanted: Iterable[Wanted]) -> Iterator[Group]:
    """Group items that may share a statement: the same token, and the same update or deletion."""
    groups: dict[Any, tuple[Settlement, list[Item[Any]]]] = {}
    alike: dict[Any, Settlement] = {}
    for item, settlement in wanted:
        first = alike.get(settlement)
        if first is None:  # forks of one batch differ only in their outputs, and share the update
            facts = settlement.context, settlement.update, settlement.room, settlement.fence
            first = alike[settlement] = alike.setdefault((settlement.event, *map(id, facts)), settlement)
        key = (id_key(item.token), first) if settlement.patch is None else id_key(item.id)
        if key in groups:
            groups[key][1].append(item)
        else:
            groups[key] = settlement, [item]
    for settlement, items in groups.values():
        ids = [item.id for item in items]
        for start in range(0, len(items), MAX_COMMAND_ITEMS):
            end = start + MAX_COMMAND_ITEMS
            yield Group(settlement, items[start:end], ids[start:end])


def make_statement(fence: Mapping[str, Any], ids: Sequence[Any], update: Any) -> Statement:
    """Return the statement for items behind one fence; the driver can retry the statement of a single item."""
    multi = len(ids) > 1
    arguments: dict[str, Any] = {"filter": {"_id": {"$in": list(ids)} if multi else ids[0], **fence}}
    if update is not None:
        arguments["update"] = update
    return ("Delete" if update is None else "Update") + ("Many" if multi else "One"), arguments


def record_settled(groups: Iterable[Group]) -> None:
    """Count settled items, and wake the waiters of the queues they go to."""
    puts: dict[Put, tuple[BrokerContext, list[Item[Any]]]] = {}
    for settlement, items, _ in groups:
        context = settlement.context
        if settlement.event is not None:
            if context.broker.unsettled:
                # The end of a ``reserved()`` block settles the reservations that are still in this set.
                context.broker.unsettled.difference_update(map(reservation_key, items))
            context.count(settlement.event, len(items))
        if settlement.put is not None:
            puts.setdefault(settlement.put, (context.broker, []))[1].extend(items)
    for put, (broker, put_items) in puts.items():
        put.record(broker, put_items)


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
