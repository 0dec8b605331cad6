"""Matching: the settings of a join, and which arriving items meet their partners. Nothing is written here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from mongoq.model.item import Document, Item
from mongoq.model.join_state import JoinState, Place, rendezvous_id
from mongoq.protocol.base.find import find_few
from mongoq.protocol.state.context import QueueContext

Late = Literal["error", "wait", "drop"]
Missing = Literal["error", "pass"]
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""End of the wait in a join without a timeout."""
MAX_ARRIVALS = 500
"""Items in one claim, and in one transaction that settles expired items."""
MISSED_FIELD = "missed"
"""Field of a dead letter with partners that come late; handed back, the letter looks for them again."""
ARRIVALS_BEFORE_PARKING = 3
"""Arrivals of a queue's items before an item that waits for one is parked: its partner may be in a later arrival."""
MAX_PLACES_READ = 50_000
"""Places that one command reads, at most, once some places are empty."""


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


async def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> dict[str, Document]:
    """Read the stored rendezvous of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    documents = await find_few(spec.parked.broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in documents}


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
    if coming:
        _postpone(spec, plan, coming, empty_places)
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


def _postpone(spec: JoinSpec, plan: Plan, coming: set[str], empty_places: set[str]) -> None:
    """Put off arrivals with partners that are about to arrive.

    Nothing is written for an arrival that is alone with its value.
    """
    for place, arrival in reversed(list(plan.parking.items())):
        if arrival.item.stored(MISSED_FIELD):
            continue  # ``record_return`` must count its return once, and an arrival that is put off is planned again
        meeting, turns = plan.states[arrival.key], arrival.turns or {}
        missing = [queue for queue in spec.others(arrival.queue) if meeting.first(queue, empty_places) is None]
        is_patient = all(
            queue in coming and spec.turns[queue] - turns.get(queue, 0) < ARRIVALS_BEFORE_PARKING for queue in missing
        )
        # ``unpark`` succeeds only for the last place of a line: no item is parked after it.
        if is_patient and meeting.unpark(place):
            plan.put_off.append(plan.parking.pop(place))
    settled = [*plan.parking.values(), *plan.late, *(arrival for arrival, _ in plan.meetings)]
    for key in {arrival.key for arrival in plan.put_off} - {arrival.key for arrival in settled}:
        del plan.states[key]
