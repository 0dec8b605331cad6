"""Joins: items of several queues with a value in common become one item as soon as all of them are there.

An item without its partners is *parked* in a queue of the join's own. It is not read again before a partner comes or
its timeout ends. All of it happens in transactions on the control document of the value, its *rendezvous*, so two items
that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.find import find_few
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.base.statements import Statement, send_statements
from mongoq.core.command import Command, chunks
from mongoq.core.perform import perform
from mongoq.core.settle.exchange import PutOff, run_exchange
from mongoq.core.settle.send import MAX_TRANSACTION_ITEMS, settle_within
from mongoq.core.settle.settle import make_burial, make_commit
from mongoq.core.settle.settlement import Batch, Output, Put, Settlement, Wanted
from mongoq.core.state.context import QueueContext
from mongoq.data.encoding.codec import SIZE_LIMIT
from mongoq.data.envelope import join_headers, new_envelope
from mongoq.data.item import (
    LARGE_PAYLOAD_BYTES,
    MAX_HOPS,
    Document,
    Item,
    id_key,
    with_stored,
    without_payloads,
)
from mongoq.data.join_state import FOREVER, JoinState, Place, rendezvous_id
from mongoq.data.log_fields import log_fields
from mongoq.errors import PartnerMissing, PayloadTooLarge

logger = logging.getLogger("mongoq.joining")

Late = Literal["error", "wait", "drop"]
Missing = Literal["error", "pass"]
MAX_ARRIVALS = 500
"""Items in one claim, and in one transaction that settles expired items."""
MISSED_FIELD = "missed"
"""Field of a dead letter with partners that come late; handed back, the letter looks for them again."""
ARRIVALS_BEFORE_PARKING = 3
"""Arrivals of a queue's items before an item that waits for one is parked: its partner may be in a later arrival."""
MAX_PLACES_READ = 50_000
"""Places that one command reads, at most, once some places are empty."""
RESERVATION_FIELDS = dict.fromkeys(("token", "error", "batch", MISSED_FIELD), "")
"""Fields of a reservation, or of an earlier give-up; an item that waits no longer has them."""
EXPIRED_ITEM_REMEMBER = timedelta(days=7)
"""Time for which a given-up item is remembered, so that its partners are known to be too late."""


@dataclass(frozen=True, eq=False)
class JoinSpec:
    """The settings of a join, and its state in this process.

    Attributes:
        name: pipeline and stage; the rendezvous are stored under this name.
        sides: queues that items arrive by, each with the settings of the stage.
        parked: queue of waiting items.
        pairs: name of the queue of joined items.
        timeout: time that an item waits; ``None`` for ever.
        missing: what happens to an item without partners at the end of that time.
        late: what happens to a partner that arrives later.
        coming: returns whether this process is about to receive more items of a queue.
        fates: what happened to items that were neither joined nor parked, by ``id_key``; kept until it is read.
        turns: times that items of each queue have arrived in this process; it only grows.
    """

    name: str
    sides: tuple[QueueContext[Any], ...]
    parked: QueueContext[Any]
    pairs: str
    timeout: timedelta | None
    missing: Missing
    late: Late
    coming: Callable[[str], bool] = lambda _: False

    fates: dict[Any, str] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)

    @cached_property
    def by_name(self) -> dict[str, QueueContext[Any]]:
        """The queues that items arrive by, by their names."""
        return {side.name: side for side in self.sides}

    @cached_property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues that items arrive by."""
        return tuple(self.by_name)

    def others(self, queue: str) -> tuple[str, ...]:
        """Return the names of the other queues."""
        return tuple(other for other in self.queues if other != queue)

    def others_as_text(self, queue: str) -> str:
        """Return the names of the other queues, as text for a sentence."""
        return ", ".join(map(repr, self.others(queue)))


@dataclass(slots=True, eq=False)
class Arrival:
    """An item that has arrived at a join.

    Attributes:
        item: the item as it was claimed.
        key: key that its value is stored under.
        value: value that the join compares.
        turns: times that items of each queue had arrived when it first arrived; ``None`` before, set by
            ``join_arrivals``.
    """

    item: Item[Any]
    key: str
    value: Any
    turns: Mapping[str, int] | None = None

    @property
    def queue(self) -> str:
        """Name of the queue that it has arrived by."""
        return self.item.queue


@dataclass(slots=True)
class Plan:
    """Decisions for some arrivals: which of them meet, wait, or are too late.

    Attributes:
        states: state of each rendezvous after these decisions, where it must be written.
        meetings: arrivals, and their partners by queue: other arrivals, or the places where partners wait.
        parking: arrivals that are parked, by their places.
        late: arrivals with partners that were given up before.
        put_off: arrivals with partners that are about to arrive.
        waiting: documents of the parked items at the places, by the texts of the places.
    """

    states: dict[str, JoinState]
    meetings: list[tuple[Arrival, dict[str, Arrival | Place]]] = field(default_factory=list)
    parking: dict[Place, Arrival] = field(default_factory=dict)
    late: list[Arrival] = field(default_factory=list)
    put_off: list[Arrival] = field(default_factory=list)
    waiting: dict[str, Document] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One of the items that are joined.

    Attributes:
        context: queue that it arrived by.
        item: the stored item, in that queue even if it is parked by now.
        fence: the condition that finds an item which is parked; ``None``: it is reserved, and has a token.
    """

    context: QueueContext[Any]
    item: Item[Any]
    fence: Mapping[str, Any] | None = None


