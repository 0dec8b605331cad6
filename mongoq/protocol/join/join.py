"""Joins: items of several queues with a value in common become one item as soon as all of them are there.

An item without its partners is *parked* in a queue of the join's own. It is not read again before a partner comes or
its timeout ends. All of it happens in transactions on the control document of the value, its *rendezvous*, so two items
that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import PartnerMissing, PayloadTooLarge
from mongoq.model.encoding.codec import SIZE_LIMIT
from mongoq.model.envelope import join_headers, new_envelope
from mongoq.model.item import (
    LARGE_PAYLOAD_BYTES,
    MAX_HOPS,
    Document,
    Item,
    has_place,
    id_key,
    with_stored,
    without_payloads,
)
from mongoq.model.join_state import JoinState, Place, rendezvous_id
from mongoq.model.log_fields import log_fields
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.command import Command, chunks
from mongoq.protocol.join.match import (
    FOREVER,
    MAX_ARRIVALS,
    MISSED_FIELD,
    Arrival,
    JoinSpec,
    make_plan,
    rendezvous,
)
from mongoq.protocol.perform import perform
from mongoq.protocol.sequence.hold import Letter, hold
from mongoq.protocol.sequence.leave import give_up_places
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.bury import burial_update
from mongoq.protocol.settle.exchange import FenceMiss, PutOff, run_exchange
from mongoq.protocol.settle.settle import retention_update
from mongoq.protocol.settle.settlement import Output
from mongoq.protocol.settle.trail import make_marks
from mongoq.protocol.state.context import QueueContext

logger = logging.getLogger("mongoq.joining")

RESERVATION_FIELDS = dict.fromkeys(("token", "error", "batch", MISSED_FIELD), "")
"""Fields of a reservation, or of an earlier give-up; an item that waits no longer has them."""
PARKED_FIELDS = ("key", "parked")
"""Fields that an item has while it waits for its partners."""
EXPIRED_ITEM_REMEMBER = timedelta(days=7)
"""Time for which a given-up item is remembered, so that its partners are known to be too late."""
MAX_TRANSACTION_ITEMS = 1_000
"""Items of one transaction, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One of the items that are joined.

    Attributes:
        context: queue that it arrived by.
        item: the stored item, in that queue even if it is parked by now.
        where: filter that finds the item as long as this process may take it.
    """

    context: QueueContext[Any]
    item: Item[Any]
    where: Mapping[str, Any]


@dataclass(slots=True)
class JoinTransaction:
    """The writes and results of one transaction.

    Attributes:
        now: time of its start.
        own: statements of single items; each must find one item.
        pairs: joined items to insert.
        members: items that leave for good.
        parked: newly parked items: queue of arrival, priority, end of the wait.
        fates: what happens to items that neither leave for a pair nor wait, by ``id_key``.
        reasons: reasons of the items that go to the error queue.
        promoted: items that are next in the sequences of those that have left.
    """

    now: datetime
    own: list[Statement] = field(default_factory=list)
    pairs: list[Output] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    parked: list[tuple[str, int, datetime]] = field(default_factory=list)
    fates: dict[Any, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    promoted: list[Promoted] = field(default_factory=list)

    def join(self, spec: JoinSpec, members: Sequence[Member], when: datetime) -> None:
        """Make one item of the members; those that do not fit one document go to the error queue."""
        try:
            self.pairs.append(make_pair(spec.pairs, members, now=self.now, when=when))
        except PayloadTooLarge as error:
            if members[0].context.settings.dead is None:
                raise
            for member in members:
                self.bury(member, str(error), error)
        else:
            self.members += members

    def give_up(self, member: Member, reason: str, error: Exception | None = None, *, missed: bool = False) -> None:
        """Send an item without partners to the error queue; raise ``PartnerMissing`` if there is none."""
        if member.context.settings.dead is None:
            raise PartnerMissing(member.item.id, member.item.queue, reason)
        self.bury(member, reason, error, missed=missed)

    def bury(self, member: Member, reason: str, error: Exception | None = None, *, missed: bool = False) -> None:
        """Send an item to the error queue, as if from the queue that it arrived by."""
        context, item = member.context, member.item
        update, marks = burial_update(context, item, reason=reason, error=error, attempts=item.attempts, now=self.now)
        marked = {**marks.on(update), "$unset": {**update["$unset"], "parked": ""}}
        if missed:
            marked["$set"] = {**marked["$set"], MISSED_FIELD: True}
        self.own.append(("UpdateOne", {"filter": member.where, "update": marked}))
        self.reasons.append(reason)
        # A reserved member belongs to this process, which reads its fate; a parked one has no caller here.
        if "token" in member.where:
            self.fates[id_key(member.item.id)] = "dead"


async def join_arrivals(spec: JoinSpec, arrivals: Sequence[Arrival]) -> dict[Any, Exception]:
    """Join items with parked partners and with each other, or park them.

    The items may have come by different queues. An item is put off when its partners are about to arrive in this
    process: items that meet here need not be parked. Returns by ``id_key`` the errors of items that were not settled;
    the error is ``PutOff`` for an item that was put off. A crash leaves each item where it was, or joined, or parked.
    """
    new = [arrival for arrival in arrivals if arrival.turns is None]
    spec.turns.update({arrival.queue for arrival in new})
    turns = dict(spec.turns)
    for arrival in new:
        arrival.turns = turns
    for queue in {arrival.queue for arrival in arrivals}:
        await ensure_ready(spec.by_name[queue])
    failed: dict[Any, Exception] = {}
    first: dict[str, int] = {}
    for number, arrival in enumerate(arrivals):
        first.setdefault(arrival.key, number)
    alike_together = sorted(arrivals, key=lambda arrival: first[arrival.key])
    for chunk in chunks(alike_together, lambda _: 0, most=MAX_TRANSACTION_ITEMS):
        pairs = [(arrival.item, arrival) for arrival in chunk]
        failed |= await run_exchange(spec.sides[0], pairs, partial(_settle_arrivals, spec, failed))
    return failed


async def _settle_arrivals(
    spec: JoinSpec, failed: dict[Any, Exception], entries: Sequence[tuple[Item[Any], Arrival]]
) -> Callable[[], None]:
    """Settle arrivals, inside a transaction; once it is committed, those that were put off are among the failed."""
    arrivals = [arrival for _, arrival in entries]
    broker = spec.parked.broker
    plan = await make_plan(spec, arrivals)
    doing, when = JoinTransaction(broker.clock.now()), broker.clock.stamp()
    for arrival, partner_arrivals in plan.meetings:
        partners = {queue: _partner(spec, queue, one, plan.waiting) for queue, one in partner_arrivals.items()}
        members = [_own(spec, arrival) if queue == arrival.queue else partners[queue] for queue in spec.queues]
        doing.join(spec, members, when)
    for place, arrival in plan.parking.items():
        _park(spec, doing, arrival, place)
    for arrival in plan.late:
        if spec.late == "drop":
            doing.members.append(_own(spec, arrival))
            doing.fates[id_key(arrival.item.id)] = "dropped"
        else:
            partners_text = spec.others_as_text(arrival.queue)
            doing.give_up(_own(spec, arrival), f"it came too late: its partner of {partners_text} was given up before")
    await _write(spec, plan.states.values(), {one.key: one.value for one in arrivals}, doing)
    put_off = {id_key(arrival.item.id): PutOff() for arrival in plan.put_off}
    leaving = []
    for item, _ in entries:
        key, settings = id_key(item.id), spec.by_name[item.queue].settings
        is_dead = doing.fates.get(key) == "dead"
        if is_dead and has_place(item) and settings.holds_sequences and settings.dead is not None:
            letter = Letter(item.id, settings.dead, str(item.sequence), item.stored("place"))
            await hold(broker, item.queue, [letter])
        elif key not in put_off:
            leaving.append(item)
    doing.promoted = await give_up_places(broker, leaving)

    def record() -> None:
        _record_results(spec, doing)
        failed.update(put_off)

    return record


def _own(spec: JoinSpec, arrival: Arrival) -> Member:
    item = arrival.item
    return Member(spec.by_name[arrival.queue], item, {"_id": item.id, "token": item.token})


def _partner(spec: JoinSpec, queue: str, member: Arrival | Place, waiting: Mapping[str, Document]) -> Member:
    """Return a partner as it was in its first queue; a process that gives it up at this moment comes too late."""
    if isinstance(member, Arrival):
        return _own(spec, member)
    context, document = spec.by_name[queue], waiting[member.text]
    parked = document["parked"]
    as_it_came = {**document, "q": context.name, "token": None, "key": parked.get("key")}
    at = parked.get("at")
    item = context.raw_item(as_it_came, at if isinstance(at, datetime) else spec.parked.broker.clock.now())
    return Member(context, item, {"_id": document["_id"], "q": spec.parked.name})


def _park(spec: JoinSpec, doing: JoinTransaction, arrival: Arrival, place: Place) -> None:
    until = FOREVER if spec.timeout is None else doing.now + spec.timeout
    item = arrival.item
    note = {"queue": item.queue, "value": arrival.value, "at": doing.now, "until": until}
    changes = {
        "q": spec.parked.name,
        "key": place.text,
        "when": until,
        "reserved": False,
        "attempts": 0,
        "parked": note if item.key is None else {**note, "key": item.key},
    }
    # Fenced: the item is parked only while this process holds it.
    filter = {"_id": item.id, "token": item.token}
    doing.own.append(("UpdateOne", {"filter": filter, "update": {"$set": changes, "$unset": RESERVATION_FIELDS}}))
    doing.parked.append((item.queue, priority_of(item), until))


async def settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> dict[Any, Exception]:
    """Settle parked items after their timeout, as the join is configured; return errors of the others by ``id_key``.

    A crash leaves each item where it was, or settled. A partner that arrives at the same moment takes the item, or is
    too late.
    """
    context = spec.parked
    await ensure_ready(context)
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=MAX_ARRIVALS):
        failed |= await run_exchange(context, [(item, None) for item in chunk], partial(_settle_expired, spec))
    return failed


async def _settle_expired(spec: JoinSpec, entries: Sequence[tuple[Item[Any], None]]) -> Callable[[], None]:
    """Settle expired parked items, inside a transaction: send them on without partners, or to the error queue."""
    broker, items = spec.parked.broker, [item for item, _ in entries]
    places = [(item, place) for item in items if (place := Place.of(item.key, spec.queues)) is not None]
    documents = await rendezvous(spec, {place.key for _, place in places})
    states = {key: JoinState(key, spec.queues, document) for key, document in documents.items()}
    doing, when = JoinTransaction(broker.clock.now()), broker.clock.stamp()
    values = {}
    # In the order of their places: ``give_up`` counts a place as past only when all places before it are.
    for item, place in sorted(places, key=lambda entry: entry[1].number):
        if place.key in states:
            states[place.key].give_up(place, remembered=spec.late != "wait")
            values[place.key] = _note(item).get("value")
    for item in items:
        # As it was in its first queue; the join may no longer have that queue.
        note = _note(item)
        queue = note["queue"] if isinstance(note.get("queue"), str) else spec.queues[0]
        as_it_came = with_stored(with_stored(item, "q", queue), "key", note.get("key"))
        member = Member(spec.by_name.get(queue, spec.sides[0]), as_it_came, {"_id": item.id, "token": item.token})
        wanted = "no item" if len(spec.queues) == 2 else "not one of each"
        reason, error = f"{wanted} of {spec.others_as_text(queue)} came within {spec.timeout}", None
        if spec.missing == "pass" and queue in spec.queues:
            members = [member if side.name == queue else None for side in spec.sides]
            try:
                doing.pairs.append(make_pair(spec.pairs, members, now=doing.now, when=when))
                doing.members.append(member)
                continue
            # Even alone the item does not fit, because a pair adds fields to it.
            except PayloadTooLarge as large:
                reason, error = str(large), large
        doing.give_up(member, reason, error, missed=spec.late != "wait")
    await _write(spec, states.values(), values, doing)
    return partial(_record_results, spec, doing)


def _note(item: Item[Any]) -> Mapping[str, Any]:
    """Return the note that was written on an item when it was parked."""
    note = item.stored("parked")
    return note if isinstance(note, Mapping) else {}


async def _write(
    spec: JoinSpec, states: Iterable[JoinState], values: Mapping[str, Any], doing: JoinTransaction
) -> None:
    """Write the state of each rendezvous, and all results.

    An empty rendezvous with nothing to remember is deleted, a new one is inserted. A process that writes the same
    document at the same time meets a write conflict, and tries again. Raises ``FenceMiss`` when another process has
    taken an item.
    """
    broker = spec.parked.broker
    requests: list[Statement] = []
    ended_ids: list[str] = []
    new: list[dict[str, Any]] = []
    for meeting in states:
        id = rendezvous_id(spec.name, meeting.key)
        if meeting.done:
            ended_ids += [id] if meeting.stored else []
            continue
        fields = {**meeting.fields(), "value": values.get(meeting.key), "at": doing.now}
        leaves = {"expires": doing.now + EXPIRED_ITEM_REMEMBER} if meeting.empty else {}
        if not meeting.stored:
            new.append({"_id": id, **fields, **leaves})
            continue
        update = {"$set": {**fields, **leaves}, **({} if leaves else {"$unset": {"expires": ""}})}
        requests.append(("UpdateOne", {"filter": {"_id": id}, "update": update}))
    if ended_ids:
        requests.append(("DeleteMany", {"filter": {"_id": {"$in": ended_ids}}}))
    if requests:
        await send_statements(broker, requests)
    expected = len(doing.own) + len(doing.members)
    requests = [*doing.own, *make_leave_statements(doing.members, doing.now)]
    # One count for all statements: a transaction that finds fewer items is aborted as a whole.
    if requests and (await send_statements(broker, requests)) < expected:
        raise FenceMiss
    documents = [*map(broker.encoding.raw, new), *(pair.raw for pair in doing.pairs)]
    for chunk in chunks(documents, lambda document: len(document.raw)):
        await perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))


def _record_results(spec: JoinSpec, transaction: JoinTransaction) -> None:
    """Count the results, log failures, and wake callers in this process that wait for the items."""
    spec.fates.update(transaction.fates)
    if transaction.reasons:
        logger.warning(
            "%d items of the join %r have failed; the last: %s",
            *(len(transaction.reasons), spec.name, transaction.reasons[-1]),
            extra=log_fields(queue=spec.parked.name),
        )
    broker = spec.parked.broker
    record_promoted(broker, transaction.promoted)
    for document in (pair.document for pair in transaction.pairs):
        broker.record_put(document["q"], document["when"], document["priority"], id=document["_id"])
    for queue, number in Counter(member.context.name for member in transaction.members).items():
        broker.counters.add(queue, "commit", number)
    for queue, number in Counter(queue for queue, _, _ in transaction.parked).items():
        broker.counters.add(queue, "move", number)
    for (priority, until), number in Counter((priority, until) for _, priority, until in transaction.parked).items():
        broker.record_put(spec.parked.name, until, priority, number=number)


# --- pairs ---------------------------------------------------------------------------------------


def make_pair(queue: str, members: Sequence[Member | None], *, now: datetime, when: datetime) -> Output:
    """Make one item of the members, in the order of the join's queues; ``None`` stands for a missing member.

    Raises:
        PayloadTooLarge: they do not fit one document.
    """
    there = [member for member in members if member is not None]
    encoding = there[0].context.broker.encoding
    document = new_envelope(
        queue,
        [None if member is None else member.item.stored("payload") for member in members],
        id=ObjectId(),
        when=when,
        priority=min(priority_of(member.item) for member in there),
        headers=join_headers([member.item.headers for member in there]) or None,
        once=None,
    )
    document["hops"] = 1 + max(member.item.hops for member in there)
    inputs = [{"id": member.item.id, "queue": member.item.queue, "hops": member.item.hops} for member in there]
    document["joined"] = {"queue": queue, "inputs": inputs}
    raw = encoding.raw(document)
    if trail := _join_trails(queue, there, now):
        document["trail"] = trail if len(raw.raw) <= LARGE_PAYLOAD_BYTES else without_payloads(trail)
        raw = encoding.raw(document)
    if len(raw.raw) > SIZE_LIMIT:
        raise PayloadTooLarge(f"payload of {len(there)} items joined", len(raw.raw), SIZE_LIMIT)
    return Output(document, raw)


def priority_of(item: Item[Any]) -> int:
    """Return the priority of an item; 0 if it is no int, since other programs may have written anything."""
    priority: Any = item.priority
    return priority if isinstance(priority, int) else 0


def _join_trails(queue: str, members: Sequence[Member], now: datetime) -> list[Any]:
    """Return the trails of all members as one, in the order of the events; empty if none has or gets a trail."""
    stages = [member.context.stage for member in members]
    trails = [member.item.stored("trail") for member in members]
    if not any(stage is not None and stage.trail for stage in stages) and all(trail is None for trail in trails):
        return []
    entries: list[Any] = []
    for member, stored in zip(members, trails, strict=True):
        own = {"trail": stored if isinstance(stored, list) else []}
        marks = make_marks(member.context, member.item, "moved", at=now, to=queue)
        entries += marks.in_document(own).get("trail", own["trail"])

    def settled(entry: Any) -> float:
        at = entry.get("settled") if isinstance(entry, Mapping) else None
        return at.timestamp() if isinstance(at, datetime) else 0.0

    joined = [{**entry, "joined": True} if isinstance(entry, Mapping) else entry for entry in entries]
    return sorted(joined, key=settled)[-MAX_HOPS:]


def make_leave_statements(members: Iterable[Member], now: datetime) -> list[Statement]:
    """Return the statements by which items leave for good.

    They are deleted, or kept as history, or kept as ids to be remembered.
    """
    statements: list[Statement] = []
    groups: dict[Any, tuple[dict[str, Any], list[Any]]] = {}
    for member in members:
        update = retention_update(member.context, member.item, now, {})
        if update is None:
            rest = {name: value for name, value in member.where.items() if name != "_id"}
            groups.setdefault(repr(rest), (rest, []))[1].append(member.where["_id"])
            continue
        update = make_marks(member.context, member.item, "done", at=now).on(update)
        if (
            member.item.stored("parked") is not None
        ):  # it stays in its first queue with its own key, not where it waited
            key = member.item.key
            changes = {**update["$set"], "q": member.item.queue, **({} if key is None else {"key": key})}
            parked = {name: "" for name in PARKED_FIELDS if name not in changes}
            update = {**update, "$set": changes, "$unset": {**update["$unset"], **parked}}
        statements.append(("UpdateOne", {"filter": member.where, "update": update}))
    return statements + [("DeleteMany", {"filter": {"_id": {"$in": ids}, **rest}}) for rest, ids in groups.values()]
