"""Recipes: what they may say, where they come from, and all that is wrong with one at once."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import mongoq
from mongoq.model.settings import DEFAULT
from mongoq.pipeline.recipe.file import without_doubles
from tests.pipeline import stations

HERE = "tests.pipeline.stations"

RECIPE = """
name: flights
errors: flights.errors
inputs: raw
outputs: [archive]
trail: payloads
stages:
  - name: check
    from: raw
    to: checked
    handler: tests.pipeline.stations:check
    model: tests.pipeline.stations:Flight
    retry: {exponential: {base: 2, factor: 3, cap: 60, jitter: 0}}
    max_retries: 3
    success_on: [builtins:KeyError, "bson.errors:BSONError"]
    lease: 30
    max_time: 60
    concurrency: 4
    prefetch: 10
    probe: true
  - name: route
    from: checked
    to: [late, on_time]
    handler: tests.pipeline.stations:route
    model: tests.pipeline.stations:Flight
    where: {cancelled: false, "carrier.name": {$in: [UA, DL]}}
    otherwise: {move: {to: archive, delay: 5, priority: -1, headers: {why: cancelled}, expires: 60}}
    none: drop
    delivery: at-most-once
    errors: null
  - from: [late, on_time]
    handler: tests.pipeline.stations:Desk.stamp
    shared: true
    batch: 10
    where: {number: 1}
    otherwise: drop
    max_retries: null
