# Generated from mongoq/core/join.py by scripts/unasync.py. Do not edit.
"""Joins: items of several queues with a value in common become one item as soon as all of them are there.

An item without its partners is *parked* in a queue of the join's own. It is not read again before a partner comes or
its timeout ends. All of it happens in transactions on the control document of the value, its *rendezvous*, so two items
that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from bson.raw_bson import RawBSONDocument

from mongoq.core.base.statements import Statement
from mongoq.core.command import Command, chunks
from mongoq.core.join import (
    ARRIVALS_BEFORE_PARKING,
    EXPIRED_ITEM_REMEMBER,
    MAX_ARRIVALS,
    MAX_PLACES_READ,
    MISSED_FIELD,
    Arrival,
    JoinSpec,
    JoinTransaction,
    Member,
    Plan,
    _note,
    _own,
    _plan_arrivals,
    logger,
    make_pair,
)
from mongoq.core.settle.exchange import PutOff
from mongoq.core.settle.send import MAX_TRANSACTION_ITEMS
from mongoq.core_threads.base.find import find_few
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.statements import send_statements
from mongoq.core_threads.perform import perform
from mongoq.core_threads.settle.exchange import run_exchange
from mongoq.core_threads.settle.send import settle_within
from mongoq.data.item import (
    Document,
    Item,
    id_key,
    with_stored,
)
from mongoq.data.join_state import JoinState, Place, rendezvous_id
from mongoq.data.log_fields import log_fields
from mongoq.errors import PayloadTooLarge


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
        failed |= run_exchange(spec.parked.broker, pairs, partial(_settle_arrivals, spec, failed))
    return failed


def _settle_arrivals(
    spec: JoinSpec, failed: dict[Any, Exception], entries: Sequence[tuple[Item[Any], Arrival]]
) -> Callable[[], None]:
    """Settle arrivals, inside a transaction; once it is committed, those that were put off are among the failed."""
    arrivals = [arrival for _, arrival in entries]
    clock = spec.parked.broker.clock
    plan = make_plan(spec, arrivals)
    doing = JoinTransaction(spec, clock.now(), clock.stamp())
    for arrival, partners in plan.meetings:
        members = []
        for queue in spec.queues:
            partner = arrival if queue == arrival.queue else partners[queue]
            if isinstance(partner, Arrival):
                members.append(_own(spec, partner))
                continue
            # As it was in its first queue. A process that gives it up at this moment comes too late.
            context, document = spec.by_name[queue], plan.waiting[partner.text]
            parked = document["parked"]
            as_it_came = {**document, "q": queue, "token": None, "key": parked.get("key")}
            at = parked.get("at")
            item = context.raw_item(as_it_came, at if isinstance(at, datetime) else clock.now())
            members.append(Member(context, item, {"q": spec.parked.name}))
        doing.join(members)
    for place, arrival in plan.parking.items():
        doing.park(arrival, place)
    for arrival in plan.late:
        if spec.late == "drop":
            doing.leave(_own(spec, arrival))
            doing.fates[id_key(arrival.item.id)] = "dropped"
        else:
            others = spec.others_as_text(arrival.queue)
            doing.bury(_own(spec, arrival), f"it came too late: its partner of {others} was given up before")
    record_written = _write(doing, plan.states.values(), {one.key: one.value for one in arrivals})

    def record() -> None:
        record_written()
        failed.update((id_key(arrival.item.id), PutOff()) for arrival in plan.put_off)

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
        failed |= run_exchange(context.broker, [(item, None) for item in chunk], partial(_settle_expired, spec))
    return failed


def _settle_expired(spec: JoinSpec, entries: Sequence[tuple[Item[Any], None]]) -> Callable[[], None]:
    """Settle expired parked items, inside a transaction: send them on without partners, or to the error queue."""
    clock, items = spec.parked.broker.clock, [item for item, _ in entries]
    places = [(item, place) for item in items if (place := Place.of(item.key, spec.queues)) is not None]
    documents = rendezvous(spec, {place.key for _, place in places})
    states = {key: JoinState(key, spec.queues, document) for key, document in documents.items()}
    doing = JoinTransaction(spec, clock.now(), clock.stamp())
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
        member = Member(spec.by_name.get(queue, spec.sides[0]), as_it_came)
        wanted = "no item" if len(spec.queues) == 2 else "not one of each"
        reason, error = f"{wanted} of {spec.others_as_text(queue)} came within {spec.timeout}", None
        if spec.missing == "pass" and queue in spec.queues:
            members = [member if side.name == queue else None for side in spec.sides]
            try:
                doing.leave(member, [make_pair(doing, members)])
                continue
            # Even alone the item does not fit, because a pair adds fields to it.
            except PayloadTooLarge as large:
                reason, error = str(large), large
        doing.bury(member, reason, error, missed=spec.late != "wait")
    return _write(doing, states.values(), values)


def _write(doing: JoinTransaction, states: Iterable[JoinState], values: Mapping[str, Any]) -> Callable[[], None]:
    """Write the state of each rendezvous, and settle all items; return the function that records it.

    An empty rendezvous with nothing to remember is deleted, a new one is inserted. A process that writes the same
    document at the same time meets a write conflict, and tries again. Raises ``FenceMiss`` when another process has
    taken an item.
    """
    spec = doing.spec
    broker = spec.parked.broker
    requests: list[Statement] = []
    ended_ids: list[str] = []
    new: list[RawBSONDocument] = []
    for meeting in states:
        id = rendezvous_id(spec.name, meeting.key)
        if meeting.done:
            ended_ids += [id] if meeting.stored else []
            continue
        fields = {**meeting.fields(), "value": values.get(meeting.key), "at": doing.now}
        leaves = {"expires": doing.now + EXPIRED_ITEM_REMEMBER} if meeting.empty else {}
        if not meeting.stored:
            new.append(broker.encoding.raw({"_id": id, **fields, **leaves}))
            continue
        update = {"$set": {**fields, **leaves}, **({} if leaves else {"$unset": {"expires": ""}})}
        requests.append(("UpdateOne", {"filter": {"_id": id}, "update": update}))
    if ended_ids:
        requests.append(("DeleteMany", {"filter": {"_id": {"$in": ended_ids}}}))
    if requests:
        send_statements(broker, requests)
    for chunk in chunks(new, lambda document: len(document.raw)):
        perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))
    record_settled = settle_within(doing.wanted)

    def record() -> None:
        record_settled()
        spec.fates.update(doing.fates)
        if doing.reasons:
            logger.warning(
                "%d items of the join %r have failed; the last: %s",
                *(len(doing.reasons), spec.name, doing.reasons[-1]),
                extra=log_fields(queue=spec.parked.name),
            )

    return record


# --- pairs ---------------------------------------------------------------------------------------


# --- which arrivals meet: nothing is written here ------------------------------------------------


def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> dict[str, Document]:
    """Read the stored rendezvous of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    documents = find_few(spec.parked.broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in documents}