@dataclass(slots=True)
class JoinTransaction:
    """What becomes of the items of one transaction.

    Attributes:
        spec: the join.
        now: time of its start.
        when: date of the items that are made.
        wanted: the settlements of all items.
        fates: what happens to items that neither leave for a pair nor wait, by ``id_key``.
        reasons: reasons of the items that go to the error queue.
        batches: shared state of the settlements of each queue.
    """

    spec: JoinSpec
    now: datetime
    when: datetime
    wanted: list[Wanted] = field(default_factory=list)
    fates: dict[Any, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    batches: dict[str, Batch] = field(default_factory=dict)

    def batch(self, context: QueueContext[Any]) -> Batch:
        """Return the shared state of the settlements of a queue."""
        return self.batches.setdefault(context.name, Batch(context.broker.clock))

    def join(self, members: Sequence[Member]) -> None:
        """Make one item of the members; those that do not fit one document go to the error queue."""
        try:
            pair = make_pair(self, members)
        except PayloadTooLarge as error:
            if members[0].context.settings.dead is None:
                raise
            for member in members:
                self.bury(member, str(error), error)
        else:
            for place, member in enumerate(members):
                self.leave(member, [] if place else [pair])

    def leave(self, member: Member, outputs: Sequence[Output] = ()) -> None:
        """Let an item leave for good: it is deleted, or kept as history, or its id is remembered."""
        item = member.item
        settlement = make_commit(member.context, item, self.batch(member.context))
        update = settlement.update
        if update is not None and item.stored("parked") is not None:
            # it stays in its first queue with its own key, not where it waited
            changes, unset = {**update["$set"], "q": item.queue}, {**update["$unset"], "parked": ""}
            if item.key is None or "key" in unset:
                unset["key"] = ""
            else:
                changes["key"] = item.key
            update = {**update, "$set": changes, "$unset": unset}
        self.wanted.append((item, replace(settlement, update=update, fence=member.fence, outputs=outputs)))

    def park(self, arrival: Arrival, place: Place) -> None:
        """Let an item wait for its partners; fenced, it is parked only while this process holds it."""
        parked, timeout, item = self.spec.parked, self.spec.timeout, arrival.item
        until = FOREVER if timeout is None else self.now + timeout
        note = {"queue": item.queue, "value": arrival.value, "at": self.now, "until": until}
        changes = {
            "q": parked.name,
            "key": place.text,
            "when": until,
            "reserved": False,
            "attempts": 0,
            "parked": note if item.key is None else {**note, "key": item.key},
        }
        update, put = {"$set": changes, "$unset": RESERVATION_FIELDS}, Put(parked.name, until, is_new=True)
        self.wanted.append((item, Settlement(self.spec.by_name[arrival.queue], update, "move", put=put, parks=True)))

    def bury(self, member: Member, reason: str, error: Exception | None = None, *, missed: bool = False) -> None:
        """Send an item to the error queue, as if from the queue that it arrived by.

        Raises:
            PartnerMissing: there is no error queue.
        """
        context, item = member.context, member.item
        if context.settings.dead is None:
            raise PartnerMissing(item.id, item.queue, reason)
        settlement = make_burial(context, item, self.batch(context), reason=reason, error=error)
        update = settlement.update or {}
        changes = {**update["$set"], MISSED_FIELD: True} if missed else update["$set"]
        update = {**update, "$set": changes, "$unset": {**update["$unset"], "parked": ""}}
        self.wanted.append((item, replace(settlement, update=update, fence=member.fence)))
        self.reasons.append(reason)
        # A reserved member belongs to this process, which reads its fate; a parked one has no caller here.
        if member.fence is None:
            self.fates[id_key(item.id)] = "dead"


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
        failed |= await run_exchange(spec.parked.broker, pairs, partial(_settle_arrivals, spec, failed))
    return failed


async def _settle_arrivals(
    spec: JoinSpec, failed: dict[Any, Exception], entries: Sequence[tuple[Item[Any], Arrival]]
) -> Callable[[], None]:
    """Settle arrivals, inside a transaction; once it is committed, those that were put off are among the failed."""
    arrivals = [arrival for _, arrival in entries]
    clock = spec.parked.broker.clock
    plan = await make_plan(spec, arrivals)
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
    record_written = await _write(doing, plan.states.values(), {one.key: one.value for one in arrivals})

    def record() -> None:
        record_written()
        failed.update((id_key(arrival.item.id), PutOff()) for arrival in plan.put_off)

    return record


def _own(spec: JoinSpec, arrival: Arrival) -> Member:
    return Member(spec.by_name[arrival.queue], arrival.item)


async def settle_expired(spec: JoinSpec, items: Sequence[Item[Any]]) -> dict[Any, Exception]:
    """Settle parked items after their timeout, as the join is configured; return errors of the others by ``id_key``.

    A crash leaves each item where it was, or settled. A partner that arrives at the same moment takes the item, or is
    too late.
    """
    context = spec.parked
    await ensure_ready(context)
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=MAX_ARRIVALS):
        failed |= await run_exchange(context.broker, [(item, None) for item in chunk], partial(_settle_expired, spec))
    return failed


