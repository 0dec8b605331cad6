"""Arrivals: match the items that come to a join with their partners. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from mongoq.model.item import Document, Item
from mongoq.model.join_state import JoinState, Place
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow import Flow
from mongoq.protocol.join.pair import MISSED_FIELD
from mongoq.protocol.join.spec import JoinSpec, rendezvous

ARRIVALS_BEFORE_PARKING = 3
"""Arrivals of a queue's items before an item that waits for one is parked: its partner may be in a later arrival."""
MAX_PLACES_READ = 50_000
"""Places that one command reads, at most, once some places are empty."""


@dataclass(slots=True, eq=False)
class Arrival:
    """An item that has arrived at a join.

    Attributes:
        item: the item as it was claimed.
        key: key that its value is stored under.
        value: value that the join compares.
        turns: times that items of each queue had arrived when it first arrived; ``None`` before, set by
            ``count_arrivals``.
    """

    item: Item[Any]
    key: str
    value: Any
    turns: Mapping[str, int] | None = None

    @property
    def queue(self) -> str:
        """Name of the queue that it has arrived by."""
        return self.item.queue


def count_arrivals(spec: JoinSpec, arrivals: Sequence[Arrival]) -> None:
    """Count the arrivals that come for the first time."""
    new = [arrival for arrival in arrivals if arrival.turns is None]
    spec.turns.update({arrival.queue for arrival in new})
    turns = dict(spec.turns)
    for arrival in new:
        arrival.turns = turns


def by_value(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Put arrivals with the same value together, in the order of the first arrival of each value."""
    groups: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        groups.setdefault(arrival.key, []).append(arrival)
    return list(chain.from_iterable(groups.values()))


Known = dict[str, JoinState]


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

    states: Known
    meetings: list[tuple[Arrival, dict[str, Arrival | Place]]] = field(default_factory=list)
    parking: dict[Place, Arrival] = field(default_factory=dict)
    late: list[Arrival] = field(default_factory=list)
    put_off: list[Arrival] = field(default_factory=list)
    waiting: dict[str, Document] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, Place]:
        """Places of parked partners, by their texts."""
        return {
            place.text: place
            for _, partners in self.meetings
            for place in partners.values()
            if isinstance(place, Place)
        }


def make_plan(spec: JoinSpec, arrivals: Sequence[Arrival]) -> Flow[Plan]:
    """Read the parked partners of arrivals, and return the plan."""
    coming = {queue for queue in spec.queues if spec.coming(queue)}
    documents = yield from rendezvous(spec, {arrival.key for arrival in arrivals})
    waiting: dict[str, Document] = {}
    empty_places: set[str] = set()
    ahead = 0
    while True:
        plan = _plan_arrivals(spec, arrivals, documents, empty_places)
        places = plan.places
        wanted = places.keys() - waiting.keys()
        parked = (yield from _find_waiting(spec, wanted)) if wanted else {}
        waiting |= parked
        # A rendezvous may count places of items that were purged. Plan again without the empty places until all are
        # found.
        if len(parked) == len(wanted):
            break
        missing = wanted - parked.keys()
        # Ever more places in one command: after a purge of the whole queue all of them are empty.
        ahead = min(ahead * 8 + 8, MAX_PLACES_READ)
        empty_places |= missing | (
            yield from _find_empty_places(spec, plan.states, map(places.__getitem__, missing), ahead)
        )
    plan.waiting = waiting
    _postpone(spec, plan, coming, empty_places)
    return plan


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


def _postpone(spec: JoinSpec, plan: Plan, coming: set[str], empty_places: set[str]) -> None:
    """Put off arrivals with partners that are about to arrive.

    Nothing is written for an arrival that is alone with its value.
    """
    for place, arrival in reversed(list(plan.parking.items())) if coming else ():
        meeting = plan.states[arrival.key]
        missing = [queue for queue in spec.others(arrival.queue) if meeting.first(queue, empty_places) is None]
        # ``unpark`` succeeds only for the last place of a line: no item is parked after it.
        if _is_patient(spec, arrival, missing, coming) and meeting.unpark(place):
            plan.put_off.append(plan.parking.pop(place))
    settled = [*plan.parking.values(), *plan.late, *(arrival for arrival, _ in plan.meetings)]
    for key in {arrival.key for arrival in plan.put_off} - {arrival.key for arrival in settled}:
        del plan.states[key]


def _is_patient(spec: JoinSpec, arrival: Arrival, missing: Iterable[str], coming: set[str]) -> bool:
    """Return whether an arrival should wait for another turn of its partners."""
    turns = arrival.turns or {}
    # ``record_return`` must count its return once, and an arrival that is put off is planned again.
    if arrival.item.stored(MISSED_FIELD):
        return False
    return all(
        queue in coming and spec.turns[queue] - turns.get(queue, 0) < ARRIVALS_BEFORE_PARKING for queue in missing
    )


def _find_waiting(spec: JoinSpec, texts: set[str]) -> Flow[dict[str, Document]]:
    """Find the items that wait at some places (by the index of keys)."""
    documents = yield from find_few(spec.parked.broker, _at(spec, texts), [("key", 1)], len(texts))
    return {document["key"]: document for document in documents if isinstance(document.get("parked"), Mapping)}


def _at(spec: JoinSpec, texts: set[str]) -> dict[str, Any]:
    return {"q": spec.parked.name, "key": {"$in": sorted(texts)}, "when": {"$exists": True}}


def _find_empty_places(spec: JoinSpec, states: Known, places: Iterable[Place], ahead: int) -> Flow[set[str]]:
    """Return the empty places after some empty ones; a whole queue may have been purged."""
    behind = (other.text for place in places for other in states[place.key].following(place, ahead))
    texts = set(islice(behind, MAX_PLACES_READ))
    if not texts:
        return texts
    fields = {"_id": 0, "key": 1}
    documents = yield from find_few(spec.parked.broker, _at(spec, texts), [("key", 1)], len(texts), projection=fields)
    return texts - {document["key"] for document in documents}
