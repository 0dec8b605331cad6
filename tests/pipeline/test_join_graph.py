"""Joins as they are declared: what can be wrong with them, recipes, pictures and comparisons."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.pipeline.stations import Flight, Numbered


def together(a: Any, b: Any) -> Any:
    return [a, b]


def pipeline(*sources: str, handler: Any = together, **options: Any) -> mongoq.Pipeline:
    declared = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
    options = {"to": "out", "on": "id", "name": "join", **options}
    declared.join(list(sources or ("a", "b")), **options)(handler)
    return declared


def one(a: Any) -> None:
    pass


def four(a: Any, b: Any, c: Any, d: Any) -> None:
    pass


def generator(a: Any, b: Any) -> Any:
    yield a


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"sources": ["a"]}, "a join takes items from two queues or more"),
    ({"on": ""}, "on: where the value stands in payloads"),
    ({"on": "a..b"}, "on: where the value stands in payloads"),
    ({"on": 5}, "on: where the value stands in payloads"),
    ({"on": {"a": "id"}}, "on: a path for each of its queues"),
    ({"on": {"a": "id", "b": "id", "c": "id"}}, "on: a path for each of its queues"),
    ({"on": {"a": "id", "b": None}}, "on: where the value stands in payloads"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": "soon"}, "timeout"),
    ({"timeout": 1, "missing": "drop"}, "missing: 'error' or 'pass', not 'drop'"),
    ({"timeout": 1, "late": "pass"}, "late: 'error' or 'wait' or 'drop', not 'pass'"),
    ({"missing": "pass"}, "missing: 'pass' says nothing without a timeout"),
    ({"late": "wait"}, "late: 'wait' says nothing without a timeout"),
    ({"model": Flight}, "model: a list with one for each of its 2 queues"),
    ({"model": [Flight]}, "model: a list with one for each of its 2 queues"),
    ({"model": [Flight, 5]}, "model: pydantic cannot work with 5"),
    ({"handler": one}, "it is to take 2 payloads, one of each queue, and maybe the job"),
    ({"handler": four}, "it is to take 2 payloads, one of each queue, and maybe the job"),
    ({"handler": generator}, "it is a generator"),
    ({"handler": "no function"}, "handler: a function, not str"),
    ({"handler": "no function", "batch": 5}, "handler: a function, not str"),
    ({"handler": generator, "batch": 5}, "is a generator"),
    ({"handler": four, "batch": 5}, "is to take (payload) or (payload, job)"),
    ({"handler": one, "batch": 0}, "batch: "),
    ({"name": "x" * 110}, "which is no name of a queue"),
    ({"to": "graph.join.joined"}, "is where its own items wait or are joined"),
]


def test_faults() -> None:
    for options, problem in FAULTS:
        own = dict(options)
        with pytest.raises(mongoq.GraphInvalid) as caught:
            pipeline(*own.pop("sources", []), **own).check()
        assert any(problem in fault for fault in caught.value.faults), (options, caught.value.faults)


def test_nobody_else_takes_from_the_queues_of_a_join() -> None:
    declared = pipeline()
    declared.sink("a", shared=True)(one)
    with pytest.raises(mongoq.GraphInvalid, match="take items from it, and each item goes to one of them"):
        declared.check()


def test_handlers_may_take_the_job_or_any_number() -> None:
    def with_job(a: Any, b: Any, job: Any) -> Any: ...

    def any_number(*payloads: Any) -> Any: ...

    for handler in (with_job, any_number, together):
        pipeline(handler=handler).check()
    for handler in (any_number, together):
        pipeline(handler=handler, batch=5).check()


RECIPE = {
    "name": "graph",
    "errors": "graph.errors",
    "outputs": "out",
    "stages": [
        {
            "name": "join",
            "from": ["a", "b"],
            "to": "out",
            "handler": "tests.pipeline.test_join_graph:together",
            "model": ["tests.pipeline.stations:Flight", None],
            "join": {"on": {"a": "number", "b": "id"}, "timeout": 60, "late": "wait"},
            "concurrency": 2,
        }
    ],
}


def test_a_recipe_may_join() -> None:
    by_hand = pipeline(
        model=[Flight, None], on={"a": "number", "b": "id"}, timeout=60, late="wait", concurrency=2, handler=together
    )
    assert mongoq.Pipeline.from_recipe(RECIPE).compare(by_hand) == []


def test_what_is_wrong_in_a_recipe_is_named() -> None:
    stage = {**RECIPE["stages"][0], "join": {"until": 5}}  # type: ignore[dict-item]
    with pytest.raises(mongoq.GraphInvalid) as caught:
        mongoq.Pipeline.from_recipe({**RECIPE, "stages": [stage]})
    assert any("'on' is missing" in fault for fault in caught.value.faults)
    assert any("unknown key 'until'" in fault for fault in caught.value.faults)


def test_a_picture_tells_how_it_joins() -> None:
    declared = pipeline(on={"a": "x.id", "b": "id"}, timeout=timedelta(hours=1), late="drop", model=[Flight, Numbered])
    text = declared.describe()
    assert "joins       on x.id of a, id of b" in text
    assert "timeout     datetime.timedelta(seconds=3600), then error; who is late: drop" in text
    assert "model       tests.pipeline.stations:Flight, tests.pipeline.stations:Numbered" in text
    assert "joins       the first of each" in pipeline(on=None).describe()
    assert "queue_a --> stage_join" in declared.to_mermaid()


def test_a_comparison_tells_what_has_changed() -> None:
    [difference] = pipeline().compare(pipeline(timeout=5))
    assert (difference.field, difference.before.timeout, difference.after.timeout) == ("join", None, 5)
    [difference] = pipeline().compare(pipeline(model=[Flight, None]))
    assert difference.after == ("tests.pipeline.stations:Flight", None)


def split(payload: Any) -> mongoq.Fork:
    return mongoq.Fork([mongoq.Move("a", payload=payload), mongoq.Move("b", payload=payload)])


def split_all(payloads: list[Any]) -> list[mongoq.Fork | mongoq.Drop]:
    return [split(payload) for payload in payloads]


def untyped(payload: Any) -> Any:
    return split(payload)


def test_a_standalone_server_is_refused_before_anything_is_written() -> None:
    declared = pipeline()
    declared.stage("raw", to=["a", "b"])(split)
    declared.stage("raws", to=["a", "b"], batch=5)(split_all)
    declared.stage("once", to=["a", "b"], name="popped", delivery="at-most-once")(split)
    with EmbeddedServer(replica_set=None) as server, MongoClient[Any](server.uri) as client:
        broker = mongoq.Broker(client["test"]["mongoq"])
        with pytest.raises(mongoq.TransactionsUnavailable, match="a set of one node will do") as refused:
            declared.start(broker)
        assert refused.value.needed_by == ("join 'join'", "fork 'split'", "fork 'split_all'")
        assert "transactions of join 'join', fork 'split', fork 'split_all' need a replica set" in str(refused.value)
        assert client["test"].list_collection_names() == []


def test_a_fork_that_nothing_declares_is_refused_by_a_standalone_server_when_it_happens() -> None:
    declared = mongoq.Pipeline("graph", errors="graph.errors", outputs=["a", "b"])
    declared.stage("raw", to=["a", "b"], max_retries=0)(untyped)
    with EmbeddedServer(replica_set=None) as server, MongoClient[Any](server.uri) as client:
        broker = mongoq.Broker(client["test"]["mongoq"])
        broker.queue("raw").push(1)
        declared.drain(broker)
        [letter] = broker.queue("graph.errors").peek(5)
        assert letter.error is not None
        assert letter.error.type == "mongoq.errors.TransactionsUnavailable"
        assert broker.queues() == ["graph.errors"]
        broker.close()


def test_no_two_joins_share_their_queues_whatever_they_are_called(broker: mongoq.Broker) -> None:
    for number, (name, stage) in enumerate([("a.b", "c"), ("a", "b.c"), ("a%2Eb", "c"), ("a/b", "c"), ("a", "b/c")]):
        declared = mongoq.Pipeline(name, errors="errors", outputs="out")
        declared.join(["a", "b"], to="out", on="id", name=stage)(together)
        broker.queue("a").push({"id": 1})
        declared.drain(broker)
        assert len(list(declared.waiting(broker))) == 1
        assert len(broker.queues()) == number + 1