def make_plan(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Plan:
    """Read the parked partners of arrivals, and return the plan."""
    coming = {queue for queue in spec.queues if spec.coming(queue)}
    documents = rendezvous(spec, {arrival.key for arrival in arrivals})
    waiting: dict[str, Document] = {}
    empty_places: set[str] = set()
    ahead = 0
    while True:
        plan = _plan_arrivals(spec, arrivals, documents, empty_places)
        partners = (partner for _, partners in plan.meetings for partner in partners.values())
        places = {partner.text: partner for partner in partners if isinstance(partner, Place)}
        wanted = places.keys() - waiting.keys()
        found = (_find_parked(spec, wanted)) if wanted else []
        waiting |= {document["key"]: document for document in found if isinstance(document.get("parked"), Mapping)}
        missing = [places[text] for text in wanted - waiting.keys()]
        if not missing:
            break
        # A rendezvous may count places of items that were purged: plan again without the empty ones until all items
        # are found. Ever more places in one command: after a purge of the whole queue all of them are empty.
        ahead = min(ahead * 8 + 8, MAX_PLACES_READ)
        behind = (other.text for place in missing for other in plan.states[place.key].following(place, ahead))
        following = set(islice(behind, MAX_PLACES_READ))
        if following:
            held = _find_parked(spec, following, {"_id": 0, "key": 1})
            following -= {document["key"] for document in held}
        empty_places |= following | {place.text for place in missing}
    plan.waiting = waiting
    # Put off arrivals with partners that are about to arrive; nothing is written for one that is alone with its value.
    for place, arrival in reversed(list(plan.parking.items()) if coming else []):
        if arrival.item.stored(MISSED_FIELD):
            continue  # ``record_return`` must count its return once, and an arrival that is put off is planned again
        meeting, turns = plan.states[arrival.key], arrival.turns or {}
        absent = [queue for queue in spec.others(arrival.queue) if meeting.first(queue, empty_places) is None]
        is_patient = all(
            queue in coming and spec.turns[queue] - turns.get(queue, 0) < ARRIVALS_BEFORE_PARKING for queue in absent
        )
        # ``unpark`` succeeds only for the last place of a line: no item is parked after it.
        if is_patient and meeting.unpark(place):
            plan.put_off.append(plan.parking.pop(place))
    settled = [*plan.parking.values(), *plan.late, *(arrival for arrival, _ in plan.meetings)]
    for key in {arrival.key for arrival in plan.put_off} - {arrival.key for arrival in settled}:
        del plan.states[key]
    return plan


def _find_parked(spec: JoinSpec, texts: set[str], projection: Mapping[str, int] | None = None) -> list[Document]:
    """Find the items that wait at some places (by the index of keys)."""
    filter = {"q": spec.parked.name, "key": {"$in": sorted(texts)}, "when": {"$exists": True}}
    return find_few(spec.parked.broker, filter, [("key", 1)], len(texts), projection=projection)