"""


def by_hand() -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("flights", errors="flights.errors", inputs="raw", outputs=["archive"], trail="payloads")
    from bson.errors import BSONError

    pipeline.stage(
        "raw",
        to="checked",
        model=stations.Flight,
        retry=mongoq.Exponential(2, factor=3, cap=60, jitter=0),
        max_retries=3,
        success_on=(KeyError, BSONError),
        lease=30,
        max_time=60,
        concurrency=4,
        prefetch=10,
        probe=True,
    )(stations.check)
    pipeline.stage(
        "checked",
        to=["late", "on_time"],
        model=stations.Flight,
        where={"cancelled": False, "carrier.name": {"$in": ["UA", "DL"]}},
        otherwise=mongoq.Move("archive", delay=5, priority=-1, headers={"why": "cancelled"}, expires=60),
        none="drop",
        delivery="at-most-once",
        errors=None,
    )(stations.route)
    pipeline.sink(
        ["late", "on_time"],
        shared=True,
        batch=10,
        where={"number": 1},
        otherwise=mongoq.Drop(),
        max_retries=None,
    )(stations.Desk.stamp)
    return pipeline


def least(**changes: Any) -> dict[str, Any]:
    """A recipe of one sink."""
    return {"name": "least", "stages": [{"from": "in", "handler": f"{HERE}:load"} | changes]}


def faults(recipe: Any) -> list[str]:
    with pytest.raises(mongoq.GraphInvalid) as caught:
        mongoq.Pipeline.from_recipe(recipe)
    return list(caught.value.faults)


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".YAML", ".json"])
def test_a_recipe_in_a_file_is_the_pipeline_by_hand(tmp_path: Path, suffix: str) -> None:
    yaml = pytest.importorskip("yaml")
    path = tmp_path / f"flights{suffix}"
    path.write_text(json.dumps(yaml.safe_load(RECIPE)) if suffix == ".json" else RECIPE)
    for recipe in (path, str(path)):
        pipeline = mongoq.Pipeline.from_recipe(recipe)
        assert pipeline.compare(by_hand()) == []
        assert [stage.handler for stage in pipeline.graph.stages] == [
            stations.check,
            stations.route,
            stations.Desk.stamp,
        ]
        assert pipeline.graph.stages[1].errors is None
        assert pipeline.graph.stages[0].errors is DEFAULT


def test_a_recipe_may_be_a_mapping() -> None:
    pipeline = mongoq.Pipeline.from_recipe(least(lease=timedelta(seconds=3), name=None, model=None))
    assert type(pipeline) is mongoq.Pipeline
    (stage,) = pipeline.graph.stages
    assert (stage.name, stage.sources, stage.is_sink, stage.handler) == ("load", ("in",), True, stations.load)
    assert stage.options == {"lease": timedelta(seconds=3)}


def test_a_pipeline_of_a_recipe_takes_further_stages() -> None:
    pipeline = mongoq.Pipeline.from_recipe(least())
    pipeline.sink("more")(stations.pass_on)
    assert [stage.name for stage in pipeline.graph.stages] == ["load", "pass_on"]


def test_a_class_made_of_pipeline_is_what_its_recipes_make() -> None:
    class Own(mongoq.Pipeline):
        pass

    assert type(Own.from_recipe(least())) is Own


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ({"fixed": {"base": 5}}, mongoq.Fixed(5)),
        ({"fixed": None}, mongoq.Fixed()),
        ({"linear": {"cap": 9, "jitter": 0.5}}, mongoq.Linear(cap=9, jitter=0.5)),
        ({"exponential": {}}, mongoq.Exponential()),
        ({"exponential": {"factor": 3, "cap": None}}, mongoq.Exponential(factor=3, cap=None)),
        (None, None),
    ],
    ids=str,
)
def test_retry_policies(retry: Any, expected: Any) -> None:
    assert mongoq.Pipeline.from_recipe(least(retry=retry)).graph.stages[0].options == {"retry": expected}


ROWS: dict[str, tuple[Any, list[str]]] = {
    "nothing": ({}, ["recipe: 'name' is missing", "recipe: 'stages' is missing"]),
    "stages that are none": ({"name": "a", "stages": 5}, ["recipe: stages: Input should be a valid list"]),
    "no stages": (
        {"name": "a", "stages": []},
        ["pipeline: it has no stages; declare one with @pipeline.stage(…) or @pipeline.sink(…)"],
    ),
    "an unknown key": (
        least() | {"stage": []},
        ["recipe: unknown key 'stage'; it may have name, errors, inputs, outputs, trail, log_errors, sources, stages"],
    ),
    "a key that is no text": (least() | {5: 1}, ["recipe: 5: Keys should be strings"]),
    "a name that is none": (least() | {"name": 5}, ["pipeline 5: name: a string, not int"]),
    "a stage that is no mapping": (
        {"name": "a", "stages": ["check"]},
        ["stages[0]: a mapping, not str"],
    ),
    "an unknown key of a stage": (
        least(form="raw", name="x"),
        [
            "stages[0] ('x'): unknown key 'form'; it may have name, from, to, handler, model, join, frame, where, "
            "otherwise, delivery, format, none, sequence, errors, shared, concurrency, prefetch, prefetch_bytes, "
            "lease, retry, max_retries, success_on, max_time, on_timeout, batch, probe, "
            "max_running, rate, burst, rate_key"
        ],
    ),
    "the name of the argument": (
        {"name": "a", "stages": [{"source": "in", "handler": f"{HERE}:load", "name": "x"}]},
        [
            "stages[0] ('x'): unknown key 'source'; it may have name, from, to, handler, model, join, frame, where, "
            "otherwise, delivery, format, none, sequence, errors, shared, concurrency, prefetch, prefetch_bytes, "
            "lease, retry, max_retries, success_on, max_time, on_timeout, batch, probe, "
            "max_running, rate, burst, rate_key",
            "stage 'x': it takes items from no queue; name one",
        ],
    ),
    "no handler": ({"name": "a", "stages": [{"from": "in"}]}, ["stages[0]: 'handler' is missing"]),
    "a handler that is no text": (least(handler=stations.load), ["stages[0]: handler: Input should be a valid string"]),
    "a handler without a module": (
        least(handler="load"),
        ["stages[0]: handler: an import path such as 'package.module:function', not 'load'"],
    ),
    "a handler without a name": (
        least(handler=f"{HERE}:"),
        [f"stages[0]: handler: an import path such as 'package.module:function', not '{HERE}:'"],
    ),
    "a handler in no module": (
        least(handler="tests.nowhere:load"),
        [
            "stages[0]: handler: 'tests.nowhere:load' cannot be imported: ModuleNotFoundError: No module named "
            "'tests.nowhere'; mend that, or the path"
        ],
    ),
    "a handler that is not there": (
        least(handler=f"{HERE}:Desk.nothing"),
        [
            f"stages[0]: handler: '{HERE}:Desk.nothing' cannot be imported: AttributeError: type object 'Desk' has no "
            "attribute 'nothing'; mend that, or the path"
        ],
    ),
    "a handler beside the recipe": (
        least(handler=".stations:load"),
        [
            "stages[0]: handler: '.stations:load' cannot be imported: TypeError: the 'package' argument is required to "
            "perform a relative import for '.stations'; mend that, or the path"
        ],
    ),
    "a handler that cannot be called": (
        least(handler="math:pi"),
        ["stage 'float': handler: a function, not float"],
    ),
    "a model that is not there": (
        least(model=f"{HERE}:Plane"),
        [
            f"stages[0]: model: '{HERE}:Plane' cannot be imported: AttributeError: module '{HERE}' has no attribute "
            "'Plane'; mend that, or the path"
        ],
    ),
    "a model that is none": (
        least(model=5),
        ["stages[0]: model: where it is imported from, such as 'app.models:Flight', not 5"],
    ),
    "an exception that is not there": (
        least(success_on=["KeyError"]),
        ["stages[0]: success_on: an import path such as 'package.module:function', not 'KeyError'"],
    ),
    "an exception that is none": (
        least(success_on="builtins:print"),
        ["stage 'load': success_on: exception classes, not <built-in function print>"],
    ),
    "otherwise that is none": (
        least(where={"a": 1}, otherwise="skip"),
        ["stages[0]: otherwise: 'drop', or {'move': {'to': …}}, not 'skip'"],
    ),
    "otherwise with too much": (
        least(where={"a": 1}, otherwise={"move": {"to": "out"}, "drop": True}),
        ["stages[0]: otherwise: 'drop', or {'move': {'to': …}}, not {'move': {'to': 'out'}, 'drop': True}"],
    ),
    "a move that is none": (
        least(where={"a": 1}, otherwise={"move": "out"}),
        ["stages[0]: otherwise.move: a mapping, not str"],
    ),
    "a move with a payload": (
        least(where={"a": 1}, otherwise={"move": {"payload": 1}}),
        [
            "stages[0]: otherwise.move: 'to' is missing",
            "stages[0]: otherwise.move: unknown key 'payload'; it may have to, delay, priority, headers, expires",
        ],
    ),
    "a retry that is none": (
        least(retry="exponential"),
        ["stages[0]: retry: {kind: {…}} with one of fixed, linear, exponential, not 'exponential'"],
    ),
    "two kinds of retry": (
        least(retry={"fixed": {}, "linear": {}}),
        ["stages[0]: retry: {kind: {…}} with one of fixed, linear, exponential, not {'fixed': {}, 'linear': {}}"],
    ),
    "a retry of values that are none": (
        least(retry={"fixed": {"base": -1, "factor": 2}}),
        [
            "stages[0]: retry.fixed: unknown key 'factor'; it may have base, cap, jitter",
            "stages[0]: retry.fixed: base: cannot be negative: -1",
        ],
    ),
    "a retry that is a list": (least(retry={"linear": [1]}), ["stages[0]: retry.linear: a mapping, not list"]),
    "values that the graph refuses": (
        least(concurrency="4", none="drop", delivery=None, errors=5, where={"$where": "1"}, otherwise="drop"),
        [
            "stage 'load': delivery: 'exactly-once' or 'at-most-once', not None",
            "stage 'load': none: 'drop' says nothing in a sink, where whatever is returned is success; leave it out",
            "stage 'load': errors: the name of a queue, or None, not int",
            "stage 'load': where: '$where' is not one of $and, $or, $nor, $eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, "
            "$all, $exists, $type, $regex, $options, $size, $mod, $not, $elemMatch",
            "stage 'load': concurrency: a whole number from 1 up, not '4'",
        ],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_recipe_with_faults(row: str) -> None:
    recipe, expected = ROWS[row]
    assert faults(recipe) == expected


def test_all_faults_are_reported_at_once() -> None:
    recipe = {
        "name": "flights",
        "error": "bad",
        "stages": [
            {"from": "raw", "to": "chekced", "handler": f"{HERE}:chek", "name": "check"},
            {"from": "checked", "handler": f"{HERE}:without_arguments", "retry": {}, "batch": 0},
            {"from": "checked", "handler": f"{HERE}:load", "where": {"a": 1}, "where_": 1},
        ],
    }
    messages = faults(recipe)
    assert [fault.split(": ")[0] for fault in messages] == [
        "recipe",
        "stages[0] ('check')",
        "stages[1]",
        "stages[2]",
        "stage 'without_arguments'",
        "stage 'without_arguments'",
        "stage 'load'",
        "stage 'check'",
        "queue 'checked'",
    ]


def test_the_error_names_the_pipeline(tmp_path: Path) -> None:
    with pytest.raises(mongoq.GraphInvalid, match="pipeline 'least' has 1 fault:"):
        mongoq.Pipeline.from_recipe(least(batch=0))
    path = tmp_path / "mine.json"
    path.write_text("{")
    with pytest.raises(mongoq.GraphInvalid, match=r"pipeline 'mine\.json' has 1 fault:"):
        mongoq.Pipeline.from_recipe(path)


# --- imports -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def (", "SyntaxError: invalid syntax"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ],
)
def test_whatever_an_import_raises_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_stations", raising=False)
    (tmp_path / "broken_stations.py").write_text(body)
    (fault,) = faults(least(handler="broken_stations:load"))
    assert fault.startswith(f"stages[0]: handler: 'broken_stations:load' cannot be imported: {reason}")


def test_an_interrupt_during_an_import_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "interrupted_stations.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        mongoq.Pipeline.from_recipe(least(handler="interrupted_stations:load"))


def test_nothing_but_what_is_named_is_imported_or_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "quiet_stations.py").write_text("called = []\ndef load(payload):\n    called.append(payload)\n")
    (tmp_path / "other_stations.py").write_text("")
    mongoq.Pipeline.from_recipe(
        least(
            handler="quiet_stations:load", name="other_stations:load", where={"a": "other_stations:x"}, otherwise="drop"
        )
    )
    assert sys.modules["quiet_stations"].called == []
    assert "other_stations" not in sys.modules


# --- files ---------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str | bytes, name: str = "recipe.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


BASE_60 = "numbers in base 60, such as 1:30, are not taken; put them in quotes"
ONE_TWICE = "recipe: it cannot be read: ValueError: the key '69999' is given twice"
LEAST = "name: least\nstages:\n  - from: in\n    handler: tests.pipeline.stations:load\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "recipe: a mapping, not NoneType"),
        ("just text", "recipe: a mapping, not str"),
        ("[a", "recipe: it cannot be read: ParserError: "),
        ("a: b: c", "recipe: it cannot be read: ScannerError: "),
        (b"\xff\xfe\xff", "recipe: it cannot be read: "),
        (LEAST + "---\n" + LEAST, "recipe: it cannot be read: ComposerError: "),
        (LEAST + "name: again\n", "recipe: it cannot be read: ConstructorError: the key 'name' is given twice"),
        (LEAST + "    from: on\n", "recipe: it cannot be read: ConstructorError: the key 'from' is given twice"),
        (LEAST + "    <<: {batch: 5}\n", "recipe: it cannot be read: ConstructorError: merge keys (<<) are not taken"),
        (LEAST + "? [a]\n: 1\n", "recipe: it cannot be read: ConstructorError: a key is a plain value"),
        ("!!python/object/apply:os.system [exit]", "recipe: it cannot be read: ConstructorError: "),
        ("a: !!python/name:os.system", "recipe: it cannot be read: ConstructorError: "),
        ("a: !!timestamp nonsense", "recipe: it cannot be read: "),
        ("a: !!int ''", "recipe: it cannot be read: "),
        ("a: 2024-13-45", "recipe: it cannot be read: ValueError: "),
        ("[" * 2_000, "recipe: nested deeper than 60 levels"),
        ("[" * 1_000_000, "recipe: nested deeper than 60 levels"),
        ("- " * 500_000, "recipe: nested deeper than 60 levels"),
        ("{a: " * 200_000, "recipe: nested deeper than 60 levels"),
        (f"{LEAST}    lease: 1:30\n", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"{LEAST}    lease: -1:30.5\n", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"a: !!int '{':'.join(['59'] * 200_000)}'", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"a: {':'.join(['59'] * 300_000)}", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"a: {':'.join(['59'] * 300_000)}.5", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"a: 0x{'f' * 1_000_000}", "recipe: an integer of more than 1,024 bits"),
        (f"a: 0b{'1' * 1_000_000}", "recipe: an integer of more than 1,024 bits"),
        ("a: {on: 1, yes: 2}", "recipe: it cannot be read: ConstructorError: two of its keys are the same value"),
        ("a: {1: 1, 0x1: 2}", "recipe: it cannot be read: ConstructorError: two of its keys are the same value"),
        (
            "a:\n" + "".join(f"  {place * (2**61 - 1)}: a\n" for place in range(15_000)),  # all have the hash 0
            "recipe: it cannot be read: ConstructorError: a number of more than 18 digits is no key",
        ),
        ("a:\n" + "- a\n" * 210_000, "recipe: more than 20,000 values"),
        (f"x: &t {'a' * 500_000}\na: [*t, *t, *t]", "recipe: more than 1,048,576 characters"),
        ("a: &a [*a]", "recipe: nested deeper than 60 levels"),
        ("[" * 70 + "]" * 70, "recipe: nested deeper than 60 levels"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_file_of_yaml_that_is_no_recipe(tmp_path: Path, text: str | bytes, reason: str) -> None:
    (fault,) = faults(written(tmp_path, text))
    assert fault.startswith(reason)
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "recipe: it cannot be read: JSONDecodeError: "),
        ("null", "recipe: a mapping, not NoneType"),
        (b"\xff", "recipe: it cannot be read: UnicodeDecodeError: "),
        ('{"name": 1, "name": 2}', "recipe: it cannot be read: ValueError: the key 'name' is given twice"),
        ("[" * 100_000, "recipe: nested deeper than 60 levels"),
        ("{" + ", ".join(f'"{n}": 0' for n in [*range(70_000), 69_999]) + "}", ONE_TWICE),
        (json.dumps({"a": [0] * 20_000}), "recipe: more than 20,000 values"),
        (json.dumps({"sources": [{}] * 1_001}), "recipe: 1,001 sources, and 1,000 is the limit"),
        ("[" * 70 + "]" * 70, "recipe: nested deeper than 60 levels"),
        ("9" * 5_000, "recipe: it cannot be read: ValueError: "),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_file_of_json_that_is_no_recipe(tmp_path: Path, text: str | bytes, reason: str) -> None:
    (fault,) = faults(written(tmp_path, text, "recipe.json"))
    assert fault.startswith(reason)


def test_a_few_aliases_that_stand_for_billions(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    text = f"{LEAST}    where: {{a: *a11}}\n    otherwise: drop\n"
    (fault,) = faults(written(tmp_path, "\n".join(lines) + "\n" + text))
    assert fault == "recipe: more than 20,000 values, aliases counted as what they stand for; write less"


def test_an_alias_stands_for_what_it_names(tmp_path: Path) -> None:
    text = LEAST + "    retry: &patient {fixed: {base: 60}}\n"
    text += "  - from: late\n    name: late\n    handler: tests.pipeline.stations:load\n    retry: *patient\n"
    pipeline = mongoq.Pipeline.from_recipe(written(tmp_path, text))
    assert [stage.options for stage in pipeline.graph.stages] == [{"retry": mongoq.Fixed(60)}] * 2


@pytest.mark.parametrize("value", [1 << 100_000, [-(1 << 2_000)]], ids=["positive", "within"])
def test_a_mapping_with_an_integer_that_no_error_could_show(value: Any) -> None:
    assert faults(least(lease=value)) == ["recipe: an integer of more than 1,024 bits; write a smaller one"]


def test_a_recipe_of_too_many_stages() -> None:
    stages = [{"name": f"s{n}", "from": f"q{n}", "handler": f"{HERE}:load"} for n in range(1_001)]
    assert len(mongoq.Pipeline.from_recipe({"name": "wide", "stages": stages[1:]}).graph.stages) == 1_000
    assert faults({"name": "wide", "stages": stages}) == [
        "recipe: 1,001 stages, and 1,000 is the limit; make several pipelines of it"
    ]


def test_a_key_that_is_given_twice_is_found_among_very_many() -> None:
    """Compared with each other they would take an hour."""
    pairs: list[tuple[str, Any]] = [(f"k{n}", n) for n in range(500_000)]
    assert len(without_doubles(pairs)) == 500_000
    with pytest.raises(ValueError, match="the key 'k499999' is given twice"):
        without_doubles([*pairs, ("k499999", 1)])


@pytest.mark.prove
def test_names_of_very_many_queues_are_looked_at_once_each() -> None:
    """Compared with each other they would take an hour."""
    queues = [f"q{n}" for n in range(300_000)]
    pipeline = mongoq.Pipeline("wide", inputs=["in"], outputs=queues)
    pipeline.stage("in", to=[*queues, "q299999"])(stations.route)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.check()
    assert any("to: 'q299999' is given twice" in fault for fault in caught.value.faults)


def test_a_mapping_that_holds_itself() -> None:
    recipe = least()
    recipe["stages"].append(recipe)
    assert faults(recipe) == ["recipe: nested deeper than 60 levels"]


@pytest.mark.parametrize("name", ["recipe.yaml", "recipe.json"])
def test_a_file_beyond_the_limit(tmp_path: Path, name: str) -> None:
    limit = 1024 * 1024
    path = written(tmp_path, json.dumps(least()).ljust(limit), name)
    assert mongoq.Pipeline.from_recipe(path).name == "least"
    path.write_text(json.dumps(least()).ljust(limit + 1))
    assert faults(path) == ["recipe: more than 1,048,576 bytes; that is no recipe, or several"]


@pytest.mark.parametrize("recipe", [None, 5, [least()], b"recipe.yaml", "recipe", "recipe.toml", "a\0.json"], ids=repr)
def test_what_is_no_recipe_at_all(recipe: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="^recipe: "):
        mongoq.Pipeline.from_recipe(recipe)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mongoq.Pipeline.from_recipe(tmp_path / "recipe.yaml")


def test_without_pyyaml_the_extra_is_named_and_json_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "mongoq.pipeline.recipe.yaml_text", raising=False)
    monkeypatch.delattr("mongoq.pipeline.recipe.yaml_text", raising=False)
    with pytest.raises(mongoq.ArgumentInvalid, match=r"install mongoq-driver\[yaml\], or write the recipe as JSON"):
        mongoq.Pipeline.from_recipe(written(tmp_path, LEAST))
    assert mongoq.Pipeline.from_recipe(written(tmp_path, json.dumps(least()), "recipe.json")).name == "least"


# --- anything at all -----------------------------------------------------------------------------

DICE = pytest.mark.filterwarnings("ignore:Do not use the .random. module")
"""Threads of earlier tests may roll dice meanwhile, which hypothesis would take for the strategy."""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.binary(max_size=3),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3),
    max_leaves=5,
)
KEYS = [
    *("name", "from", "to", "handler", "model", "where", "otherwise", "delivery", "none", "errors", "shared"),
    *("concurrency", "prefetch", "prefetch_bytes", "lease", "retry", "max_retries", "success_on", "max_time"),
    *("on_timeout", "batch", "probe"),
]


def faults_if_any(recipe: Any) -> list[str]:
    try:
        mongoq.Pipeline.from_recipe(recipe).check()
    except mongoq.GraphInvalid as invalid:
        return list(invalid.faults)
    return []


@DICE
@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES),
    st.dictionaries(st.sampled_from(["errors", "inputs", "outputs", "trail", "name"]), VALUES),
)
def test_any_values_are_a_pipeline_or_faults(stage: dict[str, Any], whole: dict[str, Any]) -> None:
    whole_stage: dict[str, Any] = {"from": "in", "handler": f"{HERE}:load"}
    recipe = {"name": "any", **whole, "stages": [whole_stage | stage, whole_stage]}
    assert not any("\n" in fault for fault in faults_if_any(recipe))


@DICE
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([*"[]{}:,&*!|>-?#'\"%@`\n ~", "a", "<<", "name", "stages", "!!", "---", "1"]), max_size=30)
)
def test_any_text_is_a_pipeline_or_faults(tmp_path: Path, parts: list[str]) -> None:
    assert not any("\n" in fault for fault in faults_if_any(written(tmp_path, "".join(parts))))


def test_of_very_many_faults_the_error_shows_some() -> None:
    with pytest.raises(mongoq.GraphInvalid, match=r"and \d[\d,]* more, in faults") as caught:
        mongoq.Pipeline.from_recipe(least(**{f"unknown {n}": n for n in range(5_000)}))
    assert len(str(caught.value)) < 50_000
