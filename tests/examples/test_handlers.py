"""The pure part of the flights example: reading a row, validating it, enriching it."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

import pytest
from pydantic import ValidationError

import mongoq
from examples.flights.data import data_folder, raw_rows, row_id
from examples.flights.handlers import Unusable, check, enrich, enrich_at_first, validate
from examples.flights.model import Airport, Flight, Plane, Reference, Row, Weather

RAW = {
    "year": "2013",
    "month": "1",
    "day": "1",
    "dep_time": "517",
    "sched_dep_time": "515",
    "dep_delay": "2",
    "arr_time": "830",
    "sched_arr_time": "819",
    "arr_delay": "11",
    "carrier": "UA",
    "flight": "1545",
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": "227",
    "distance": "1400",
    "hour": "5",
    "minute": "15",
    "time_hour": "2013-01-01T10:00:00Z",
}
NEVER_DEPARTED = {"dep_time": "NA", "dep_delay": "NA", "arr_time": "NA", "arr_delay": "NA", "air_time": "NA"}


def row(**changes: Any) -> Row:
    return Row.model_validate(RAW | changes)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


CLOCKS: list[Any] = [
    ("517", time(5, 17)),
    ("5", time(0, 5)),
    ("0", time(0, 0)),
    ("2359", time(23, 59)),
    ("2400", time(0, 0)),
    ("NA", None),
    ("", None),
]


def test_reads_a_clock_time() -> None:
    for text, clock in CLOCKS:
        assert row(dep_time=text).dep_time == clock


GARBAGE: list[Any] = [
    {"dep_time": "2401"},
    {"dep_time": "1260"},
    {"dep_time": "-5"},
    {"dep_time": "noon"},
    {"dep_delay": "1" * 40},
    {"sched_dep_time": "NA"},
    {"month": "13"},
    {"month": "2", "day": "30"},
    {"year": "0"},
    {"flight": "ten"},
    {"carrier": ""},
    {"origin": None},
    {"dest": "I\x00H"},
    {"surplus": ["one", "two"]},
]


def test_refuses_garbage() -> None:
    for changes in GARBAGE:
        with pytest.raises(ValidationError):
            row(**changes)


@pytest.mark.parametrize(
    "changes, scheduled, departed",
    [
        pytest.param({}, utc(2013, 1, 1, 10, 15), utc(2013, 1, 1, 10, 17), id="winter: UTC-5"),
        pytest.param({"month": "7"}, utc(2013, 7, 1, 9, 15), utc(2013, 7, 1, 9, 17), id="summer: UTC-4"),
        pytest.param(
            {"sched_dep_time": "2359", "dep_time": "2400", "dep_delay": "1"},
            utc(2013, 1, 2, 4, 59),
            utc(2013, 1, 2, 5, 0),
            id="departed at midnight, which the data calls 2400",
        ),
        pytest.param(
            {"sched_dep_time": "2355", "dep_time": "45", "dep_delay": "50"},
            utc(2013, 1, 2, 4, 55),
            utc(2013, 1, 2, 5, 45),
            id="departed on the next day",
        ),
        pytest.param(
            {"sched_dep_time": "5", "dep_time": "2355", "dep_delay": "-10"},
            utc(2013, 1, 1, 5, 5),
            utc(2013, 1, 1, 4, 55),
            id="departed on the day before",
        ),
        pytest.param(
            {"month": "3", "day": "10", "sched_dep_time": "155", "dep_time": "305", "dep_delay": "10"},
            utc(2013, 3, 10, 6, 55),
            utc(2013, 3, 10, 7, 5),
            id="summer time begins between",
        ),
        pytest.param(
            {"month": "11", "day": "3", "sched_dep_time": "130", "dep_time": "100", "dep_delay": "30"},
            utc(2013, 11, 3, 5, 30),
            utc(2013, 11, 3, 6, 0),
            id="summer time ends between, and the first of two half past ones is meant",
        ),
    ],
)
def test_validates_times_as_utc(changes: dict[str, str], scheduled: datetime, departed: datetime) -> None:
    flight = validate(row(**changes))
    assert (flight.scheduled, flight.departed) == (scheduled, departed)


UNUSABLE: list[Any] = [
    (NEVER_DEPARTED, "never departed"),
    (NEVER_DEPARTED | {"tailnum": "NA"}, "never departed"),
    ({"dep_time": "NA"}, "departure half known"),
    ({"dep_delay": "NA"}, "departure half known"),
    ({"dep_delay": "3"}, "departure and delay contradict each other"),
    ({"month": "3", "day": "10", "sched_dep_time": "230"}, "scheduled at a time that summer time skips"),
]


def test_says_why_a_flight_is_unusable() -> None:
    for changes, reason in UNUSABLE:
        with pytest.raises(Unusable, match=f"^{reason}$"):
            validate(row(**changes))


PLANE = Plane(manufacturer="BOEING", model="737-824", year=1999, seats=149)
WEATHER = Weather(temp=39.0, wind_speed=12.7, precip=0.0, visib=10.0)
NEWARK = Airport(name="Newark Liberty Intl", lat=40.7, lon=-74.2, tzone="America/New_York")
TABLES = Reference(
    airlines={"UA": "United Air Lines Inc."},
    airports={"EWR": NEWARK},
    planes={"N14228": PLANE},
    weather={("EWR", utc(2013, 1, 1, 10)): WEATHER},
)


def flight(**changes: Any) -> Flight:
    return validate(row()).model_copy(update=changes)


ENRICHED: list[Any] = [
    ({}, "airline", "United Air Lines Inc."),
    ({"carrier": "XX"}, "airline", None),
    ({}, "plane", PLANE),
    ({"tail": "N99999"}, "plane", None),
    ({"tail": None}, "plane", None),
    ({}, "origin_airport", NEWARK),
    ({}, "destination_airport", None),
    ({"destination": "EWR"}, "destination_airport", NEWARK),
    ({}, "weather", WEATHER),
    ({"scheduled": utc(2013, 1, 1, 10, 59)}, "weather", WEATHER),
    ({"scheduled": utc(2013, 1, 1, 11)}, "weather", None),
    ({"origin": "JFK"}, "weather", None),
]


def test_enriches_from_the_tables_and_knows_what_it_does_not_know() -> None:
    for changes, field, value in ENRICHED:
        before = flight(**changes)
        after = enrich(before, TABLES)
        assert getattr(after, field) == value
        assert Flight(**after.model_dump(include=set(Flight.model_fields))) == before


def test_the_first_version_fails_where_the_table_does_not() -> None:
    assert enrich(flight(destination="BQN"), TABLES).destination_airport is None
    with pytest.raises(KeyError, match="BQN"):
        enrich_at_first(flight(destination="BQN"), TABLES)


def test_a_row_is_checked_or_declared_dead() -> None:
    assert check(row()) == validate(row())
    assert check(row(**NEVER_DEPARTED)) == mongoq.Dead("never departed")


# --- the data as it comes ----------------------------------------------------------------------------


def test_rows_from_the_whole_year_are_valid_and_named_apart() -> None:
    ids, reasons = set(), {"departed": 0}
    for raw in raw_rows(data_folder(), 20_000):
        ids.add(row_id(raw))
        read = Row.model_validate(raw)
        try:
            flight = validate(read)
        except Unusable as unusable:
            reasons[str(unusable)] = reasons.get(str(unusable), 0) + 1
            continue
        reasons["departed"] += 1
        assert flight.scheduled.replace(minute=0) == read.time_hour
    assert len(ids) == 20_000
    assert set(reasons) == {"departed", "never departed"}
    assert reasons["never departed"] / 20_000 == pytest.approx(8255 / 336_776, rel=0.1)
