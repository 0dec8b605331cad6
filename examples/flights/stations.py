"""The stations of the line: what each takes from its queue, and where it sends it.

A station reserves an item, works on it, and settles it by one atomic command: ``move`` to the next queue,
``bury`` in the dead queue, ``commit`` into history, or ``rollback`` after a failure. An item is therefore in
one queue at any moment, and a process that dies loses nothing: its items come back when their leases end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from examples.flights.data import row_id
from examples.flights.model import EnrichedFlight, Flight, RawRow, Reference, Row
from mongoq import Broker, Item, Queue, ReservationLost

__all__ = [
    "CHECKED",
    "DONE",
    "QUEUES",
    "RAW",
    "Queues",
    "Station",
    "Unusable",
    "enrich",
    "open_queues",
    "stations",
    "validate",
]

logger = logging.getLogger("examples.flights")

RAW, CHECKED, DONE = QUEUES = "flights.raw", "flights.checked", "flights.done"
NEW_YORK = ZoneInfo("America/New_York")
LEASE = timedelta(seconds=10)
HISTORY = timedelta(days=30)
RETRY_DELAY = timedelta(milliseconds=200)


# --- the queues: three names in one collection ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queues:
    """Handles of the three queues; each has its dead queue beside it, such as ``flights.raw.dead``.

    The producer pushes what it read, unchecked, through ``inbox``. The validating station takes it out of the
    same queue through ``raw``, whose model converts it: what does not fit is buried by ``reserve`` itself.
    """

    inbox: Queue[Any]
    raw: Queue[Row]
    checked: Queue[Flight]
    done: Queue[EnrichedFlight]


def open_queues(broker: Broker, *, lease: timedelta = LEASE) -> Queues:
    """Return the handles. There is nothing to create: a queue exists as soon as an item is in it."""
    return Queues(
        inbox=broker.queue(RAW),
        raw=broker.queue(RAW, model=Row, lease=lease, max_retries=3),
        checked=broker.queue(CHECKED, model=Flight, lease=lease, max_retries=3),
        done=broker.queue(DONE, model=EnrichedFlight, lease=lease, history=HISTORY),
    )


def push(queues: Queues, row: RawRow) -> None:
    """Load one row. The id is made from the row: pushed again, now or in a week, it adds nothing."""
    queues.inbox.push(row, id=row_id(row))


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


# --- the stations: reserve, work, settle ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Station:
    """A queue to reserve from, and what to do with each item.

    Attributes:
        name: what people call it.
        source: the queue it takes items from.
        settle: works on an item and settles it; returns what became of it.
    """

    name: str
    source: Queue[Any]
    settle: Callable[[Item[Any]], str]

    def serve(self, item: Item[Any]) -> str:
        """Settle a reserved item, come what may, and return what became of it: moved, retried, …

        A handler that raises is no reason to stop: the item goes back with the error, to be tried again a
        little later, and to the dead queue after ``max_retries``.
        """
        try:
            return self._attempt(item)
        except ReservationLost as lost:  # slower than the lease: somebody else has the item now
            logger.warning("%s: %s", self.name, lost)
            return "lost"

    def _attempt(self, item: Item[Any]) -> str:
        try:
            return self.settle(item)
        except ReservationLost:
            raise
        except Exception as error:
            logger.debug("%s: item %s", self.name, item.id, exc_info=error)
            self.source.rollback(item, delay=RETRY_DELAY, error=error)
            return "retried"


def stations(queues: Queues, reference: Reference) -> list[Station]:
    """Return the three stations, in the order in which an item meets them."""

    def validating(item: Item[Row]) -> str:
        try:
            flight = validate(item.payload)
        except Unusable as unusable:
            queues.raw.bury(item, reason=str(unusable))
            return "buried"
        queues.raw.move(item, queues.checked, payload=flight)
        return "moved"

    def enriching(item: Item[Flight]) -> str:
        queues.checked.move(item, queues.done, payload=enrich(item.payload, reference))
        return "moved"

    def finishing(item: Item[EnrichedFlight]) -> str:
        queues.done.commit(item)  # the queue has a history: the item stays, as processed
        return "committed"

    return [
        Station("validate", queues.raw, validating),
        Station("enrich", queues.checked, enriching),
        Station("finish", queues.done, finishing),
    ]
