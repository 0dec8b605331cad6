"""The stations of the line: what each takes from its queue, and where it sends it.

A station is a handler that a worker calls with each payload of a queue, and that says what is to become of the
item: ``Move`` to the next queue, ``Dead`` to the dead queue, nothing to commit it into history. A handler that
raises has failed, and the item comes again a little later. The worker settles each item by one atomic update. An
item is therefore in one queue at any moment, and a process that dies loses nothing: its items come back when
their leases end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from examples.flights.data import row_id
from examples.flights.model import EnrichedFlight, Flight, RawRow, Reference, Row
from mongoq import Broker, Dead, Fixed, Move, Outcome, Queue

__all__ = [
    "CHECKED",
    "DONE",
    "QUEUES",
    "RAW",
    "RETRY",
    "Queues",
    "Station",
    "Unusable",
    "enrich",
    "open_queues",
    "push",
    "stations",
    "validate",
]

RAW, CHECKED, DONE = QUEUES = "flights.raw", "flights.checked", "flights.done"
NEW_YORK = ZoneInfo("America/New_York")
LEASE = timedelta(seconds=10)
HISTORY = timedelta(days=30)
RETRY = Fixed(0.2)


# --- the queues: three names in one collection ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queues:
    """A broker, and handles of the three queues; each has its dead queue beside it, such as ``flights.raw.dead``.

    The producer pushes what it read, unchecked, through ``inbox``. The validating station takes it out of the
    same queue through ``raw``, whose model converts it: what does not fit is buried before any handler sees it.
    """

    broker: Broker
    inbox: Queue[Any]
    raw: Queue[Row]
    checked: Queue[Flight]
    done: Queue[EnrichedFlight]


def open_queues(broker: Broker, *, lease: timedelta = LEASE) -> Queues:
    """Return the handles. There is nothing to create: a queue exists as soon as an item is in it."""
    return Queues(
        broker=broker,
        inbox=broker.queue(RAW),
        raw=broker.queue(RAW, model=Row, lease=lease, max_retries=3),
        checked=broker.queue(CHECKED, model=Flight, lease=lease, max_retries=3),
        done=broker.queue(DONE, model=EnrichedFlight, lease=lease, history=HISTORY),
    )


def push(queues: Queues, rows: Iterable[RawRow]) -> None:
    """Load some rows. Their ids are made from the rows: pushed again, now or in a week, they add nothing."""
    rows = list(rows)
    queues.inbox.push_many(rows, ids=[row_id(row) for row in rows])


# --- the work: pure functions, without a queue in sight -------------------------------------------


class Unusable(Exception):
    """A flight that cannot be used, however often one tries; its text is the reason to count by."""


def validate(row: Row) -> Flight:
    """Return the flight of a row, in UTC; raises ``Unusable``."""
    if row.dep_time is None and row.dep_delay is None:
        raise Unusable("never departed")
    if row.dep_time is None or row.dep_delay is None:
        raise Unusable("departure half known")
    scheduled = _utc(datetime.combine(row.date, row.sched_dep_time))
    departed = scheduled + timedelta(minutes=row.dep_delay)
    if departed.astimezone(NEW_YORK).time() != row.dep_time:
        raise Unusable("departure and delay contradict each other")
    return Flight(
        carrier=row.carrier,
        flight=row.flight,
        tail=row.tailnum,
        origin=row.origin,
        destination=row.dest,
        scheduled=scheduled,
        departed=departed,
        departure_delay=row.dep_delay,
        arrival_delay=row.arr_delay,
        air_time=row.air_time,
        distance=row.distance,
    )


def _utc(wall: datetime) -> datetime:
    """Return a time in New York as UTC: the first of two, and ``Unusable`` if summer time skips it."""
    moment = wall.replace(tzinfo=NEW_YORK).astimezone(UTC)
    if moment.astimezone(NEW_YORK).replace(tzinfo=None) != wall:
        raise Unusable("scheduled at a time that summer time skips")
    return moment


def enrich(flight: Flight, reference: Reference) -> EnrichedFlight:
    """Return the flight with all that the tables know of it."""
    hour = flight.scheduled.replace(minute=0, second=0, microsecond=0)
    return EnrichedFlight(
        **dict(flight),
        airline=reference.airlines.get(flight.carrier),
        plane=None if flight.tail is None else reference.planes.get(flight.tail),
        origin_airport=reference.airports.get(flight.origin),
        destination_airport=reference.airports.get(flight.destination),
        weather=reference.weather.get((flight.origin, hour)),
    )


# --- the stations: what becomes of an item ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Station:
    """A queue to take items from, and what to do with each of them.

    Attributes:
        name: what people call it.
        source: the queue it takes items from.
        handle: works on a payload, and says what becomes of the item.
    """

    name: str
    source: Queue[Any]
    handle: Callable[[Any], Outcome | None]


def stations(queues: Queues, reference: Reference) -> list[Station]:
    """Return the three stations, in the order in which an item meets them."""

    def validating(row: Row) -> Outcome:
        try:
            return Move(queues.checked, payload=validate(row))
        except Unusable as unusable:
            return Dead(str(unusable))

    def enriching(flight: Flight) -> Outcome:
        return Move(queues.done, payload=enrich(flight, reference))

    def finishing(_: EnrichedFlight) -> None:
        """Nothing is left to do: the item is committed, and the queue's history keeps it."""

    return [
        Station("validate", queues.raw, validating),
        Station("enrich", queues.checked, enriching),
        Station("finish", queues.done, finishing),
    ]
