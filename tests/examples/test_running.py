"""The flights example on a real server: what was pushed is done or dead, whatever happens on the way."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from examples.flights import line as lines
from examples.flights.data import data_folder, raw_rows, reference, row_id
from examples.flights.line import Line
from examples.flights.model import Flight, RawRow, Reference
from examples.flights.proof import Proof, prove
from examples.flights.stations import DONE, RAW, Queues, Station, open_queues, push, stations

ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}

Fault = Callable[[Any], None]


@pytest.fixture(scope="module")
def tables() -> Reference:
    return reference(data_folder())


@pytest.fixture(scope="module")
def rows() -> list[RawRow]:
    return list(raw_rows(data_folder(), 300))


@pytest.fixture
def queues(broker: mongoq.Broker) -> Queues:
    return open_queues(broker, lease=timedelta(seconds=1.5))


def run(queues: Queues, work: list[Station], rows: Iterable[RawRow]) -> Line:
    with Line(queues, work, rows, threads=2) as line:
        while not line.wait(60):
            pytest.fail("the line is still busy after a minute")
    return line


def proof_of(raw: Any, rows: list[RawRow]) -> Proof:
    return prove(raw, map(row_id, rows), done=DONE)


def never_departed(rows: list[RawRow]) -> int:
    return sum(row["dep_time"] == "NA" for row in rows)


def reasons(queue: mongoq.Queue[Any]) -> Counter[str]:
    dead = queue.dead.peek(1000)
    return Counter(item.origin.reason for item in dead if item.origin is not None)


def with_fault(work: list[Station], name: str, fault: Fault) -> list[Station]:
    """Return the stations, one of them with something that happens before it works on a payload."""

    def faulty(station: Station) -> Station:
        def handle(payload: Any) -> mongoq.Outcome | None:
            fault(payload)
            return station.handle(payload)

        return replace(station, handle=handle) if station.name == name else station

    return [faulty(station) for station in work]


def test_every_flight_is_done_or_dead(queues: Queues, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    line = run(queues, stations(queues, tables), rows)
    dead = never_departed(rows)
    assert 0 < dead < 30
    assert proof_of(raw, rows) == Proof(pushed=300, done=300 - dead, dead=dead, elsewhere=0)
    assert reasons(queues.raw) == {"never departed": dead}
    assert [tally.finished for tally in line.tallies] == [300, 300, 300 - dead, 300 - dead]
    flight = next(queues.done.history())
    assert flight.payload.airline == tables.airlines[flight.payload.carrier]


def test_another_run_adds_nothing(queues: Queues, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    run(queues, stations(queues, tables), rows)
    before = list(raw.find(ITEMS).sort("_id"))
    again = run(queues, stations(queues, tables), rows)
    assert list(raw.find(ITEMS).sort("_id")) == before
    assert [tally.finished for tally in again.tallies] == [300, 0, 0, 0]


def test_rows_loaded_twice_are_loaded_once(queues: Queues, rows: list[RawRow]) -> None:
    for some in rows[:30], rows[:50], rows[20:50]:
        push(queues, some)
    assert queues.inbox.counts().total == 50


def test_a_handler_that_fails_now_and_then_loses_nothing(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    failed = set()

    def fail_at_first(flight: Flight) -> None:
        name = flight.carrier, flight.flight, flight.scheduled
        if flight.flight % 4 == 0 and name not in failed:
            failed.add(name)
            raise ConnectionError("the tables cannot be reached")

    line = run(queues, with_fault(stations(queues, tables), "enrich", fail_at_first), rows)
    assert line.tallies[2].endings["retried"] == len(failed) > 20
    assert proof_of(raw, rows).done == 300 - never_departed(rows)


def test_a_flight_that_always_fails_ends_in_the_dead_queue_with_its_error(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    def fail(flight: Flight) -> None:
        if flight.origin == "LGA":
            raise KeyError("LGA")

    run(queues, with_fault(stations(queues, tables), "enrich", fail), rows[:60])
    buried = queues.checked.dead.peek(100)
    assert buried
    assert {item.payload["origin"] for item in buried} == {"LGA"}
    assert {(item.error.type, item.origin.attempts) for item in buried if item.error and item.origin} == {
        ("KeyError", 4)
    }
    assert proof_of(raw, rows[:60]).holds


def test_flights_of_a_worker_that_died_are_taken_up_by_others(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    push(queues, rows)
    held = [queues.raw.reserve() for _ in range(10)]  # and never settled
    line = run(queues, stations(queues, tables), [])
    assert None not in held
    assert proof_of(raw, rows).holds
    assert line.tallies[1].finished == 300


def test_a_handler_slower_than_its_lease_keeps_its_item(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    slept = threading.Event()

    def sleep_once(_: Any) -> None:
        if not slept.is_set():
            slept.set()
            time.sleep(3)

    line = run(queues, with_fault(stations(queues, tables), "validate", sleep_once), rows[:20])
    assert line.tallies[1].finished == line.tallies[1].endings.total() == 20
    assert proof_of(raw, rows[:20]).holds


def test_a_worker_that_has_lost_its_items_changes_nothing(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    stolen = threading.Event()

    def steal_once(_: Any) -> None:
        if not stolen.is_set():
            stolen.set()
            theirs = {"token": ObjectId(), "by": "another", "when": datetime.now(UTC) + timedelta(seconds=2)}
            raw.update_many({"q": RAW, "reserved": True}, {"$set": theirs, "$inc": {"attempts": 1}})
            time.sleep(1.5)

    line = run(queues, with_fault(stations(queues, tables), "validate", steal_once), rows[:20])
    assert line.tallies[1].endings["lost"] == 1
    assert proof_of(raw, rows[:20]).holds


def test_a_loader_slower_than_the_stations_is_waited_for(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly() -> Iterable[RawRow]:
        for place, row in enumerate(rows[:40]):
            if place % 10 == 0:
                time.sleep(0.4)
            yield row

    monkeypatch.setattr(lines, "CHUNK", 10)
    run(queues, stations(queues, tables), slowly())
    assert proof_of(raw, rows[:40]).holds


def test_garbage_is_dead_with_its_reason(queues: Queues, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    good = next(row for row in rows if row["dep_time"] != "NA")
    garbage: list[RawRow] = [
        good | {"dep_time": "noon"},
        good | {"surplus": ["one", "two"]},
        {"year": "2013"},
        {},
        good | {"dep_delay": "1000"},
    ]
    run(queues, stations(queues, tables), [*garbage, good])
    told = reasons(queues.raw)
    assert told.pop("departure and delay contradict each other") == 1
    misfits = [reason.removeprefix("payload: does not fit the queue's model: ").split(":")[0] for reason in told]
    assert sorted(misfits) == ["dep_time", "month", "surplus", "year"]
    assert proof_of(raw, [*garbage, good]) == Proof(pushed=6, done=1, dead=5, elsewhere=0)


def test_a_line_that_is_left_early_holds_nothing_and_goes_on_later(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    with Line(queues, stations(queues, tables), rows, threads=2) as line:
        while line.tallies[1].finished < 20:
            line.wait(0.01)
    assert raw.count_documents({"reserved": True}) == 0
    assert not proof_of(raw, rows).holds
    run(queues, stations(queues, tables), rows)
    assert proof_of(raw, rows).holds


def test_a_loader_that_cannot_read_on_stops_the_line(
    queues: Queues, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    def breaking() -> Iterable[RawRow]:
        yield from rows[:30]
        raise OSError("the file cannot be read")

    with pytest.raises(OSError, match="cannot be read"):
        run(queues, stations(queues, tables), breaking())
    assert raw.count_documents({"reserved": True}) == 0


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, Proof(pushed=3, done=1, dead=1, elsewhere=1)),
        ({"q": "flights.done.dead"}, Proof(pushed=3, done=1, dead=2, elsewhere=0)),
        ({"q": "flights.raw", "processed": True}, Proof(pushed=3, done=1, dead=1, elsewhere=1)),
        (None, Proof(pushed=3, done=1, dead=1, elsewhere=0)),
    ],
)
def test_the_proof_says_where_things_are(
    queues: Queues, raw: Any, rows: list[RawRow], change: dict[str, Any] | None, expected: Proof
) -> None:
    push(queues, rows[:3])
    first, second, third = map(row_id, rows[:3])
    raw.update_one({"_id": first}, {"$set": {"q": "flights.done", "processed": True}})
    raw.update_one({"_id": second}, {"$set": {"q": "flights.raw.dead"}})
    if change is None:
        raw.delete_one({"_id": third})
    elif change:
        raw.update_one({"_id": third}, {"$set": change})
    found = proof_of(raw, rows[:3])
    assert found == expected
    assert found.holds == (expected.dead == 2)
