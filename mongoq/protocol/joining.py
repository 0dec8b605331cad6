"""Joins: items of several queues that have a value in common, made one item as soon as all of them are there.

An item whose partners are not there yet is *parked* in a queue of the join's own, and is not looked at again before one
of them comes, or its time is up. All of it happens in transactions on the control document of the value, its
*rendezvous*, so that two that arrive at the same moment cannot miss each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from bson import ObjectId

from mongoq.errors import PartnerMissing, PayloadTooLarge
from mongoq.model.item import Document, Item
from mongoq.model.rendezvous import Place, Rendezvous
from mongoq.protocol.batch import chunks
from mongoq.protocol.context import QueueContext
from mongoq.protocol.exchange import Exchange, exchanged
from mongoq.protocol.lookup import find_few
from mongoq.protocol.meeting import ARRIVALS, FOREVER, Doing, JoinSpec, noted_of, remembered, rendezvous, sent
from mongoq.protocol.pairing import MISSED, Member, buried, pair, priority_of
from mongoq.protocol.request import Flow
from mongoq.protocol.settings import prepared

__all__ = ["Arrival", "arrived"]

TAKEN = dict.fromkeys(("token", "error", "batch", MISSED), "")
"""What a reservation leaves, or who was given up before, and an item that waits has no more."""
AHEAD = 50_000
"""Places that are looked at in one command once some of them are empty."""


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
    way = Exchange(context, partial(_met, spec, context), _item_of, partial(noted_of, spec, context))
    failed: dict[Any, Exception] = {}
    for chunk in chunks(arrivals, lambda _: 0, most=ARRIVALS):
        failed |= yield from exchanged(way, chunk)
    return failed


def _item_of(arrival: Arrival) -> Item[Any]:
    return arrival.item


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


def _met(spec: JoinSpec, context: QueueContext[Any], arrivals: Sequence[Arrival]) -> Flow[Doing]:
    """Do what there is to do about arrivals, in a transaction."""
    stored = yield from rendezvous(spec, {arrival.key for arrival in arrivals})
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
    doing = Doing(context.broker.clock.now())
    when = context.broker.clock.stamp()
    for arrival, met in plan.meetings:
        _join(spec, doing, arrival, {queue: waiting[place.text] for queue, place in met.items()}, when)
    for arrival, place in plan.parking:
        _park(spec, doing, arrival, place)
    for arrival in plan.late:
        _settle_late(spec, doing, arrival)
    yield from remembered(spec, known.values(), {one.key: one.value for one in arrivals}, doing)
    yield from sent(context.broker, doing)
    return doing


def _planned(spec: JoinSpec, arrivals: Sequence[Arrival], known: Mapping[str, Rendezvous], gone: set[str]) -> _Plan:
    plan = _Plan()
    for arrival in arrivals:
        meeting = known[arrival.key]
        if arrival.item.stored(MISSED):
            meeting.come_back(arrival.queue)
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


def _join(spec: JoinSpec, doing: Doing, arrival: Arrival, partners: Mapping[str, Document], when: datetime) -> None:
    members = [
        _own(spec, arrival) if side.name == arrival.queue else _partner(spec, side, partners[side.name])
        for side in spec.sides
    ]
    try:
        doing.pairs.append(pair(spec.pairs, members, id=ObjectId(), now=doing.now, when=when))
    except PayloadTooLarge as error:
        if members[0].context.settings.dead is None:
            raise
        for member in members:
            doing.bury(buried(member, doing.now, reason=str(error), error=error), str(error))
        doing.end(arrival.item, "dead")
    else:
        doing.members += members


def _own(spec: JoinSpec, arrival: Arrival) -> Member:
    item = arrival.item
    return Member(spec.side(arrival.queue), item, {"_id": item.id, "token": item.token})


def _partner(spec: JoinSpec, context: QueueContext[Any], document: Document) -> Member:
    """Return who waits, as it was in the queue that it came by; somebody who gives it up just now comes too late."""
    parked = document["parked"]
    as_it_came = {**document, "q": context.name, "token": None, "key": parked.get("key")}
    at = parked.get("at")
    item = context.raw_item(as_it_came, at if isinstance(at, datetime) else spec.parked.broker.clock.now())
    return Member(context, item, {"_id": document["_id"], "q": spec.parked.name})


def _park(spec: JoinSpec, doing: Doing, arrival: Arrival, place: Place) -> None:
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
    filter = {"_id": item.id, "token": item.token}
    doing.own.append(("UpdateOne", {"filter": filter, "update": {"$set": changes, "$unset": TAKEN}}))
    doing.settled += 1
    doing.parked.append((priority_of(item), until))


def _settle_late(spec: JoinSpec, doing: Doing, arrival: Arrival) -> None:
    member = _own(spec, arrival)
    if spec.late == "drop":
        doing.members.append(member)
        doing.end(arrival.item, "dropped")
        return
    reason = f"it came too late: its partner of {spec.named(arrival.queue)} was given up before"
    if member.context.settings.dead is None:
        raise PartnerMissing(arrival.item.id, arrival.item.queue, reason)
    doing.bury(buried(member, doing.now, reason=reason, error=None), reason)
    doing.end(arrival.item, "dead")
