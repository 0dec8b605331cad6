"""The pipeline: flights get the weather of their airport, and are stored where others look for them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from pymongo.collection import Collection

import mongoq
from examples.flights.data import row_id
from examples.flights.handlers import check, enrich, hour_of
from examples.flights.model import EnrichedFlight, Flight, RawRow, Reference, Row

__all__ = ["CHECKED", "DONE", "ERRORS", "KENNEDY", "Departures", "build", "enrich_from_kennedy", "key_of", "push"]

CHECKED, DONE, ERRORS = "checked", "done", "errors"
HISTORY = timedelta(days=30)
KENNEDY = "JFK"

Departures = Collection[dict[str, Any]]


def build(reference: Reference, departures: Departures, *, broken: bool = False) -> mongoq.Pipeline:
    """Return the pipeline; a ``broken`` one has the faulty version of ``enrich``, which fails at nothing."""
    pipeline = mongoq.Pipeline("flights_replay", errors=ERRORS, inputs=CHECKED)
    enriching = partial(enrich_from_kennedy if broken else enrich, reference=reference)
    pipeline.stage(CHECKED, to=DONE, name="enrich", model=Flight, concurrency=4)(enriching)
    storing = partial(store, departures=departures)
    pipeline.sink(DONE, name="store", model=EnrichedFlight, concurrency=4)(storing)
    return pipeline


def enrich_from_kennedy(flight: Flight, reference: Reference) -> EnrichedFlight:
    """Do as ``enrich``, with the weather of Kennedy, wherever the flight departed: nothing fails, and much is wrong."""
    weather = reference.weather.get((KENNEDY, hour_of(flight)))
    return enrich(flight, reference).model_copy(update={"weather": weather})


def store(flight: EnrichedFlight, *, departures: Departures) -> None:
    """Write a flight under its own key: a repeated run replaces its document and adds none."""
    departures.replace_one({"_id": key_of(flight)}, flight.model_dump(), upsert=True)


def key_of(flight: Flight) -> str:
    """Return what names a flight."""
    return f"{flight.carrier} {flight.flight} {flight.origin} {flight.scheduled:%Y-%m-%dT%H:%MZ}"


def push(broker: mongoq.Broker, rows: Iterable[RawRow]) -> int:
    """Push the flights among some rows that departed, and return how many they are."""
    flights = {row_id(row): check(Row.model_validate(row)) for row in rows}
    departed = {id: flight for id, flight in flights.items() if isinstance(flight, Flight)}
    broker.queue(DONE).configure(history=HISTORY)
    if departed:
        broker.queue(CHECKED, model=Flight).push_many(list(departed.values()), ids=list(departed))
    return len(departed)
