"""Joins: items of several queues that have a value in common, made one item as soon as all of them are there.

An item whose partners are not there yet is *parked* in a queue of the join's own, and is not looked at again before one
of them comes, or its time is up. All of it happens in transactions on the control document of the value, its
*rendezvous*, so that two that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, Literal

from bson import ObjectId

from mongoq.errors import PartnerMissing, PayloadTooLarge
from mongoq.model.item import Document, Item
from mongoq.model.rendezvous import Place, Rendezvous, rendezvous_id
from mongoq.protocol.batch import chunks
from mongoq.protocol.bulk import Statement, found_by
from mongoq.protocol.context import BrokerContext, QueueContext
from mongoq.protocol.exchange import Exchange, Short, exchanged
from mongoq.protocol.lookup import find_few
from mongoq.protocol.outputs import noted
from mongoq.protocol.pairing import Member, Pair, buried, leaving, pair
from mongoq.protocol.request import Command, Flow
from mongoq.protocol.settings import prepared

__all__ = ["FOREVER", "Arrival", "JoinSpec", "Late", "Missing", "arrived", "given_up"]

Late = Literal["error", "wait", "drop"]
Missing = Literal["error", "pass"]
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""Until when items wait whose join has no timeout."""
REMEMBERED = timedelta(days=7)
"""How long it is known that an item was given up, and its partners come too late."""
ARRIVALS = 500
"""Items of one transaction."""
AHEAD = 50_000
"""Places that are looked at in one command once some of them are empty."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinSpec:
    """What a join goes by.

    Attributes:
        name: what its rendezvous are known by: the pipeline and the stage.
        sides: the queues that items come by, each with the settings of the stage.
        parked: the queue of those that wait.
        pairs: the queue of those that were joined.
        timeout: how long one waits; ``None`` for ever.
        missing: what becomes of one whose partners have not come by then.
        late: what becomes of a partner that comes later.
    """

    name: str
    sides: tuple[QueueContext[Any], ...]
    parked: QueueContext[Any]
    pairs: str
    timeout: timedelta | None
    missing: Missing
    late: Late

    @property
    def queues(self) -> list[str]:
        """The names of these queues."""
        return [side.name for side in self.sides]

    def others(self, queue: str) -> list[str]:
        """Return the names of the other queues."""
        return [other for other in self.queues if other != queue]

    def named(self, queue: str) -> str:
        """Name the other queues in a sentence."""
        return ", ".join(map(repr, self.others(queue)))

    def side(self, queue: str) -> QueueContext[Any]:
        """Return one of the queues by its name."""
        return next(side for side in self.sides if side.name == queue)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """An item that has come.

    Attributes:
        item: as it was claimed.
        key: what its value is known by.
        value: that value.
    """

    item: Item[Any]
    key: str
    value: Any

    @property
    def queue(self) -> str:
        """The queue that it has come by."""
        return self.item.queue


def arrived(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Flow[dict[Any, Exception]]:
    """Join items with those that wait for them, or park them; returns by ``id_key`` the errors of the others.

    All of them have come by the same queue. A crash leaves each where it was, or joined, or parked.
    """
    context = spec.side(arrivals[0].queue)
    yield from prepared(context)
    way = Exchange(context, partial(_met, spec, context), _item_of, partial(_noted, context))
    failed: dict[Any, Exception] = {}
    for chunk in chunks(arrivals, lambda _: 0, most=ARRIVALS):
        failed |= yield from exchanged(way, chunk)
    return failed


def _item_of(arrival: Arrival) -> Item[Any]:
    return arrival.item


def given_up(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[dict[Any, Exception]]:
    """Settle parked items whose time is up, as the join says; returns by ``id_key`` the errors of the others.

    A crash leaves each where it was, or settled; a partner that comes at the same moment takes it, or is too late.
    """
    context = spec.parked
    yield from prepared(context)
    way = Exchange(context, partial(_parted, spec), lambda item: item, partial(_noted, context))
    failed: dict[Any, Exception] = {}
    for chunk in chunks(items, lambda _: 0, most=ARRIVALS):
        failed |= yield from exchanged(way, chunk)
    return failed


@dataclass(slots=True)
class _Doing:
    """What one transaction does.

    Attributes:
        now: when it began.
        own: statements of single items, each of which is to find one.
        settled: how many those are.
        pairs: what is written.
        members: who leaves for good.
        parked: who waits from now on, and until when.
    """

    now: datetime
    own: list[Statement] = field(default_factory=list)
    settled: int = 0
    pairs: list[Pair] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    parked: list[tuple[Item[Any], datetime]] = field(default_factory=list)


def _noted(context: QueueContext[Any], done: _Doing) -> None:
    """Count what was done, and wake who waits for it in this process."""
    for one in done.pairs:
        noted(context, one.document)
    for member in done.members:
        member.context.count("commit")
    if done.parked:
        context.count("move", len(done.parked))


# --- arrivals ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """Who meets whom.

    Attributes:
        meetings: arrivals, and the places of their partners by queue.
        parking: arrivals, and their own places.
        late: arrivals whose partners were given up.
    """

    meetings: list[tuple[Arrival, dict[str, Place]]] = field(default_factory=list)
    parking: list[tuple[Arrival, Place]] = field(default_factory=list)
    late: list[Arrival] = field(default_factory=list)


def _met(spec: JoinSpec, context: QueueContext[Any], arrivals: Sequence[Arrival]) -> Flow[_Doing]:
    """Do what there is to do about arrivals, in a transaction."""
    stored = yield from _rendezvous(spec, {arrival.key for arrival in arrivals})
    waiting: dict[str, Document] = {}
    gone: set[str] = set()
    ahead = 0
    while True:
        known = {key: Rendezvous(key, spec.queues, stored.get(key)) for key in {one.key for one in arrivals}}
        plan = _planned(spec, arrivals, known, gone)
        places = {place.text: place for _, met in plan.meetings for place in met.values()}
        wanted = places.keys() - waiting.keys()
        found = (yield from _parked(spec, wanted)) if wanted else {}
        waiting |= found
        if len(found) == len(wanted):
            break
        missing = wanted - found.keys()
        ahead = min(ahead * 8 + 8, AHEAD)
        gone |= missing | (yield from _gone(spec, known, map(places.__getitem__, missing), ahead))
    doing = _Doing(context.broker.clock.now())
    when = context.broker.clock.stamp()
    for arrival, met in plan.meetings:
        _join(spec, doing, arrival, {queue: waiting[place.text] for queue, place in met.items()}, when)
    for arrival, place in plan.parking:
        _park(spec, doing, arrival, place)
    for arrival in plan.late:
        _settle_late(spec, doing, arrival)
    yield from _remembered(spec, known.values(), doing.now, {one.key: one.value for one in arrivals})
    yield from _sent(context.broker, doing)
    return doing


def _planned(spec: JoinSpec, arrivals: Sequence[Arrival], known: Mapping[str, Rendezvous], gone: set[str]) -> _Plan:
    plan = _Plan()
    for arrival in arrivals:
        meeting = known[arrival.key]
        places = {queue: meeting.first(queue, gone) for queue in spec.others(arrival.queue)}
        there = {queue: place for queue, place in places.items() if place is not None}
        if len(there) == len(places):
            for place in there.values():
                meeting.take(place)
            plan.meetings.append((arrival, there))
        elif spec.late != "wait" and meeting.is_late(arrival.queue):
            plan.late.append(arrival)
        else:
            plan.parking.append((arrival, meeting.park(arrival.queue)))
    return plan


def _rendezvous(spec: JoinSpec, keys: Iterable[str]) -> Flow[dict[str, Document]]:
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    broker = spec.parked.broker
    found = yield from find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in found}


def _parked(spec: JoinSpec, texts: set[str]) -> Flow[dict[str, Document]]:
    """Find who waits at some places (by the index of keys)."""
    found = yield from find_few(spec.parked.broker, _at(spec, texts), [("key", 1)], len(texts))
    return {document["key"]: document for document in found if isinstance(document.get("parked"), Mapping)}


def _at(spec: JoinSpec, texts: set[str]) -> dict[str, Any]:
    return {"q": spec.parked.name, "key": {"$in": sorted(texts)}, "when": {"$exists": True}}


def _gone(spec: JoinSpec, known: Mapping[str, Rendezvous], places: Iterable[Place], ahead: int) -> Flow[set[str]]:
    """Return at which places behind some that are empty nobody waits either; a whole queue may have been purged."""
    behind = (other.text for place in places for other in known[place.key].following(place, ahead))
    texts = set(islice(behind, AHEAD))
    if not texts:
        return texts
    fields = {"_id": 0, "key": 1}
    found = yield from find_few(spec.parked.broker, _at(spec, texts), [("key", 1)], len(texts), projection=fields)
    return texts - {document["key"] for document in found}


def _join(spec: JoinSpec, doing: _Doing, arrival: Arrival, partners: Mapping[str, Document], when: datetime) -> None:
    members = [
        _own(spec, arrival) if side.name == arrival.queue else _partner(spec, side, partners[side.name])
        for side in spec.sides
    ]
    try:
        doing.pairs.append(pair(spec.pairs, members, id=ObjectId(), now=doing.now, when=when))
    except PayloadTooLarge as error:
        if members[0].context.settings.dead is None:
            raise
        doing.own += [buried(member, doing.now, reason=str(error), error=error) for member in members]
        doing.settled += len(members)
    else:
        doing.members += members


def _own(spec: JoinSpec, arrival: Arrival) -> Member:
    item = arrival.item
    return Member(spec.side(arrival.queue), item, {"_id": item.id, "token": item.token})


def _partner(spec: JoinSpec, context: QueueContext[Any], document: Document) -> Member:
    """Return who waits, as it was in the queue that it came by; somebody who gives it up just now comes too late."""
    parked = document["parked"]
    as_it_came = {**document, "q": context.name, "token": None, "key": parked.get("key")}
    item = context.raw_item(as_it_came, parked.get("at", spec.parked.broker.clock.now()))
    return Member(context, item, {"_id": document["_id"], "q": spec.parked.name})


def _park(spec: JoinSpec, doing: _Doing, arrival: Arrival, place: Place) -> None:
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
            **({} if item.key is None else {"key": item.key}),
        },
    }
    gone = dict.fromkeys(("token", "error", "batch"), "")
    filter = {"_id": item.id, "token": item.token}
    doing.own.append(("UpdateOne", {"filter": filter, "update": {"$set": changes, "$unset": gone}}))
    doing.settled += 1
    doing.parked.append((item, until))


def _settle_late(spec: JoinSpec, doing: _Doing, arrival: Arrival) -> None:
    member = _own(spec, arrival)
    if spec.late == "drop":
        doing.members.append(member)
        return
    reason = f"it came too late: its partner of {spec.named(arrival.queue)} was given up before"
    if member.context.settings.dead is None:
        raise PartnerMissing(arrival.item.id, arrival.item.queue, reason)
    doing.own.append(buried(member, doing.now, reason=reason, error=None))
    doing.settled += 1


# --- whose time is up --------------------------------------------------------------------------------


def _parted(spec: JoinSpec, items: Sequence[Item[Any]]) -> Flow[_Doing]:
    """Do what there is to do about parked items whose time is up, in a transaction."""
    broker = spec.parked.broker
    places = [Place.of(item.key, spec.queues) for item in items]
    stored = yield from _rendezvous(spec, {place.key for place in places if place is not None})
    known = {key: Rendezvous(key, spec.queues, document) for key, document in stored.items()}
    doing, when = _Doing(broker.clock.now()), broker.clock.stamp()
    values = {}
    for item, place in sorted(zip(items, places, strict=True), key=_number):
        if place is not None and place.key in known:
            known[place.key].give_up(place, remembered=spec.late != "wait")
            values[place.key] = _note(item).get("value")
    for item in items:
        _part(spec, doing, item, when)
    yield from _remembered(spec, known.values(), doing.now, values)
    yield from _sent(broker, doing)
    return doing


def _number(one: tuple[Item[Any], Place | None]) -> int:
    return 0 if one[1] is None else one[1].number


def _part(spec: JoinSpec, doing: _Doing, item: Item[Any], when: datetime) -> None:
    """Let one go on without partners, or to the error queue."""
    member = _parking(spec, item)
    queue = member.item.queue
    reason, error = f"no item of {spec.named(queue)} came within {spec.timeout}", None
    if spec.missing == "pass" and queue in spec.queues:
        members = [member if side.name == queue else None for side in spec.sides]
        try:
            doing.pairs.append(pair(spec.pairs, members, id=ObjectId(), now=doing.now, when=when))
        except PayloadTooLarge as large:
            reason, error = str(large), large
        else:
            doing.members.append(member)
            return
    if member.context.settings.dead is None:
        raise PartnerMissing(item.id, queue, reason)
    doing.own.append(buried(member, doing.now, reason=reason, error=error))
    doing.settled += 1


def _parking(spec: JoinSpec, item: Item[Any]) -> Member:
    """Return a parked item as it was in the queue that it came by, which the join may name no more."""
    told = _note(item).get("queue")
    queue = told if isinstance(told, str) else spec.queues[0]
    context = spec.side(queue) if queue in spec.queues else spec.sides[0]
    as_it_came = item.with_stored("q", queue).with_stored("key", _note(item).get("key"))
    return Member(context, as_it_came, {"_id": item.id, "token": item.token})


def _note(item: Item[Any]) -> Mapping[str, Any]:
    """Return what was written on an item when it was parked."""
    stored = item.stored("parked")
    return stored if isinstance(stored, Mapping) else {}


# --- what is sent ------------------------------------------------------------------------------------


def _remembered(spec: JoinSpec, known: Iterable[Rendezvous], now: datetime, values: Mapping[str, Any]) -> Flow[None]:
    """Write what is known of the values; what there is nothing to remember of goes.

    Who writes the same document at the same time meets a conflict, and has another go.
    """
    requests: list[Statement] = []
    done: list[str] = []
    for meeting in known:
        filter = {"_id": rendezvous_id(spec.name, meeting.key)}
        if meeting.done:
            done += [filter["_id"]] if meeting.stored else []
            continue
        changes = {**meeting.fields(), "value": values.get(meeting.key), "at": now}
        if meeting.empty:
            update = {"$set": {**changes, "expires": now + REMEMBERED}}
        else:
            update = {"$set": changes, "$unset": {"expires": ""}}
        requests.append(("UpdateOne", {"filter": filter, "update": update, "upsert": True}))
    if done:
        requests.append(("DeleteMany", {"filter": {"_id": {"$in": done}}}))
    if requests:
        yield from found_by(spec.parked.broker, requests)


def _sent(broker: BrokerContext, doing: _Doing) -> Flow[None]:
    expected = doing.settled + len(doing.members)
    requests = [*doing.own, *leaving(doing.members, doing.now)]
    if requests and (yield from found_by(broker, requests)) < expected:
        raise Short
    for chunk in chunks([one.raw for one in doing.pairs], lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})
