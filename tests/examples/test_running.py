"""The flights example on a real server: what was pushed is done or dead, whatever happens on the way."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from examples.flights import pipeline, running
from examples.flights.data import data_folder, raw_rows, reference, row_id
from examples.flights.letters import letters_of, replay_enrich
from examples.flights.model import EnrichedFlight, Flight, RawRow, Reference
from examples.flights.pipeline import CHECKED, DONE, ERRORS, RAW, prepare, push
from examples.flights.proof import Proof, prove
from examples.flights.running import start_line
from examples.letters import Cause, causes
from examples.running import WORKERS, Site
from tests.waiting import PATIENCE

ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}
UNKNOWN = "BQN", "PSE", "SJU", "STT"
"""Airports that the table does not know."""

Fault = Callable[[Any], None]


@pytest.fixture(scope="module")
def tables() -> Reference:
    return reference(data_folder())


@pytest.fixture(scope="module")
def rows() -> list[RawRow]:
    return list(raw_rows(data_folder(), 300))


@pytest.fixture
def site(broker: mongoq.Broker, uri: str) -> Site:
    prepare(broker)
    return Site(broker, uri)


@pytest.fixture(params=WORKERS)
def each_site(broker: mongoq.Broker, uri: str, request: pytest.FixtureRequest) -> Site:
    """Each engine."""
    prepare(broker)
    return Site(broker, uri, request.param)


def build(tables: Reference, *, broken: bool = False, engine: str = "threads") -> mongoq.Pipeline:
    lease = timedelta(seconds=1.5)
    return pipeline.build(tables, broken=broken, engine=engine, concurrency=2, lease=lease)


def run(site: Site, work: mongoq.Pipeline, rows: Iterable[RawRow] = ()) -> mongoq.Progress:
    with start_line(work, site, rows) as line:
        while not line.wait(PATIENCE):
            pytest.fail("the line does not come to its end")
        return line.progress()


def proof_of(raw: Any, rows: list[RawRow]) -> Proof:
    return prove(raw, map(row_id, rows), done=DONE, dead=ERRORS)


def never_departed(rows: list[RawRow]) -> int:
    return sum(row["dep_time"] == "NA" for row in rows)


def to_nowhere(rows: list[RawRow]) -> set[ObjectId]:
    """Return the rows at which the first version of ``enrich`` fails."""
    return {row_id(row) for row in rows if row["dest"] in UNKNOWN and row["dep_time"] != "NA"}


def with_fault(monkeypatch: pytest.MonkeyPatch, name: str, fault: Fault) -> None:
    """Let something happen in a handler before it works on a payload, in pipelines that are built from now on."""
    handler = getattr(pipeline, name)

    @wraps(handler)
    def handle(payload: Any, **named: Any) -> Any:
        fault(payload)
        return handler(payload, **named)

    monkeypatch.setattr(pipeline, name, handle)


def test_every_flight_is_done_or_dead(each_site: Site, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    result = run(each_site, build(tables, engine=each_site.engine), rows)
    dead = never_departed(rows)
    assert 0 < dead < 30
    assert proof_of(raw, rows) == Proof(pushed=300, done=300 - dead, dead=dead, elsewhere=0)
    assert causes(each_site.broker, ERRORS) == {Cause("validate", "never departed", ""): dead}
    assert [stage.settled for stage in result.stages.values()] == [300, 300 - dead, 300 - dead]
    validate, enrich, finish = result.stages.values()
    assert (validate.moved, validate.dead, enrich.moved, finish.done) == (300 - dead, dead, 300 - dead, 300 - dead)
    flight = next(each_site.broker.queue(DONE, model=EnrichedFlight).history())
    assert flight.payload.airline == tables.airlines[flight.payload.carrier]


@pytest.mark.prove
def test_what_the_first_version_fails_at_is_replayed_through_the_mended_one(
    each_site: Site, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    broker, engine = each_site.broker, each_site.engine
    first, mended = (build(tables, broken=broken, engine=engine) for broken in (True, False))
    failing, dead = to_nowhere(rows), never_departed(rows)
    assert len(failing) > 3
    counts = run(each_site, first, rows).stages["enrich"]
    assert (counts.dead, counts.retried, counts.moved) == (len(failing), len(failing), 300 - dead - len(failing))
    assert set(letters_of(broker, "enrich")) == failing
    assert proof_of(raw, rows) == Proof(
        pushed=300, done=300 - dead - len(failing), dead=dead + len(failing), elsewhere=0
    )
    by_cause = causes(broker, ERRORS)
    assert by_cause.pop(Cause("validate", "never departed", "")) == dead
    assert {(cause.stage, cause.reason) for cause in by_cause} == {("enrich", "retries exhausted")}
    assert {cause.error for cause in by_cause} <= {f"KeyError: {code!r}" for code in UNKNOWN}
    for item in broker.queue(ERRORS).peek(1000):
        assert item.origin is not None
        if item.origin.stage == "enrich":
            assert item.error is not None
            assert "enrich_at_first" in item.error.traceback
            assert item.origin.delivery

    assert set(replay_enrich(broker)) == failing
    assert letters_of(broker, "enrich") == []
    counts = run(each_site, mended).stages["enrich"]
    assert (counts.moved, counts.dead, counts.retried) == (len(failing), 0, 0)
    assert causes(broker, ERRORS) == {Cause("validate", "never departed", ""): dead}
    assert proof_of(raw, rows) == Proof(pushed=300, done=300 - dead, dead=dead, elsewhere=0)
    assert replay_enrich(broker) == []
    for id in failing:
        hops = broker.trail(id)
        assert hops is not None
        assert [(hop.queue, hop.stage, hop.ended, hop.to, hop.attempts) for hop in hops] == [
            (RAW, "validate", "moved", CHECKED, 1),
            (CHECKED, "enrich", "dead", ERRORS, 2),
            (CHECKED, "enrich", "moved", DONE, 1),
            (DONE, "finish", "done", None, 1),
        ]
        assert all(hop.taken <= hop.settled for hop in hops)


def test_the_fix_is_all_that_is_different(tables: Reference) -> None:
    first, mended = build(tables, broken=True), build(tables)
    [difference] = first.compare(mended)
    assert (difference.name, difference.field) == ("enrich", "handler")
    assert difference.before.endswith(":enrich_at_first")
    assert difference.after.endswith(":enrich")
    assert first.compare(build(tables, broken=True, engine="asyncio")) == []


@pytest.mark.prove
def test_every_engine_makes_the_same_of_the_same_rows(
    raw: Any, rows: list[RawRow], tables: Reference, broker: mongoq.Broker, uri: str
) -> None:
    prepare(broker)
    counts, places, letters = [], [], []
    for engine in WORKERS:
        site = Site(broker, uri, engine)
        stage_counts = []
        for broken in True, False:
            stages = run(site, build(tables, broken=broken, engine=engine), rows).stages.values()
            stage_counts.append([(stage.moved, stage.done, stage.dead, stage.retried) for stage in stages])
            letters.append(causes(broker, ERRORS))
            replay_enrich(broker)
        counts.append(stage_counts)
        places.append({(item["_id"], item["q"], str(item["payload"])) for item in raw.find(ITEMS)})
        raw.delete_many(ITEMS)
    assert counts == [counts[0]] * len(WORKERS)
    assert places == [places[0]] * len(WORKERS)
    assert letters == letters[:2] * len(WORKERS)
    assert len(places[0]) == 300
    assert len(letters[0]) > len(letters[1]) == 1, "what the first version has failed at is there no more"


def test_another_run_adds_nothing(site: Site, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    run(site, build(tables), rows)
    before = list(raw.find(ITEMS).sort("_id"))
    again = run(site, build(tables), rows)
    assert list(raw.find(ITEMS).sort("_id")) == before
    assert [stage.settled for stage in again.stages.values()] == [0, 0, 0]


def test_rows_loaded_twice_are_loaded_once(site: Site, rows: list[RawRow]) -> None:
    for some in rows[:30], rows[:50], rows[20:50]:
        push(site.broker, some)
    assert site.broker.queue(RAW).counts().total == 50


@pytest.mark.prove
def test_a_handler_that_fails_now_and_then_loses_nothing(
    site: Site, raw: Any, rows: list[RawRow], tables: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = set()

    def fail_at_first(flight: Flight) -> None:
        name = flight.carrier, flight.flight, flight.scheduled
        if flight.flight % 4 == 0 and name not in failed:
            failed.add(name)
            raise ConnectionError("the tables cannot be reached")

    with_fault(monkeypatch, "enrich", fail_at_first)
    result = run(site, build(tables), rows)
    assert result.stages["enrich"].retried == len(failed) > 20
    assert proof_of(raw, rows).done == 300 - never_departed(rows)


def test_a_flight_that_always_fails_ends_in_the_error_queue_with_its_error(
    site: Site, raw: Any, rows: list[RawRow], tables: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(flight: Flight) -> None:
        if flight.origin == "LGA":
            raise KeyError("LGA")

    with_fault(monkeypatch, "enrich", fail)
    run(site, build(tables), rows[:60])
    letters = [item for item in site.broker.queue(ERRORS).peek(100) if item.origin and item.origin.stage == "enrich"]
    assert letters
    assert {item.payload["origin"] for item in letters} == {"LGA"}
    details = {
        (item.error.type, item.origin.queue, item.origin.attempts) for item in letters if item.error and item.origin
    }
    assert details == {("KeyError", CHECKED, 2)}
    assert proof_of(raw, rows[:60]).holds


@pytest.mark.prove
def test_flights_of_a_worker_that_died_are_taken_up_by_others(
    each_site: Site, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    push(each_site.broker, rows)
    items = [each_site.broker.queue(RAW).reserve(lease=1.5) for _ in range(10)]  # and never settled
    result = run(each_site, build(tables, engine=each_site.engine))
    assert None not in items
    assert proof_of(raw, rows).holds
    assert result.stages["validate"].settled == 300


@pytest.mark.prove
def test_a_handler_slower_than_its_lease_keeps_its_item(
    site: Site, raw: Any, rows: list[RawRow], tables: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = threading.Event()
    runs = Counter[str]()

    def sleep_once(row: Any) -> None:
        runs["all"] += 1
        if not slept.is_set():
            slept.set()
            time.sleep(3)

    with_fault(monkeypatch, "check", sleep_once)
    result = run(site, build(tables), rows[:20])
    assert runs["all"] == result.stages["validate"].settled == 20
    assert proof_of(raw, rows[:20]).holds


def test_a_worker_that_has_lost_its_items_changes_nothing(
    site: Site, raw: Any, rows: list[RawRow], tables: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = threading.Lock()
    theirs = {"token": ObjectId(), "by": "another"}
    stolen: list[Any] = []
    runs: list[Any] = []

    def steal_once(row: Any) -> None:
        with alone:  # before any item is being settled: of such a one nobody could tell by whom it was
            runs.append(row)
            steals = not stolen
            if steals:
                until = {"when": datetime.now(UTC) + timedelta(seconds=2)}
                raw.update_many({"q": RAW, "reserved": True}, {"$set": theirs | until, "$inc": {"attempts": 1}})
                stolen.extend(item["_id"] for item in raw.find(theirs))
        if steals:
            time.sleep(1.5)

    with_fault(monkeypatch, "check", steal_once)
    result = run(site, build(tables), rows[:20])
    assert len(stolen) >= 1
    assert len(runs) > result.stages["validate"].settled == 20, "a run whose item was lost counts for nothing"
    assert proof_of(raw, rows[:20]).holds
    for id in stolen:
        hops = site.broker.trail(id)
        assert hops is not None
        assert [(hop.stage, hop.attempts) for hop in hops if hop.stage == "validate"] == [("validate", 3)]


@pytest.mark.prove
def test_a_loader_slower_than_the_stages_is_waited_for(
    each_site: Site, raw: Any, rows: list[RawRow], tables: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly() -> Iterable[RawRow]:
        for place, row in enumerate(rows[:40]):
            if place % 10 == 0:
                time.sleep(0.4)
            yield row

    monkeypatch.setattr(running, "CHUNK", 10)
    run(each_site, build(tables, engine=each_site.engine), slowly())
    assert proof_of(raw, rows[:40]).holds


def test_garbage_is_dead_with_its_reason(site: Site, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    good = next(row for row in rows if row["dep_time"] != "NA")
    garbage: list[RawRow] = [
        good | {"dep_time": "noon"},
        good | {"surplus": ["one", "two"]},
        {"year": "2013"},
        {},
        good | {"dep_delay": "1000"},
    ]
    result = run(site, build(tables), [*garbage, good])
    validate = result.stages["validate"]
    assert (validate.moved, validate.dead) == (1, 5)
    by_cause = causes(site.broker, ERRORS)
    assert {cause.stage for cause in by_cause} == {"validate"}
    reasons = Counter(cause.reason for cause in by_cause.elements())
    assert reasons.pop("departure and delay contradict each other") == 1
    misfits = [reason.removeprefix("payload: does not fit the queue's model: ").split(":")[0] for reason in reasons]
    assert sorted(misfits) == ["dep_time", "month", "surplus", "year"]
    assert proof_of(raw, [*garbage, good]) == Proof(pushed=6, done=1, dead=5, elsewhere=0)


def test_a_line_that_is_left_early_holds_nothing_and_goes_on_later(
    each_site: Site, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    work = build(tables, engine=each_site.engine)
    with start_line(work, each_site, rows) as line:
        while line.progress().stages["validate"].settled < 20:
            line.wait(0.01)
    assert raw.count_documents({"reserved": True}) == 0
    assert not proof_of(raw, rows).holds
    run(each_site, work, rows)
    assert proof_of(raw, rows).holds


def test_letters_of_a_run_that_was_left_are_replayed_by_a_later_one(
    site: Site, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    failing, dead = to_nowhere(rows), never_departed(rows)
    with start_line(build(tables, broken=True), site, rows) as line:
        while not line.progress().stages["enrich"].dead:
            line.wait(0.01)
    before = set(letters_of(site.broker, "enrich"))
    run(site, build(tables, broken=True), rows)
    assert set(letters_of(site.broker, "enrich")) == failing > set()
    assert before <= failing
    replay_enrich(site.broker)
    with start_line(build(tables), site) as line:
        line.wait(0)
    run(site, build(tables))
    assert causes(site.broker, ERRORS) == {Cause("validate", "never departed", ""): dead}
    assert proof_of(raw, rows) == Proof(pushed=300, done=300 - dead, dead=dead, elsewhere=0)


def test_a_loader_that_cannot_read_on_stops_the_line(
    each_site: Site, raw: Any, rows: list[RawRow], tables: Reference
) -> None:
    def breaking() -> Iterable[RawRow]:
        yield from rows[:30]
        raise OSError("the file cannot be read")

    with pytest.raises(OSError, match="cannot be read"):
        run(each_site, build(tables, engine=each_site.engine), breaking())
    assert raw.count_documents({"reserved": True}) == 0


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, Proof(pushed=3, done=1, dead=1, elsewhere=1)),
        ({"q": "flights.errors"}, Proof(pushed=3, done=1, dead=2, elsewhere=0)),
        ({"q": "flights.raw", "processed": True}, Proof(pushed=3, done=1, dead=1, elsewhere=1)),
        ({"q": "flights.raw.dead"}, Proof(pushed=3, done=1, dead=1, elsewhere=1)),
        (None, Proof(pushed=3, done=1, dead=1, elsewhere=0)),
    ],
)
def test_the_proof_says_where_things_are(
    site: Site, raw: Any, rows: list[RawRow], change: dict[str, Any] | None, expected: Proof
) -> None:
    push(site.broker, rows[:3])
    first, second, third = map(row_id, rows[:3])
    raw.update_one({"_id": first}, {"$set": {"q": "flights.done", "processed": True}})
    raw.update_one({"_id": second}, {"$set": {"q": "flights.errors"}})
    if change is None:
        raw.delete_one({"_id": third})
    elif change:
        raw.update_one({"_id": third}, {"$set": change})
    proof = proof_of(raw, rows[:3])
    assert proof == expected
    assert proof.holds == (expected.dead == 2)
