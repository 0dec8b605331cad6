"""The work of the stages: functions of payloads, without a queue in sight.

A stage calls its handler with each payload. What it returns is the payload that goes on, or says what is to become
of the item: ``Dead`` sends it to the error queue. A handler that raises has failed, and the item comes again a little
later.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from examples.flights.model import EnrichedFlight, Flight, Reference, Row
from mongoq import Dead

__all__ = ["Unusable", "check", "enrich", "enrich_at_first", "finish", "hour_of", "validate"]

NEW_YORK = ZoneInfo("America/New_York")


class Unusable(Exception):
    """A flight that cannot be used, however often one tries; its text is the reason to count by."""


def check(row: Row) -> Flight | Dead:
    """Return the flight of a row; one that cannot be used is dead."""
    try:
        return validate(row)
    except Unusable as unusable:
        return Dead(str(unusable))


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


def hour_of(flight: Flight) -> datetime:
    """Return the beginning of the hour that a departure was planned for."""
    return flight.scheduled.replace(minute=0, second=0, microsecond=0)


def enrich(flight: Flight, reference: Reference) -> EnrichedFlight:
    """Return the flight with all that the tables know of it."""
    return EnrichedFlight(
        **dict(flight),
        airline=reference.airlines.get(flight.carrier),
        plane=None if flight.tail is None else reference.planes.get(flight.tail),
        origin_airport=reference.airports.get(flight.origin),
        destination_airport=reference.airports.get(flight.destination),
        weather=reference.weather.get((flight.origin, hour_of(flight))),
    )


def enrich_at_first(flight: Flight, reference: Reference) -> EnrichedFlight:
    """Do as ``enrich``, as it was written at first: the table is taken to know where every flight goes.

    It does not know BQN, SJU, STT and PSE, which lie in Puerto Rico and on the Virgin Islands.
    """
    airports = {"destination_airport": reference.airports[flight.destination]}
    return enrich(flight, reference).model_copy(update=airports)


def finish(_: EnrichedFlight) -> None:
    """Leave nothing to do: the item is committed, and the queue's history keeps it."""
