"""The flights example on a real server: what was pushed is done or dead, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from examples.flights import pipeline
from examples.flights.data import data_folder, raw_rows, reference, row_id
from examples.flights.letters import letters_of, replay_enrich
from examples.flights.model import EnrichedFlight, RawRow, Reference
from examples.flights.pipeline import CHECKED, DONE, ERRORS, RAW, prepare
from examples.flights.proof import Proof, prove
from examples.flights.running import start_line
from examples.letters import Cause, causes
from examples.running import WORKERS, Site
from tests.waiting import PATIENCE

ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}
UNKNOWN = "BQN", "PSE", "SJU", "STT"
"""Airports that the table does not know."""


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
    lease = timedelta(seconds=30)
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


def test_another_run_adds_nothing(site: Site, raw: Any, rows: list[RawRow], tables: Reference) -> None:
    run(site, build(tables), rows)
    before = list(raw.find(ITEMS).sort("_id"))
    again = run(site, build(tables), rows)
    assert list(raw.find(ITEMS).sort("_id")) == before
    assert [stage.settled for stage in again.stages.values()] == [0, 0, 0]


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
    with start_line(work, each_site, rows[:150]) as line:  # the proof wants them all
        while line.progress().stages["validate"].settled < 20:
            line.wait(0.01)
    assert raw.count_documents({"reserved": True}) == 0
    assert not proof_of(raw, rows).holds
    run(each_site, work, rows)
    assert proof_of(raw, rows).holds
