"""Joins: items of several queues with a value in common become one item as soon as all of them are there.

An item without its partners is *parked* in a queue of the join's own. It is not read again before a partner comes or
its timeout ends. All of it happens in transactions on the control document of the value, its *rendezvous*, so two items
that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from mongoq.errors import PartnerMissing, PayloadTooLarge
from mongoq.model.item import Document, Item, has_place, id_key, with_stored
from mongoq.model.join_state import JoinState, Place
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow, chunks
from mongoq.protocol.join.match import Arrival, by_value, count_arrivals, make_plan
from mongoq.protocol.join.pair import MISSED_FIELD, Member, bury_statement, pair, priority_of
from mongoq.protocol.join.spec import (
    FOREVER,
    MAX_ARRIVALS,
    JoinSpec,
    JoinTransaction,
    record_results,
    rendezvous,
    send_results,
    write_states,
)
from mongoq.protocol.sequence.hold import Letter, hold
from mongoq.protocol.sequence.leave import give_up_places
from mongoq.protocol.settle.exchange import Exchange, PutOff, run_exchange

RESERVATION_FIELDS = dict.fromkeys(("token", "error", "batch", MISSED_FIELD), "")
"""Fields of a reservation, or of an earlier give-up; an item that waits no longer has them."""
MAX_TRANSACTION_ITEMS = 1_000
"""Items of one transaction, at most."""


def join_arrivals(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Flow[dict[Any, Exception]]:
    """Join items with parked partners and with each other, or park them.

    The items may have come by different queues. An item is put off when its partners are about to arrive in this
    process: items that meet here need not be parked. Returns by ``id_key`` the errors of items that were not settled;
    the error is ``PutOff`` for an item that was put off. A crash leaves each item where it was, or joined, or parked.
    """
    count_arrivals(spec, arrivals)
    for queue in {arrival.queue for arrival in arrivals}:
        yield from ensure_ready(spec.side(queue))
    failed: dict[Any, Exception] = {}

    def noted(transaction: JoinTransaction) -> None:
        record_results(spec, transaction)
        failed.update((id_key(item.id), PutOff()) for item in transaction.put_off)

    way = Exchange(spec.sides[0], partial(_settle_arrivals, spec), _item_of, noted)
    for chunk in chunks(by_value(arrivals), lambda _: 0, most=MAX_TRANSACTION_ITEMS):
        failed |= yield from run_exchange(way, chunk)
    return failed


def _item_of(arrival: Arrival) -> Item[Any]:
    return arrival.item


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
    doing.put_off += map(_item_of, plan.put_off)
    yield from write_states(spec, plan.states.values(), {one.key: one.value for one in arrivals}, doing)
    yield from send_results(broker, doing)
    staying = {id_key(item.id) for item in doing.put_off}
    settled = [arrival.item for arrival in arrivals if id_key(arrival.item.id) not in staying]
    dead = [item for item in settled if doing.fates.get(id_key(item.id)) == "dead"]
    held = yield from hold_places(spec, dead)
    doing.promoted = yield from give_up_places(broker, [item for item in settled if id_key(item.id) not in held])
    return doing


def hold_places(spec: JoinSpec, buried: Sequence[Item[Any]]) -> Flow[set[Any]]:
    """Let buried arrivals hold the sequences of queues that say so; return their keys."""
    held: set[Any] = set()
    for item in buried:
        context = spec.side(item.queue)
        dead = context.settings.dead
        if has_place(item) and context.settings.holds_sequences and dead is not None:
            letter = Letter(item.id, dead, str(item.sequence), item.stored("place"))
            yield from hold(context.broker, context.name, [letter])
            held.add(id_key(item.id))
    return held


def _join(
    spec: JoinSpec, doing: JoinTransaction, arrival: Arrival, partners: Mapping[str, Member], when: datetime
) -> None:
    members = [_own(spec, arrival) if queue == arrival.queue else partners[queue] for queue in spec.queues]
    try:
        doing.pairs.append(pair(spec.pairs, members, now=doing.now, when=when))
    except PayloadTooLarge as error:
        if members[0].context.settings.dead is None:
            raise
        for member in members:
            doing.bury(bury_statement(member, doing.now, reason=str(error), error=error), str(error))
            # A reserved member belongs to this process, which reads its fate; a parked one has no caller here.
            if "token" in member.where:
                doing.end(member.item, "dead")
    else:
        doing.members += members


def _own(spec: JoinSpec, arrival: Arrival) -> Member:
    item = arrival.item
    return Member(spec.side(arrival.queue), item, {"_id": item.id, "token": item.token})


def _partner(spec: JoinSpec, queue: str, member: Arrival | Place, waiting: Mapping[str, Document]) -> Member:
    """Return a partner as it was in its first queue; a process that gives it up at this moment comes too late."""
    if isinstance(member, Arrival):
        return _own(spec, member)
    context, document = spec.side(queue), waiting[member.text]
    parked = document["parked"]
    as_it_came = {**document, "q": context.name, "token": None, "key": parked.get("key")}
    at = parked.get("at")
    item = context.raw_item(as_it_came, at if isinstance(at, datetime) else spec.parked.broker.clock.now())
    return Member(context, item, {"_id": document["_id"], "q": spec.parked.name})


def _park(spec: JoinSpec, doing: JoinTransaction, arrival: Arrival, place: Place) -> None:
    until = FOREVER if spec.timeout is None else doing.now + spec.timeout
    item = arrival.item
    changes = {
        "q": spec.parked.name,
        "key": place.text,
        "when": until,
        "reserved": False,
        "attempts": 0,
        "parked": {
            "queue": item.queue,
            "value": arrival.value,
            "at": doing.now,
            "until": until,
            **({} if item.key is None else {"key": item.key}),
        },
    }
    # Fenced: the item is parked only while this process holds it.
    filter = {"_id": item.id, "token": item.token}
    doing.own.append(("UpdateOne", {"filter": filter, "update": {"$set": changes, "$unset": RESERVATION_FIELDS}}))
    doing.parked.append((item.queue, priority_of(item), until))


def _settle_late(spec: JoinSpec, doing: JoinTransaction, arrival: Arrival) -> None:
    member = _own(spec, arrival)
    if spec.late == "drop":
        doing.members.append(member)
        doing.end(arrival.item, "dropped")
        return
    reason = f"it came too late: its partner of {spec.others_as_text(arrival.queue)} was given up before"
    if member.context.settings.dead is None:
        raise PartnerMissing(arrival.item.id, arrival.item.queue, reason)
    doing.bury(bury_statement(member, doing.now, reason=reason, error=None), reason)
    doing.end(arrival.item, "dead")


def settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[dict[Any, Exception]]:
    """Settle parked items after their timeout, as the join is configured; return errors of the others by ``id_key``.

    A crash leaves each item where it was, or settled. A partner that arrives at the same moment takes the item, or is
    too late.
    """
    context = spec.parked
    yield from ensure_ready(context)
    way = Exchange(context, partial(_settle_expired, spec), lambda item: item, partial(record_results, spec))
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=MAX_ARRIVALS):
        failed |= yield from run_exchange(way, chunk)
    return failed


def _settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[JoinTransaction]:
    """Settle expired parked items, inside a transaction."""
    broker = spec.parked.broker
    places = [Place.of(item.key, spec.queues) for item in items]
    documents = yield from rendezvous(spec, {place.key for place in places if place is not None})
    states = {key: JoinState(key, spec.queues, document) for key, document in documents.items()}
    doing, when = JoinTransaction(broker.clock.now()), broker.clock.stamp()
    values = {}
    # In the order of their places: ``give_up`` counts a place as past only when all places before it are.
    for item, place in sorted(zip(items, places, strict=True), key=_number):
        if place is not None and place.key in states:
            states[place.key].give_up(place, remembered=spec.late != "wait")
            values[place.key] = _note(item).get("value")
    for item in items:
        _part(spec, doing, item, when)
    yield from write_states(spec, states.values(), values, doing)
    yield from send_results(broker, doing)
    return doing


def _number(entry: tuple[Item[Any], Place | None]) -> int:
    return 0 if entry[1] is None else entry[1].number


def _part(spec: JoinSpec, doing: JoinTransaction, item: Item[Any], when: datetime) -> None:
    """Send one item on without partners, or to the error queue."""
    member = _parking(spec, item)
    queue = member.item.queue
    reason, error = spec.missing_reason(queue), None
    if spec.missing == "pass" and queue in spec.queues:
        members = [member if side.name == queue else None for side in spec.sides]
        try:
            doing.pairs.append(pair(spec.pairs, members, now=doing.now, when=when))
        # Even alone the item does not fit, because a pair adds fields to it.
        except PayloadTooLarge as large:
            reason, error = str(large), large
        else:
            doing.members.append(member)
            return
    if member.context.settings.dead is None:
        raise PartnerMissing(item.id, queue, reason)
    statement = bury_statement(member, doing.now, reason=reason, error=error, missed=spec.late != "wait")
    doing.bury(statement, reason)
    doing.end(item, "dead")


def _parking(spec: JoinSpec, item: Item[Any]) -> Member:
    """Return a parked item as it was in its first queue; the join may no longer have that queue."""
    queue_name = _note(item).get("queue")
    queue = queue_name if isinstance(queue_name, str) else spec.queues[0]
    context = spec.side(queue) if queue in spec.queues else spec.sides[0]
    as_it_came = with_stored(with_stored(item, "q", queue), "key", _note(item).get("key"))
    return Member(context, as_it_came, {"_id": item.id, "token": item.token})


def _note(item: Item[Any]) -> Mapping[str, Any]:
    """Return the note that was written on an item when it was parked."""
    note = item.stored("parked")
    return note if isinstance(note, Mapping) else {}
