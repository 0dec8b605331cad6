"""What ``compare`` tells of two pipelines, and what makes no difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mongoq
from tests.pipeline import stations

STATIONS = "tests.pipeline.stations"


def line(handler: Callable[..., Any] = stations.check, **options: Any) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("line", errors="bad")
    pipeline.stage(**({"source": "in", "to": "out", "name": "first"} | options))(handler)
    pipeline.sink("out", name="last")(stations.load)
    return pipeline


def changed(before: mongoq.Pipeline, after: mongoq.Pipeline) -> list[tuple[Any, ...]]:
    return [
        (
            difference.subject,
            difference.name,
            difference.change,
            *([] if difference.field is None else [difference.field, difference.before, difference.after]),
        )
        for difference in before.compare(after)
    ]


def test_a_pipeline_is_like_itself() -> None:
    assert line().compare(line()) == []


def test_a_stage_that_has_changed() -> None:
    options: Any
    for options, field, before, after in [
        ({"handler": stations.pass_on}, "handler", f"{STATIONS}:check", f"{STATIONS}:pass_on"),
        ({"model": stations.Flight}, "model", None, f"{STATIONS}:Flight"),
        ({"where": {"a": 1}}, "where", None, {"a": 1}),
        ({"otherwise": mongoq.Drop()}, "otherwise", None, mongoq.Drop()),
        ({"delivery": "at-most-once"}, "delivery", "exactly-once", "at-most-once"),
        ({"none": "drop"}, "none", "error", "drop"),
        ({"errors": None}, "errors", ..., None),
        ({"concurrency": 4}, "concurrency", ..., 4),
        ({"retry": mongoq.Fixed(1)}, "retry", ..., mongoq.Fixed(1)),
        ({"success_on": KeyError}, "success_on", ..., ("builtins:KeyError",)),
    ]:
        [there] = line().compare(line(**options))
        [back] = line(**options).compare(line())
        assert (there.subject, there.name, there.change, there.field) == ("stage", "first", "changed", field)
        assert (there.before, there.after) == (back.after, back.before)
        assert there.after == after
        assert before is ... or there.before == before
        assert line(**options).compare(line(**options)) == []


def test_queues_that_come_and_go() -> None:
    assert changed(line(), line(source=["in", "more"], to=["out", "bad"])) == [
        ("stage", "first", "changed", "sources", ("in",), ("in", "more")),
        ("stage", "first", "changed", "targets", ("out",), ("out", "bad")),
        ("queue", "more", "added"),
    ]


def test_stages_that_come_and_go() -> None:
    after = line()
    after.sink("aside")(stations.load)
    assert changed(line(), after) == [("stage", "load", "added"), ("queue", "aside", "added")]
    assert changed(after, line()) == [("stage", "load", "removed"), ("queue", "aside", "removed")]
    assert [str(difference) for difference in after.compare(line())] == [
        "stage 'load' was removed",
        "queue 'aside' was removed",
    ]


def test_what_holds_for_the_whole() -> None:
    before = mongoq.Pipeline("one", errors="bad", inputs="in", outputs=["x", "y"])
    after = mongoq.Pipeline("two", trail=True, outputs=["y", "x"])
    assert changed(before, after) == [
        ("pipeline", "one", "changed", "name", "one", "two"),
        ("pipeline", "one", "changed", "errors", "bad", None),
        ("pipeline", "one", "changed", "inputs", ("in",), None),
        ("pipeline", "one", "changed", "trail", False, True),
        ("queue", "in", "removed"),
    ]
    assert str(before.compare(after)[1]) == "pipeline 'one': errors was 'bad', and is None"


def test_order_makes_no_difference() -> None:
    line_a = mongoq.Pipeline("line", outputs=["x", "y"])
    line_a.stage(["a", "b"], to=["x", "y"], success_on=(KeyError, OSError))(stations.pass_on)
    line_a.sink("c")(stations.load)
    line_b = mongoq.Pipeline("line", outputs=["y", "x"])
    line_b.sink("c")(stations.load)
    line_b.stage(["b", "a"], to=["y", "x"], success_on=[OSError, KeyError])(stations.pass_on)
    assert line_a.compare(line_b) == []


def test_a_filter_on_true_is_none_on_one() -> None:
    def where(value: Any) -> mongoq.Pipeline:
        return line(where={"$or": [{"a": value}]}, otherwise=mongoq.Drop())

    assert [difference.field for difference in where(True).compare(where(1))] == ["where"]
    assert where(1).compare(where(1.0)) == []
    assert where({"b": 1, "c": 2}).compare(where({"c": 2, "b": 1})) == []
    assert where([1, 2]).compare(where([1])) != []


def test_pipelines_with_faults_are_compared_too() -> None:
    nonsense: Any = {"a": []}
    broken = mongoq.Pipeline(nonsense, errors=nonsense, outputs=nonsense)
    broken.stage(nonsense, to=[], name=nonsense)(nonsense)
    broken.stage(nonsense, to=[], name=nonsense)(nonsense)
    assert broken.compare(broken) == []
    assert {difference.change for difference in broken.compare(line())} == {"added", "removed", "changed"}


def test_only_pipelines_are_compared() -> None:
    nonsense: Any = 5
    with pytest.raises(mongoq.ArgumentInvalid, match="other: a Pipeline, not int"):
        line().compare(nonsense)
