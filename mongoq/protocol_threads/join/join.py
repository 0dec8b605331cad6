# Generated from mongoq/protocol/join/join.py by scripts/unasync.py. Do not edit.
"""Joins: items of several queues with a value in common become one item as soon as all of them are there.

An item without its partners is *parked* in a queue of the join's own. It is not read again before a partner comes or
its timeout ends. All of it happens in transactions on the control document of the value, its *rendezvous*, so two items
that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mongoq.errors import PayloadTooLarge
from mongoq.model.item import (
    Item,
    has_place,
    id_key,
    with_stored,
)
from mongoq.model.join_state import JoinState, Place, rendezvous_id
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.command import Command, chunks
from mongoq.protocol.join.join import (
    EXPIRED_ITEM_REMEMBER,
    MAX_TRANSACTION_ITEMS,
    JoinTransaction,
    Member,
    _note,
    _own,
    _park,
    _partner,
    _record_results,
    make_leave_statements,
    make_pair,
)
from mongoq.protocol.join.match import MAX_ARRIVALS, Arrival, JoinSpec
from mongoq.protocol.sequence.hold import Letter
from mongoq.protocol.settle.exchange import FenceMiss, PutOff
from mongoq.protocol_threads.base.queue_settings import ensure_ready
from mongoq.protocol_threads.base.statements import send_statements
from mongoq.protocol_threads.join.match import make_plan, rendezvous
from mongoq.protocol_threads.perform import perform
from mongoq.protocol_threads.sequence.hold import hold
from mongoq.protocol_threads.sequence.leave import give_up_places
from mongoq.protocol_threads.settle.exchange import run_exchange


def join_arrivals(spec: JoinSpec, arrivals: Sequence[Arrival]) -> dict[Any, Exception]:
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
        ensure_ready(spec.by_name[queue])
    failed: dict[Any, Exception] = {}
    first: dict[str, int] = {}
    for number, arrival in enumerate(arrivals):
        first.setdefault(arrival.key, number)
    alike_together = sorted(arrivals, key=lambda arrival: first[arrival.key])
    for chunk in chunks(alike_together, lambda _: 0, most=MAX_TRANSACTION_ITEMS):
        pairs = [(arrival.item, arrival) for arrival in chunk]
        failed |= run_exchange(spec.sides[0], pairs, partial(_settle_arrivals, spec, failed))
    return failed


def _settle_arrivals(
    spec: JoinSpec, failed: dict[Any, Exception], entries: Sequence[tuple[Item[Any], Arrival]]
) -> Callable[[], None]:
    """Settle arrivals, inside a transaction; once it is committed, those that were put off are among the failed."""
    arrivals = [arrival for _, arrival in entries]
    broker = spec.parked.broker
    plan = make_plan(spec, arrivals)
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
    _write(spec, plan.states.values(), {one.key: one.value for one in arrivals}, doing)
    put_off = {id_key(arrival.item.id): PutOff() for arrival in plan.put_off}
    leaving = []
    for item, _ in entries:
        key, settings = id_key(item.id), spec.by_name[item.queue].settings
        is_dead = doing.fates.get(key) == "dead"
        if is_dead and has_place(item) and settings.holds_sequences and settings.dead is not None:
            letter = Letter(item.id, settings.dead, str(item.sequence), item.stored("place"))
            hold(broker, item.queue, [letter])
        elif key not in put_off:
            leaving.append(item)
    doing.promoted = give_up_places(broker, leaving)

    def record() -> None:
        _record_results(spec, doing)
        failed.update(put_off)

    return record


def settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> dict[Any, Exception]:
    """Settle parked items after their timeout, as the join is configured; return errors of the others by ``id_key``.

    A crash leaves each item where it was, or settled. A partner that arrives at the same moment takes the item, or is
    too late.
    """
    context = spec.parked
    ensure_ready(context)
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=MAX_ARRIVALS):
        failed |= run_exchange(context, [(item, None) for item in chunk], partial(_settle_expired, spec))
    return failed


def _settle_expired(spec: JoinSpec, entries: Sequence[tuple[Item[Any], None]]) -> Callable[[], None]:
    """Settle expired parked items, inside a transaction: send them on without partners, or to the error queue."""
    broker, items = spec.parked.broker, [item for item, _ in entries]
    places = [(item, place) for item in items if (place := Place.of(item.key, spec.queues)) is not None]
    documents = rendezvous(spec, {place.key for _, place in places})
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
    _write(spec, states.values(), values, doing)
    return partial(_record_results, spec, doing)


def _write(spec: JoinSpec, states: Iterable[JoinState], values: Mapping[str, Any], doing: JoinTransaction) -> None:
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
        send_statements(broker, requests)
    expected = len(doing.own) + len(doing.members)
    requests = [*doing.own, *make_leave_statements(doing.members, doing.now)]
    # One count for all statements: a transaction that finds fewer items is aborted as a whole.
    if requests and (send_statements(broker, requests)) < expected:
        raise FenceMiss
    documents = [*map(broker.encoding.raw, new), *(pair.raw for pair in doing.pairs)]
    for chunk in chunks(documents, lambda document: len(document.raw)):
        perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))


# --- pairs ---------------------------------------------------------------------------------------