async def _settle_expired(spec: JoinSpec, entries: Sequence[tuple[Item[Any], None]]) -> Callable[[], None]:
    """Settle expired parked items, inside a transaction: send them on without partners, or to the error queue."""
    clock, items = spec.parked.broker.clock, [item for item, _ in entries]
    places = [(item, place) for item in items if (place := Place.of(item.key, spec.queues)) is not None]
    documents = await rendezvous(spec, {place.key for _, place in places})
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
    return await _write(doing, states.values(), values)


def _note(item: Item[Any]) -> Mapping[str, Any]:
    """Return the note that was written on an item when it was parked."""
    note = item.stored("parked")
    return note if isinstance(note, Mapping) else {}


async def _write(doing: JoinTransaction, states: Iterable[JoinState], values: Mapping[str, Any]) -> Callable[[], None]:
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
        await send_statements(broker, requests)
    for chunk in chunks(new, lambda document: len(document.raw)):
        await perform(Command[Any]("insert_many", {"documents": chunk, "ordered": True}))
    record_settled = await settle_within(doing.wanted)

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


def make_pair(doing: JoinTransaction, members: Sequence[Member | None]) -> Output:
    """Make one item of the members, in the order of the join's queues; ``None`` stands for a missing member.

    Raises:
        PayloadTooLarge: they do not fit one document.
    """
    queue, there = doing.spec.pairs, [member for member in members if member is not None]
    encoding = there[0].context.broker.encoding
    document = new_envelope(
        queue,
        [None if member is None else member.item.stored("payload") for member in members],
        id=ObjectId(),
        when=doing.when,
        priority=min(member.item.priority for member in there),
        headers=join_headers([member.item.headers for member in there]) or None,
        once=None,
    )
    document["hops"] = 1 + max(member.item.hops for member in there)
    inputs = [{"id": member.item.id, "queue": member.item.queue, "hops": member.item.hops} for member in there]
    document["joined"] = {"queue": queue, "inputs": inputs}
    raw = encoding.raw(document)
    if trail := _join_trails(doing, there):
        document["trail"] = trail if len(raw.raw) <= LARGE_PAYLOAD_BYTES else without_payloads(trail)
        raw = encoding.raw(document)
    if len(raw.raw) > SIZE_LIMIT:
        raise PayloadTooLarge(f"payload of {len(there)} items joined", len(raw.raw), SIZE_LIMIT)
    return Output(document, raw)


