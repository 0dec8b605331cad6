"""Declaring a pipeline: what decorators collect, and the graph that comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import mongoq
from mongoq.model.settings import DEFAULT
from mongoq.pipeline.graph.handlers import handler_name, import_path, quote_if_odd
from tests.pipeline import stations


def test_decorators_return_the_function_as_it_is() -> None:
    pipeline = mongoq.Pipeline("flights")
    assert pipeline.stage("raw", to="out")(stations.check) is stations.check
    assert pipeline.sink("out")(stations.load) is stations.load


def test_the_graph_holds_what_was_declared() -> None:
    pipeline = mongoq.Pipeline("flights", errors="bad", inputs="raw", outputs=["kept", "lost"], trail="payloads")
    pipeline.stage("raw", to=["kept", "lost"], model=stations.Flight, where={"n": 1}, otherwise=mongoq.Drop())(
        stations.check
    )
    graph = pipeline.graph
    assert (graph.name, graph.errors, graph.inputs, graph.outputs, graph.trail) == (
        "flights",
        "bad",
        ("raw",),
        ("kept", "lost"),
        "payloads",
    )
    (stage,) = graph.stages
    assert (stage.name, stage.sources, stage.targets) == ("check", ("raw",), ("kept", "lost"))
    assert (stage.handler, stage.model) == (stations.check, stations.Flight)
    assert (stage.where, stage.otherwise, stage.errors) == ({"n": 1}, mongoq.Drop(), DEFAULT)
    assert (stage.delivery, stage.none, stage.shared) == ("exactly-once", "error", False)
    assert pipeline.name == "flights"


def test_only_the_options_that_were_given_are_kept() -> None:
    pipeline = mongoq.Pipeline("flights")
    pipeline.stage("raw", to="out")(stations.check)
    pipeline.sink("out", concurrency=4, max_retries=None, batch=10, retry=mongoq.Fixed(1))(stations.load)
    plain, with_options = pipeline.graph.stages
    assert plain.options == {}
    assert with_options.options == {"concurrency": 4, "max_retries": None, "batch": 10, "retry": mongoq.Fixed(1)}


def test_a_sink_has_no_targets_and_a_stage_with_none_is_no_sink() -> None:
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink(["a", "b"])(stations.load)
    pipeline.stage("c", to=[])(stations.check)
    sink, stage = pipeline.graph.stages
    assert sink.is_sink
    assert sink.sources == ("a", "b")
    assert not stage.is_sink


def test_errors_of_a_stage_are_the_pipelines_unless_it_says_otherwise() -> None:
    pipeline = mongoq.Pipeline("flights", errors="bad")
    for name, errors in [("a", DEFAULT), ("b", None), ("c", "own")]:
        pipeline.sink(name, errors=errors)(stations.load)
    graph = pipeline.graph
    assert [graph.errors_of(stage) for stage in graph.stages] == ["bad", None, "own"]


def test_a_graph_is_frozen_and_does_not_follow_later_stages() -> None:
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink("a")(stations.load)
    before = pipeline.graph
    pipeline.sink("b")(stations.load)
    assert len(before.stages) == 1
    assert len(pipeline.graph.stages) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.errors = "other"  # type: ignore[misc]


def test_entries_are_what_nobody_sends_to_unless_declared() -> None:
    pipeline = mongoq.Pipeline("flights")
    pipeline.stage(["raw", "again"], to="again")(stations.pass_on)
    assert pipeline.graph.entries == ("raw",)
    declared = mongoq.Pipeline("flights", inputs=["again"])
    declared.stage(["raw", "again"], to="again")(stations.pass_on)
    assert declared.graph.entries == ("again",)


@pytest.mark.parametrize(
    ("source", "to"),
    [(None, None), (5, 6), ("", ""), ([], []), ({"a"}, {"b": 1}), (b"a", ["a", ["b"]]), ("a\0", ...)],
    ids=repr,
)
def test_declaring_nonsense_raises_nothing_and_check_tells_it(source: Any, to: Any) -> None:
    pipeline = mongoq.Pipeline("flights")
    pipeline.stage(source, to=to)(stations.pass_on)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.check()
    assert any("source" in fault or "takes items from no queue" in fault for fault in caught.value.faults)
    assert any(" to: " in fault for fault in caught.value.faults)


def test_a_handler_that_is_no_function_is_reported_by_check() -> None:
    pipeline = mongoq.Pipeline("flights")
    nonsense: Any = 5
    pipeline.sink("a")(nonsense)
    with pytest.raises(mongoq.GraphInvalid, match="handler: a function, not int"):
        pipeline.check()


@pytest.mark.parametrize(
    ("handler", "name", "path"),
    [
        (stations.check, "check", "tests.pipeline.stations:check"),
        (stations.Desk.stamp, "stamp", "tests.pipeline.stations:Desk.stamp"),
        (partial(partial(stations.route), job=None), "route", "tests.pipeline.stations:route"),
        (stations.desk, "Desk", "tests.pipeline.stations:Desk"),
        (lambda payload: payload, "<lambda>", f"{__name__}:<lambda>"),
        (print, "print", "builtins:print"),
        ([].append, "append", "builtins:list.append"),
        (7, "int", "builtins:int"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_stage_is_named_after_its_handler(handler: Callable[..., Any], name: str, path: str) -> None:
    assert handler_name(handler) == name
    assert import_path(handler) == path
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink("a")(handler)
    pipeline.sink("b", name="own")(handler)
    assert [stage.name for stage in pipeline.graph.stages] == [name, "own"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.b-c/d:e", "a.b-c/d:e"),
        ("vols_été", "vols_été"),
        ("a b", "'a b'"),
        ("a\nb", r"'a\nb'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("", "''"),
        (5, "5"),
        ("\ud800", r"'\ud800'"),
    ],
)
def test_names_are_quoted_where_they_could_be_misread(name: Any, expected: str) -> None:
    assert quote_if_odd(name) == expected


def test_the_repr_names_the_stages() -> None:
    pipeline = mongoq.Pipeline("flights")
    assert repr(pipeline) == "<Pipeline 'flights' of no stages>"
    pipeline.sink("a")(stations.load)
    assert repr(pipeline) == "<Pipeline 'flights' of load>"
