"""Declaring a pipeline: what decorators collect, and the graph that comes of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import mongoq
from tests.pipeline import stations


def test_decorators_return_the_function_as_it_is() -> None:
    pipeline = mongoq.Pipeline("flights")
    assert pipeline.stage("raw", to="out")(stations.check) is stations.check
    assert pipeline.sink("out")(stations.load) is stations.load


def test_the_repr_names_the_stages() -> None:
    pipeline = mongoq.Pipeline("flights")
    assert repr(pipeline) == "<Pipeline 'flights' of no stages>"
    pipeline.sink("a")(stations.load)
    assert repr(pipeline) == "<Pipeline 'flights' of load>"


def test_declaring_nonsense_raises_nothing_and_check_tells_it() -> None:
    values: list[tuple[Any, Any]] = [(None, None), ("", ""), ([], []), ({"a"}, {"b": 1}), (b"a", ["a", ["b"]])]
    for source, to in values:
        pipeline = mongoq.Pipeline("flights")
        pipeline.stage(source, to=to)(stations.pass_on)
        with pytest.raises(mongoq.GraphInvalid) as caught:
            pipeline.check()
        assert any("source" in fault or "takes items from no queue" in fault for fault in caught.value.faults)
        assert any(" to: " in fault for fault in caught.value.faults)
    nonsense: Any = 5
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink("a")(nonsense)
    with pytest.raises(mongoq.GraphInvalid, match="handler: a function, not int"):
        pipeline.check()


def test_a_stage_is_named_after_its_handler() -> None:
    handlers: list[tuple[Any, str, str]] = [
        (stations.check, "check", "tests.pipeline.stations:check"),
        (stations.Desk.stamp, "stamp", "tests.pipeline.stations:Desk.stamp"),
        (partial(partial(stations.route), job=None), "route", "tests.pipeline.stations:route"),
        (stations.desk, "Desk", "tests.pipeline.stations:Desk"),
        (print, "print", "builtins:print"),
    ]
    for handler, name, path in handlers:
        pipeline = mongoq.Pipeline("flights")
        pipeline.sink("a")(handler)
        pipeline.sink("b", name="own")(handler)
        lines = [line for line in pipeline.describe().splitlines() if line.startswith(("stage", "  handler"))]
        assert lines == [f"stage {name}", f"  handler     {path}", "stage own", f"  handler     {path}"]


def test_errors_of_a_stage_are_the_pipelines_unless_it_says_otherwise() -> None:
    pipeline = mongoq.Pipeline("flights", errors="bad")
    pipeline.sink("a")(stations.load)
    pipeline.sink("b", errors=None, name="none")(stations.load)
    pipeline.sink("c", errors="own", name="own")(stations.load)
    errors = [line.split()[1] for line in pipeline.describe().splitlines() if line.startswith("  errors")]
    assert errors == ["bad", "bad", "none:", "own"]
