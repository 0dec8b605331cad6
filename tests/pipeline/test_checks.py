"""What ``check`` refuses: one row for each fault, the whole list of faults each time; and what it lets pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import mongoq
from mongoq import Drop, Move, Pipeline
from tests.pipeline.stations import check, load, load_async, pass_on, without_arguments

Build = Callable[[], Pipeline]


def faults(pipeline: Pipeline) -> list[str]:
    try:
        pipeline.check()
    except mongoq.GraphInvalid as invalid:
        return list(invalid.faults)
    return []


def line(**options: Any) -> Pipeline:
    """A line of two stages, with options for the first."""
    pipeline = Pipeline("line")
    pipeline.stage("in", **({"to": "out"} | options))(pass_on)
    pipeline.sink("out")(load)
    return pipeline


def whole(**options: Any) -> Pipeline:
    """The same line, with options for the pipeline."""
    pipeline = Pipeline(**({"name": "line"} | options))
    pipeline.stage("in", to="out")(pass_on)
    pipeline.sink("out")(load)
    return pipeline


def end(handler: Any = load, **options: Any) -> Pipeline:
    """A sink alone."""
    pipeline = Pipeline("line")
    pipeline.sink("in", **options)(handler)
    return pipeline


def stages(*declarations: tuple[str, Any, Any], **options: Any) -> Pipeline:
    """Stages of a name, sources and targets."""
    pipeline = Pipeline("line", **options)
    for name, source, to in declarations:
        if to is None:
            pipeline.sink(source, name=name)(load)
        else:
            pipeline.stage(source, to=to, name=name)(pass_on)
    return pipeline


HERE = "stage 'pass_on'"
WHERE: dict[str, Any] = {"where": {"late": True}, "otherwise": Drop()}
LONG = "x" * 121

ROWS: dict[str, tuple[Build, list[str]]] = {
    # names
    "no name": (lambda: whole(name=""), ["pipeline '': name: it cannot be empty; give it one"]),
    "a name that is none": (lambda: whole(name=5), ["pipeline 5: name: a string, not int"]),
    "a name with a line break": (
        lambda: whole(name="a\nb"),
        [r"pipeline 'a\nb': name: it holds a control character or a line break; leave that out"],
    ),
    "a stage's name with an escape": (
        lambda: line(name="\x1b[2J"),
        [r"stage '\x1b[2J': name: it holds a control character or a line break; leave that out"],
    ),
    "a long name": (lambda: line(name=LONG), [f"stage {LONG!r}: name: 121 bytes in UTF-8, and 120 is the limit"]),
    "one name twice": (
        lambda: stages(("a", "in", "out"), ("a", "out", None)),
        ["stage 'a': 2 stages have this name; give each a name= of its own"],
    ),
    "a source that is none": (
        lambda: stages(("a", ["in", 5], None)),
        ["stage 'a': source: a queue name is a string, not int"],
    ),
    "a target with a dollar": (
        lambda: whole_with_target("$out"),
        [
            "stage 'pass_on': to: a queue name cannot begin with '$': '$out'",
            "stage 'load': source: a queue name cannot begin with '$': '$out'",
        ],
    ),
    "no target": (lambda: line(to=[]), [f"{HERE}: to: it names no queue; name one, or declare a sink"]),
    "no source": (lambda: end_without_source(), ["stage 'load': it takes items from no queue; name one"]),
    "an input that is none": (
        lambda: whole(inputs=["in", None]),
        ["pipeline: inputs: a queue name is a string, not NoneType"],
    ),
    "errors of a stage that cannot be stored": (
        lambda: line(errors="$x"),
        [f"{HERE}: errors: a queue name cannot begin with '$': '$x'"],
    ),
    # ways
    "no stages": (
        lambda: Pipeline("line"),
        ["pipeline: it has no stages; declare one with @pipeline.stage(…) or @pipeline.sink(…)"],
    ),
    "a target that nobody reads": (
        lambda: line(to=["out", "uot"]),
        [
            f"{HERE}: to: no stage takes items from 'uot'; declare one, or name the queue in outputs= of the pipeline",
        ],
    ),
    "a target twice": (lambda: line(to=["out", "out"]), [f"{HERE}: to: 'out' is given twice; name it once"]),
    "a source twice": (
        lambda: stages(("a", ["in", "in"], None)),
        ["stage 'a': source: 'in' is given twice; name it once"],
    ),
    "two readers of one queue": (
        lambda: stages(("a", "in", None), ("b", ["in", "on"], None)),
        [
            "queue 'in': stages 'a', 'b' take items from it, and each item goes to one of them; give each shared=True "
            "if that is meant, or a queue of its own"
        ],
    ),
    "an input that nobody reads": (
        lambda: whole(inputs=["in", "ni"]),
        ["pipeline: inputs: no stage takes items from 'ni'; declare one, or leave the queue out"],
    ),
    "an output that nobody writes": (
        lambda: whole(outputs="uot"),
        ["pipeline: outputs: no stage sends items to 'uot'; name it in to=, or leave the queue out"],
    ),
    "a loop without a way in": (
        lambda: stages(("a", "x", "y"), ("b", "y", "x")),
        [
            f"stage {stage!r}: no item ever comes to {queue!r}; send some there from another stage, or name the queue "
            "that they come in by in inputs= of the pipeline"
            for stage, queue in (("a", "x"), ("b", "y"))
        ],
    ),
    # errors
    "failures back to the source": (
        lambda: line(errors="in"),
        [
            f"{HERE}: errors: what fails would go back to 'in', which it takes items from; name another queue, or "
            "errors=None"
        ],
    ),
    "failures of the reader of failures": (
        lambda: stages(("a", "in", None), ("mend", "bad", None), errors="bad"),
        [
            "stage 'mend': errors: what fails would go back to 'bad', which it takes items from; name another queue, "
            "or errors=None"
        ],
    ),
    # filters
    "where without otherwise": (
        lambda: line(where={"a": 1}),
        [f"{HERE}: where: say what becomes of the other items, with otherwise=Drop() or otherwise=Move(queue)"],
    ),
    "otherwise without where": (
        lambda: line(otherwise=Drop()),
        [f"{HERE}: otherwise: there is no where= that an item could fail to fit; add one, or leave it out"],
    ),
    "a filter off the list": (
        lambda: line(**WHERE | {"where": {"$where": "sleep(1000)"}}),
        [
            f"{HERE}: where: '$where' is not one of $and, $or, $nor, $eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $all, "
            "$exists, $type, $regex, $options, $size, $mod, $not, $elemMatch"
        ],
    ),
    "an empty filter": (
        lambda: line(**WHERE | {"where": {}}),
        [f"{HERE}: where: a non-empty document of paths and values such as {{'customer': 'Ada'}}"],
    ),
    "a filter with what BSON cannot hold": (
        lambda: line(**WHERE | {"where": {"at": datetime(2024, 1, 1)}}),
        [f"{HERE}: where.at: a naive datetime says no time zone; give it one, such as UTC"],
    ),
    "otherwise that is neither": (
        lambda: line(**WHERE | {"otherwise": mongoq.Retry()}),
        [f"{HERE}: otherwise: Drop() or Move(queue), not Retry(delay=None, error=None)"],
    ),
    "otherwise to nowhere": (
        lambda: line(**WHERE | {"otherwise": Move("away")}),
        [
            f"{HERE}: otherwise: 'away' is not one of its targets, and no stage takes items from it; declare a stage, "
            "or name the queue in outputs= of the pipeline"
        ],
    ),
    "otherwise back to the source": (
        lambda: line(**WHERE | {"otherwise": Move("in", delay=5)}),
        [
            f"{HERE}: otherwise: what does not fit would come back to 'in' for ever; move it to another queue, or "
            "Drop() it"
        ],
    ),
    "otherwise with another payload": (
        lambda: line(**WHERE | {"otherwise": Move("out", payload=None)}),
        [
            f"{HERE}: otherwise: the move of items that do not fit leaves their payload alone; leave out payload= and "
            "patch="
        ],
    ),
    "otherwise with values that are none": (
        lambda: line(**WHERE | {"otherwise": Move(5, delay=-1, priority=1000, headers=[], patch={})}),
        [
            f"{HERE}: otherwise: the move of items that do not fit leaves their payload alone; leave out payload= and "
            "patch=",
            f"{HERE}: otherwise: a queue name is a string, not int",
            f"{HERE}: otherwise: delay: cannot be negative: -1",
            f"{HERE}: otherwise: priority: an int from -100 (first) to 100 (last), not 1000",
            f"{HERE}: otherwise: headers: a document, not list",
        ],
    ),
    # values
    "a delivery that is none": (
        lambda: line(delivery="exactly_once"),
        [f"{HERE}: delivery: 'exactly-once' or 'at-most-once', not 'exactly_once'"],
    ),
    "none that is none": (lambda: line(none=None), [f"{HERE}: none: 'error' or 'drop', not None"]),
    "shared that is none": (lambda: line(shared=1), [f"{HERE}: shared: a bool, not int"]),
    "batches at most once": (
        lambda: line(batch=5, delivery="at-most-once"),
        [f"{HERE}: batch: what is run at most once is run item by item; leave it out"],
    ),
    "success that has no way": (
        lambda: line(success_on=KeyError, to=["out", "in"], name="pass_on"),
        [
            f"{HERE}: success_on: nothing says to which of several targets such an item goes; catch the error, "
            f"return a Move",
            f"{HERE}: no item ever comes to 'in'; send some there from another stage, or name the queue that they come "
            f"in by in inputs= of the pipeline",
            "stage 'load': no item ever comes to 'out'; send some there from another stage, or name the queue that "
            "they come in by in inputs= of the pipeline",
        ],
    ),
    "a trail that is none": (
        lambda: whole(trail="payload"),
        ["pipeline: trail: True, False or 'payloads', not 'payload'"],
    ),
    # how it is run
    "options that cannot be": (
        lambda: line(
            concurrency=0,
            prefetch=-1,
            lease="a minute",
            retry=5,
            max_retries=-1,
            success_on=[5],
            max_time=0,
            batch=True,
            probe="yes",
        ),
        [
            f"{HERE}: concurrency: a whole number from 1 up, not 0",
            f"{HERE}: prefetch: a whole number from 0 up, not -1",
            f"{HERE}: lease: 'a minute' is no duration; write it as 90s, 5m, 2h or 7d",
            f"{HERE}: retry: a policy such as Exponential(base=1), not 5",
            f"{HERE}: max_retries: a whole number from 0 up, not -1",
            f"{HERE}: success_on: exception classes, not 5",
            f"{HERE}: max_time: must be a millisecond or longer: 0",
            f"{HERE}: batch: a whole number from 1 up, not True",
            f"{HERE}: probe: a bool, not str",
        ],
    ),
    "a handler without arguments": (
        lambda: end(without_arguments),
        [
            "stage 'without_arguments': handler: without_arguments is to take (payload) or (payload, job), and nothing "
            "else"
        ],
    ),
}


def whole_with_target(to: str) -> Pipeline:
    pipeline = Pipeline("line")
    pipeline.stage("in", to=to)(pass_on)
    pipeline.sink(to)(load)
    return pipeline


def end_without_source() -> Pipeline:
    pipeline = Pipeline("line")
    pipeline.sink([])(load)
    return pipeline


def test_check_tells() -> None:
    for build, (builder, expected) in ROWS.items():
        assert faults(builder()) == expected, build


SOUND: dict[str, Build] = {
    "a line": line,
    "a coroutine function": lambda: end(load_async),
    "a handler that takes the job": lambda: end(lambda payload, job: None),
    "an output": lambda: stages(("a", "in", "out"), outputs="out"),
    "failures as a target": lambda: stages(("a", "in", "bad"), errors="bad"),
    "failures that a stage mends": lambda: mended(),
    "a loop with a way in": lambda: stages(("a", ["in", "back"], "on"), ("b", "on", ["back", "out"]), outputs="out"),
    "a loop of one": lambda: stages(("a", "in", ["in", "out"]), outputs="out", inputs="in"),
    "a loop that is an input": lambda: stages(("a", "x", "y"), ("b", "y", "x"), inputs=["x"]),
    "several readers that share": lambda: sharing(),
    "a filter": lambda: line(**WHERE),
    "otherwise to a target": lambda: line(**WHERE | {"otherwise": Move("out", delay=5, priority=-3, headers={})}),
    "otherwise to the failures": lambda: mended(**WHERE | {"otherwise": Move("bad")}),
    "otherwise to an output": lambda: rejecting(),
    "at most once": lambda: line(delivery="at-most-once", none="drop"),
    "queues of any name": lambda: stages(('"><script>', "a\nb", "naïve `queue` [0]"), ("b", "naïve `queue` [0]", None)),
    "a name of 120 bytes": lambda: line(name="é" * 60),
    "options": lambda: line(
        concurrency=8,
        prefetch=0,
        lease=3.5,
        retry=mongoq.Linear(2),
        max_retries=None,
        success_on=KeyError,
        max_time=9,
        batch=5,
        probe=True,
    ),
    "options that say nothing": lambda: line(prefetch=None, lease=None, retry=None, max_time=None, batch=None),
}


def mended(**options: Any) -> Pipeline:
    pipeline = Pipeline("line", errors="bad", inputs="in")
    pipeline.stage("in", to="out", **options)(pass_on)
    pipeline.stage("bad", to="in", name="mend", errors=None)(pass_on)
    pipeline.sink("out")(load)
    return pipeline


def sharing() -> Pipeline:
    pipeline = Pipeline("line")
    pipeline.sink("in", name="a", shared=True, where={"n": 1}, otherwise=Drop())(load)
    pipeline.sink("in", name="b", shared=True)(load)
    return pipeline


def rejecting() -> Pipeline:
    pipeline = Pipeline("line", outputs="rejected")
    pipeline.sink("in", where={"n": 1}, otherwise=Move("rejected"))(load)
    return pipeline


def test_check_lets_pass() -> None:
    for build, builder in SOUND.items():
        assert faults(builder()) == [], build


def test_check_tells_all_faults_at_once() -> None:
    pipeline = Pipeline("", errors="$")
    nonsense: Any = "never"
    pipeline.stage("in", to="nowhere", where={"$where": 1}, delivery=nonsense, concurrency=0)(check)
    pipeline.sink("in", name="\n")(without_arguments)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.check()
    invalid = caught.value
    assert [fault.split(": ")[1].split()[0] for fault in invalid.faults] == [
        *("name", "name", "errors"),
        *("delivery", "where", "where", "concurrency", "model", "handler"),
        *("to", "stages"),
    ]
    assert invalid.pipeline == ""
    assert all(f"\n- {fault}" in str(invalid) for fault in invalid.faults)
    assert pickle.loads(pickle.dumps(invalid)).faults == invalid.faults


def test_a_decorator_without_its_parentheses_is_refused() -> None:
    """Others have an argument that must be given; these would take the function for the name, and declare nothing."""
    for kind in ("sink", "frame_stage"):
        pipeline = Pipeline("line")
        with pytest.raises(mongoq.ArgumentInvalid, match=rf'^source: .* write @pipeline\.{kind}\("queue"\)$'):
            getattr(pipeline, kind)(load)


def test_hostile_names_do_not_fill_the_screen() -> None:
    pipeline = Pipeline("x" * 10_000)
    pipeline.stage("y" * 10_000, to="z" * 10_000, name="n" * 10_000)(pass_on)
    assert all(len(fault) < 600 for fault in faults(pipeline))
