"""What a stage returns, and where its item goes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

import mongoq
from tests.pipeline.conftest import QUICK, Site, every_engine


class Flight(BaseModel):
    number: int
    late: bool = False


@every_engine
def test_a_returned_payload_goes_on_to_the_only_target(site: Site) -> None:
    ids = site.queue("raw").push_many([{"n": n} for n in range(20)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="checked", concurrency=3)
    def check(payload: Any) -> Any:
        return {**payload, "checked": True}

    @pipeline.stage("checked", to="out", batch=7)
    def enrich(payloads: Any) -> Any:
        return [{**payload, "rich": True} for payload in payloads]

    site.drain(pipeline)
    items = site.queue("out").peek(100)
    assert sorted(item.id for item in items) == ids
    assert {item.id: item.payload for item in items} == {
        id: {"n": n, "checked": True, "rich": True} for n, id in enumerate(ids)
    }
    assert {item.hops for item in items} == {2}
    assert site.broker.queues() == ["out"]


def test_several_targets_are_chosen_from_by_moves(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(10)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["odd", "even"])

    @pipeline.stage("raw", to=["odd", "even"])
    def route(payload: Any) -> mongoq.Move:
        if payload["n"] % 2:
            return mongoq.Move("odd", patch={"$set": {"odd": True}})
        return mongoq.Move("even", payload=payload["n"], headers={"by": "route"}, priority=3)

    site.drain(pipeline)
    assert sorted(output["n"] for output in site.payloads("odd")) == [1, 3, 5, 7, 9]
    assert sorted(site.payloads("even")) == [0, 2, 4, 6, 8]
    assert {(item.priority, item.headers["by"]) for item in site.queue("even").peek(10)} == {(3, "route")}
    assert site.payloads("line.errors") == []


def test_any_of_several_inputs_reaches_a_stage(site: Site) -> None:
    site.queue("a").push_many([1, 2])
    site.queue("b").push_many([3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    deliveries = []

    @pipeline.stage(["a", "b"], to="out")
    def note(payload: Any, job: Any) -> Any:
        deliveries.append((job.item.queue, payload))
        return payload * 10

    site.drain(pipeline)
    assert sorted(deliveries) == [("a", 1), ("a", 2), ("b", 3)]
    assert sorted(site.payloads("out")) == [10, 20, 30]


def test_a_sink_ends_the_way_whatever_it_returns(site: Site) -> None:
    site.queue("raw", history=3600).push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    returned = iter([None, {"any": "thing"}, [1, 2]])

    @pipeline.sink("raw")
    def load(payload: Any) -> Any:
        return next(returned)

    site.drain(pipeline)
    assert sorted(item.payload for item in site.queue("raw").history()) == [1, 2, 3]
    assert site.payloads("line.errors") == []


def test_outcomes_mean_what_they_mean_to_workers(site: Site) -> None:
    site.queue("raw", history=3600).push_many(["drop", "dead", "retry"])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", retry=QUICK)
    def decide(payload: Any, job: Any) -> Any:
        if payload == "drop":
            return mongoq.Drop()
        if payload == "dead":
            return mongoq.Dead("no use")
        return mongoq.Retry(0.01) if job.item.attempts < 3 else mongoq.Move("out", payload=job.item.attempts)

    site.drain(pipeline)
    assert [item.payload for item in site.queue("raw").history()] == ["drop"]
    assert site.letters("line.errors") == [("dead", "no use")]
    assert site.payloads("out") == [3]


def test_payloads_are_made_by_the_model_and_checked_by_that_of_the_next_stage(site: Site) -> None:
    site.queue("raw").push_many([{"number": 1}, {"number": "x"}, {"number": 3}])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="checked", model=Flight, retry=QUICK, max_retries=1)
    def check(flight: Flight) -> Any:
        assert isinstance(flight, Flight)
        return flight.model_copy(update={"late": True}) if flight.number == 1 else {"number": None}

    @pipeline.stage("checked", to="out", model=Flight)
    def pass_on(flight: Flight) -> Any:
        return flight

    site.drain(pipeline)
    assert site.payloads("out") == [{"number": 1, "late": True}]
    letters = site.queue("line.errors").peek(10)
    assert sorted((repr(item.payload), item.origin.stage) for item in letters if item.origin) == [
        ("{'number': 'x'}", "check"),
        ("{'number': 3}", "check"),
    ]


class Rich(Flight):
    carrier: str = "UA"


class Alike(BaseModel):
    number: int


class Unlike(BaseModel):
    number: str


def test_a_payload_of_another_model_is_read_anew_by_the_next_stage(site: Site) -> None:
    site.queue("raw").push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    values = {1: Rich(number=1), 2: Alike(number=2), 3: Unlike(number="x")}
    flights = []

    @pipeline.stage("raw", to="next", max_retries=0)
    def make(payload: int) -> Any:
        return values[payload]

    @pipeline.stage("next", to="out", model=Flight)
    def read(flight: Flight) -> Any:
        flights.append(flight)
        return mongoq.Move("out")

    site.drain(pipeline)
    assert sorted(flights, key=lambda flight: flight.number) == [Flight(number=1), Flight(number=2)]
    [letter] = site.queue("line.errors").peek(5)
    assert letter.payload == {"number": "x"}
    assert letter.origin is not None
    assert letter.origin.stage == "read"


def test_what_must_not_be_returned_follows_the_error_path(site: Site) -> None:
    cases: list[tuple[Any, str]] = [
        (None, "returned None, most likely for a forgotten return"),
        ([{"n": 1}], "returned a list where one payload is due"),
        ((1, 2), "returned a tuple where one payload is due"),
        (mongoq.Move("elsewhere"), "moved an item to 'elsewhere', which is not one of its targets"),
        (mongoq.Move(["out"]), "moved an item to ['out'], which is not one of its targets"),  # type: ignore[arg-type]
        (mongoq.Move("out", payload=1, patch={"$set": {"a": 1}}), "not both"),
        (mongoq.Move, "the class Move was returned"),
        (ValueError("as if it were raised"), "as if it were raised"),
        (KeyError, "the class KeyError was returned"),
        ({"n": object()}, "BSON cannot hold a builtins.object"),
    ]
    site.queue("raw").push_many([{"n": n} for n in range(len(cases))])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", retry=QUICK, max_retries=1)
    def wrong(payload: Any) -> Any:
        return cases[payload["n"]][0]

    site.drain(pipeline)
    letters = {letter.payload["n"]: letter for letter in site.queue("line.errors").peek(20)}
    for n, (_, message) in enumerate(cases):
        letter = letters[n]
        assert letter.error is not None
        assert message in letter.error.message
        assert letter.origin is not None
        assert (letter.origin.queue, letter.origin.stage, letter.origin.attempts) == ("raw", "wrong", 2)
    assert site.payloads("out") == []


def test_a_payload_where_a_move_is_due_is_an_error(site: Site) -> None:
    site.queue("raw").push(1)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["a", "b"])

    @pipeline.stage("raw", to=["a", "b"], max_retries=0)
    def route(payload: Any) -> Any:
        return payload

    site.drain(pipeline)
    [item] = site.queue("line.errors").peek(5)
    assert item.error is not None
    assert "stage 'route' returned a int; it has several targets ('a', 'b')" in item.error.message


def test_one_wrong_entry_of_a_batch_is_that_item_s_failure(site: Site) -> None:
    site.queue("raw").push_many([0, 1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", batch=4, max_retries=0)
    def work(payloads: Any) -> Any:
        return [None if payload == 1 else KeyError("two") if payload == 2 else payload for payload in payloads]

    site.drain(pipeline)
    assert sorted(site.payloads("out")) == [0, 3]
    assert sorted(site.payloads("line.errors")) == [1, 2]


def test_what_counts_as_success_goes_on_as_it_is(site: Site) -> None:
    site.queue("raw").push({"n": 1})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", success_on=KeyError)
    def conflict(payload: Any) -> Any:
        raise KeyError("there already")

    site.drain(pipeline)
    assert site.payloads("out") == [{"n": 1}]


def test_every_attempt_of_an_item_has_the_same_delivery_hash_and_every_stage_another(site: Site) -> None:
    ids = site.queue("raw").push_many([1, 2])
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    hashes: dict[Any, list[str]] = {}

    def noted(stage: str) -> Any:
        def work(payload: Any, job: Any) -> Any:
            hashes.setdefault((stage, job.item.id), []).append(job.delivery_hash)
            if job.item.attempts < 3:
                raise ValueError("again")
            return payload

        return work

    pipeline.stage("raw", to="next", name="first", retry=QUICK)(noted("first"))
    pipeline.sink("next", name="second", retry=QUICK)(noted("second"))
    site.drain(pipeline)
    assert set(hashes) == {(stage, id) for stage in ("first", "second") for id in ids}
    assert all(len(attempts) == 3 and len(set(attempts)) == 1 for attempts in hashes.values())
    assert len({attempts[0] for attempts in hashes.values()}) == 4
