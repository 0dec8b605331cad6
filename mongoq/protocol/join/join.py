"""Joins: items of several queues with a value in common become one item as soon as all of them are there.

An item without its partners is *parked* in a queue of the join's own. It is not read again before a partner comes or
its timeout ends. All of it happens in transactions on the control document of the value, its *rendezvous*, so two items
that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mongoq.errors import PartnerMissing, PayloadTooLarge
from mongoq.model.item import Document, Item, has_place, id_key, with_stored
from mongoq.model.join_state import JoinState, Place, rendezvous_id
from mongoq.model.log_fields import log_fields
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.flow import Command, Flow, chunks
from mongoq.protocol.join.match import Arrival, make_plan
from mongoq.protocol.join.pair import (
    MISSED_FIELD,
    Member,
    Pair,
    bury_statement,
    make_leave_statements,
    make_pair,
    priority_of,
)
from mongoq.protocol.join.spec import FOREVER, MAX_ARRIVALS, JoinSpec, rendezvous
from mongoq.protocol.sequence.hold import Letter, hold
from mongoq.protocol.sequence.leave import give_up_places
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.exchange import Exchange, FenceMiss, PutOff, run_exchange

logger = logging.getLogger("mongoq.joining")

RESERVATION_FIELDS = dict.fromkeys(("token", "error", "batch", MISSED_FIELD), "")
"""Fields of a reservation, or of an earlier give-up; an item that waits no longer has them."""
EXPIRED_ITEM_REMEMBER = timedelta(days=7)
"""Time for which a given-up item is remembered, so that its partners are known to be too late."""
MAX_TRANSACTION_ITEMS = 1_000
"""Items of one transaction, at most."""


@dataclass(slots=True)
class JoinTransaction:
    """The writes and results of one transaction.

    Attributes:
        now: time of its start.
        own: statements of single items; each must find one item.
        pairs: joined items to insert.
        members: items that leave for good.
        parked: newly parked items: queue of arrival, priority, end of the wait.
        put_off: items that stay as they are and arrive again in a moment.
        fates: what happens to items that neither leave for a pair nor wait, by ``id_key``.
        reasons: reasons of the items that go to the error queue.
        promoted: items that are next in the sequences of those that have left.
    """

    now: datetime
    own: list[Statement] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    parked: list[tuple[str, int, datetime]] = field(default_factory=list)
    put_off: list[Item[Any]] = field(default_factory=list)
    fates: dict[Any, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    promoted: list[Promoted] = field(default_factory=list)

    def bury(self, member: Member, reason: str, error: Exception | None = None, *, missed: bool = False) -> None:
        """Send an item to the error queue."""
        self.own.append(bury_statement(member, self.now, reason=reason, error=error, missed=missed))
        self.reasons.append(reason)
        # A reserved member belongs to this process, which reads its fate; a parked one has no caller here.
        if "token" in member.where:
            self.fates[id_key(member.item.id)] = "dead"


def join_arrivals(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Flow[dict[Any, Exception]]:
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
        yield from ensure_ready(spec.by_name[queue])
    failed: dict[Any, Exception] = {}

    def on_done(transaction: JoinTransaction) -> None:
        _record_results(spec, transaction)
        failed.update((id_key(item.id), PutOff()) for item in transaction.put_off)

    way = Exchange(spec.sides[0], partial(_settle_arrivals, spec), lambda arrival: arrival.item, on_done)
    first: dict[str, int] = {}
    for number, arrival in enumerate(arrivals):
        first.setdefault(arrival.key, number)
    alike_together = sorted(arrivals, key=lambda arrival: first[arrival.key])
    for chunk in chunks(alike_together, lambda _: 0, most=MAX_TRANSACTION_ITEMS):
        failed |= yield from run_exchange(way, chunk)
    return failed


def _settle_arrivals(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Flow[JoinTransaction]:
    """Settle arrivals, inside a transaction."""
    broker = spec.parked.broker
    plan = yield from make_plan(spec, arrivals)
    doing, when = JoinTransaction(broker.clock.now()), broker.clock.stamp()
    for arrival, partner_arrivals in plan.meetings:
        partners = {queue: _partner(spec, queue, one, plan.waiting) for queue, one in partner_arrivals.items()}
        _join(spec, doing, arrival, partners, when)
    for place, arrival in plan.parking.items():
        _park(spec, doing, arrival, place)
    for arrival in plan.late:
        _settle_late(spec, doing, arrival)
    doing.put_off = [arrival.item for arrival in plan.put_off]
    yield from _write(spec, plan.states.values(), {one.key: one.value for one in arrivals}, doing)
    staying = {id_key(item.id) for item in doing.put_off}
    settled = [arrival.item for arrival in arrivals if id_key(arrival.item.id) not in staying]
    leaving = []
    for item in settled:
        settings = spec.by_name[item.queue].settings
        is_dead = doing.fates.get(id_key(item.id)) == "dead"
        if is_dead and has_place(item) and settings.holds_sequences and settings.dead is not None:
            letter = Letter(item.id, settings.dead, str(item.sequence), item.stored("place"))
            yield from hold(broker, item.queue, [letter])
        else:
            leaving.append(item)
    doing.promoted = yield from give_up_places(broker, leaving)
    return doing


def _join(
    spec: JoinSpec, doing: JoinTransaction, arrival: Arrival, partners: Mapping[str, Member], when: datetime
) -> None:
    members = [_own(spec, arrival) if queue == arrival.queue else partners[queue] for queue in spec.queues]
    try:
        doing.pairs.append(make_pair(spec.pairs, members, now=doing.now, when=when))
    except PayloadTooLarge as error:
        if members[0].context.settings.dead is None:
            raise
        for member in members:
            doing.bury(member, str(error), error)
    else:
        doing.members += members


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


def _settle_late(spec: JoinSpec, doing: JoinTransaction, arrival: Arrival) -> None:
    member = _own(spec, arrival)
    if spec.late == "drop":
        doing.members.append(member)
        doing.fates[id_key(arrival.item.id)] = "dropped"
        return
    reason = f"it came too late: its partner of {spec.others_as_text(arrival.queue)} was given up before"
    if member.context.settings.dead is None:
        raise PartnerMissing(arrival.item.id, arrival.item.queue, reason)
    doing.bury(member, reason)


def settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[dict[Any, Exception]]:
    """Settle parked items after their timeout, as the join is configured; return errors of the others by ``id_key``.

    A crash leaves each item where it was, or settled. A partner that arrives at the same moment takes the item, or is
    too late.
    """
    context = spec.parked
    yield from ensure_ready(context)
    way = Exchange(context, partial(_settle_expired, spec), lambda item: item, partial(_record_results, spec))
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=MAX_ARRIVALS):
        failed |= yield from run_exchange(way, chunk)
    return failed


def _settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[JoinTransaction]:
    """Settle expired parked items, inside a transaction."""
    broker = spec.parked.broker
    places = [(item, place) for item in items if (place := Place.of(item.key, spec.queues)) is not None]
    documents = yield from rendezvous(spec, {place.key for _, place in places})
    states = {key: JoinState(key, spec.queues, document) for key, document in documents.items()}
    doing, when = JoinTransaction(broker.clock.now()), broker.clock.stamp()
    values = {}
    # In the order of their places: ``give_up`` counts a place as past only when all places before it are.
    for item, place in sorted(places, key=lambda entry: entry[1].number):
        if place.key in states:
            states[place.key].give_up(place, remembered=spec.late != "wait")
            values[place.key] = _note(item).get("value")
    for item in items:
        _settle_alone(spec, doing, item, when)
    yield from _write(spec, states.values(), values, doing)
    return doing


def _settle_alone(spec: JoinSpec, doing: JoinTransaction, item: Item[Any], when: datetime) -> None:
    """Send one parked item on without partners, or to the error queue."""
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
        # Even alone the item does not fit, because a pair adds fields to it.
        except PayloadTooLarge as large:
            reason, error = str(large), large
        else:
            doing.members.append(member)
            return
    if member.context.settings.dead is None:
        raise PartnerMissing(item.id, queue, reason)
    doing.bury(member, reason, error, missed=spec.late != "wait")


def _note(item: Item[Any]) -> Mapping[str, Any]:
    """Return the note that was written on an item when it was parked."""
    note = item.stored("parked")
    return note if isinstance(note, Mapping) else {}


def _write(
    spec: JoinSpec, states: Iterable[JoinState], values: Mapping[str, Any], doing: JoinTransaction
) -> Flow[None]:
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
        yield from send_statements(broker, requests)
    expected = len(doing.own) + len(doing.members)
    requests = [*doing.own, *make_leave_statements(doing.members, doing.now)]
    # One count for all statements: a transaction that finds fewer items is aborted as a whole.
    if requests and (yield from send_statements(broker, requests)) < expected:
        raise FenceMiss
    documents = [*map(broker.encoding.raw, new), *(pair.raw for pair in doing.pairs)]
    for chunk in chunks(documents, lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})


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