def _join_trails(doing: JoinTransaction, members: Sequence[Member]) -> list[Any]:
    """Return the trails of all members as one, in the order of the events; empty if none has or gets a trail."""
    stages = [member.context.stage for member in members]
    trails = [member.item.stored("trail") for member in members]
    if not any(stage is not None and stage.trail for stage in stages) and all(trail is None for trail in trails):
        return []
    entries: list[Any] = []
    for member, stored in zip(members, trails, strict=True):
        own = {"trail": stored if isinstance(stored, list) else []}
        marks = doing.batch(member.context).marks(member.context, member.item, "moved", doing.spec.pairs)
        entries += marks.trail(own["trail"])

    def settled(entry: Any) -> float:
        at = entry.get("settled") if isinstance(entry, Mapping) else None
        return at.timestamp() if isinstance(at, datetime) else 0.0

    joined = [{**entry, "joined": True} if isinstance(entry, Mapping) else entry for entry in entries]
    return sorted(joined, key=settled)[-MAX_HOPS:]


# --- which arrivals meet: nothing is written here ------------------------------------------------


async def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> dict[str, Document]:
    """Read the stored rendezvous of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    documents = await find_few(spec.parked.broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in documents}


async def make_plan(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Plan:
    """Read the parked partners of arrivals, and return the plan."""
    coming = {queue for queue in spec.queues if spec.coming(queue)}
    documents = await rendezvous(spec, {arrival.key for arrival in arrivals})
    waiting: dict[str, Document] = {}
    empty_places: set[str] = set()
    ahead = 0
    while True:
        plan = _plan_arrivals(spec, arrivals, documents, empty_places)
        partners = (partner for _, partners in plan.meetings for partner in partners.values())
        places = {partner.text: partner for partner in partners if isinstance(partner, Place)}
        wanted = places.keys() - waiting.keys()
        found = (await _find_parked(spec, wanted)) if wanted else []
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
            held = await _find_parked(spec, following, {"_id": 0, "key": 1})
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


async def _find_parked(spec: JoinSpec, texts: set[str], projection: Mapping[str, int] | None = None) -> list[Document]:
    """Find the items that wait at some places (by the index of keys)."""
    filter = {"q": spec.parked.name, "key": {"$in": sorted(texts)}, "when": {"$exists": True}}
    return await find_few(spec.parked.broker, filter, [("key", 1)], len(texts), projection=projection)


def _plan_arrivals(
    spec: JoinSpec, arrivals: Sequence[Arrival], documents: Mapping[str, Document], empty_places: set[str]
) -> Plan:
    keys = {arrival.key for arrival in arrivals}
    plan = Plan({key: JoinState(key, spec.queues, documents.get(key)) for key in keys})
    for arrival in arrivals:
        meeting, queue = plan.states[arrival.key], arrival.queue
        if arrival.item.stored(MISSED_FIELD):
            meeting.record_return(queue)
        places = {other: meeting.first(other, empty_places) for other in spec.others(queue)}
        there = {other: place for other, place in places.items() if place is not None}
        if len(there) == len(places):
            for place in there.values():
                meeting.take(place)
            plan.meetings.append(
                (arrival, {other: plan.parking.pop(partner, partner) for other, partner in there.items()})
            )
        elif spec.late != "wait" and meeting.take_late_mark(queue):
            plan.late.append(arrival)
        else:
            plan.parking[meeting.park(queue)] = arrival
    return plan
