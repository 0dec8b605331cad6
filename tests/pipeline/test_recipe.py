"""Recipes: what they may say, where they come from, and all that is wrong with one at once."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mongoq
from tests.pipeline import stations

HERE = "tests.pipeline.stations"
ROOT = Path(__file__).parents[2]

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


def test_a_recipe_in_a_file_is_the_pipeline_by_hand(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    for suffix in (".yaml", ".yml", ".YAML", ".json"):
        path = tmp_path / f"flights{suffix}"
        path.write_text(json.dumps(yaml.safe_load(RECIPE)) if suffix == ".json" else RECIPE)
        for recipe in (path, str(path)):
            assert mongoq.Pipeline.from_recipe(recipe).compare(by_hand()) == []


def test_a_recipe_may_be_a_mapping_and_takes_further_stages() -> None:
    pipeline = mongoq.Pipeline.from_recipe(least(lease=timedelta(seconds=3), name=None, model=None))
    by_hand = mongoq.Pipeline("least")
    by_hand.sink("in", lease=timedelta(seconds=3))(stations.load)
    assert pipeline.compare(by_hand) == []
    for each in (pipeline, by_hand):
        each.sink("more")(stations.pass_on)
    assert pipeline.compare(by_hand) == []


def test_retry_policies() -> None:
    policies: list[tuple[Any, Any]] = [
        ({"fixed": {"base": 5}}, mongoq.Fixed(5)),
        ({"fixed": None}, mongoq.Fixed()),
        ({"linear": {"cap": 9, "jitter": 0.5}}, mongoq.Linear(cap=9, jitter=0.5)),
        ({"exponential": {"factor": 3, "cap": None}}, mongoq.Exponential(factor=3, cap=None)),
        (None, None),
    ]
    for retry, expected in policies:
        by_hand = mongoq.Pipeline("least")
        by_hand.sink("in", retry=expected)(stations.load)
        assert mongoq.Pipeline.from_recipe(least(retry=retry)).compare(by_hand) == [], retry


ROWS: dict[str, tuple[Any, list[str]]] = {
    "nothing": ({}, ["recipe: 'name' is missing", "recipe: 'stages' is missing"]),
    "no stages": (
        {"name": "a", "stages": []},
        ["pipeline: it has no stages; declare one with @pipeline.stage(…) or @pipeline.sink(…)"],
    ),
    "an unknown key": (
        least() | {"stage": []},
        ["recipe: unknown key 'stage'; it may have name, errors, inputs, outputs, trail, log_errors, sources, stages"],
    ),
    "a stage that is no mapping": (
        {"name": "a", "stages": ["check"]},
        ["stages[0]: a mapping, not str"],
    ),
    "an unknown key of a stage": (
        least(form="raw", name="x"),
        [
            "stages[0] ('x'): unknown key 'form'; it may have name, from, to, handler, model, join, frame, where, "
            "otherwise, delivery, format, none, sequence, errors, shared, concurrency, prefetch, prefetch_bytes, "
            "lease, retry, max_retries, success_on, max_time, on_timeout, batch, probe, history, "
            "max_running, rate, burst, rate_key"
        ],
    ),
    "no handler": ({"name": "a", "stages": [{"from": "in"}]}, ["stages[0]: 'handler' is missing"]),
    "a handler that is no text": (least(handler=stations.load), ["stages[0]: handler: Input should be a valid string"]),
    "a handler without a module": (
        least(handler="load"),
        ["stages[0]: handler: an import path such as 'package.module:function', not 'load'"],
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
    "otherwise that is none": (
        least(where={"a": 1}, otherwise="skip"),
        ["stages[0]: otherwise: 'drop', or {'move': {'to': …}}, not 'skip'"],
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


def test_a_recipe_with_faults() -> None:
    for row, (recipe, expected) in ROWS.items():
        assert faults(recipe) == expected, row


def test_the_error_names_the_pipeline(tmp_path: Path) -> None:
    with pytest.raises(mongoq.GraphInvalid, match="pipeline 'least' has 1 fault:"):
        mongoq.Pipeline.from_recipe(least(batch=0))
    path = tmp_path / "mine.json"
    path.write_text("{")
    with pytest.raises(mongoq.GraphInvalid, match=r"pipeline 'mine\.json' has 1 fault:"):
        mongoq.Pipeline.from_recipe(path)


# --- imports -------------------------------------------------------------------------------------


def test_whatever_an_import_raises_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    bodies = [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError: invalid syntax"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ]
    for number, (body, reason) in enumerate(bodies):
        (tmp_path / f"broken_stations_{number}.py").write_text(body)
        (fault,) = faults(least(handler=f"broken_stations_{number}:load"))
        path = f"broken_stations_{number}:load"
        assert fault.startswith(f"stages[0]: handler: '{path}' cannot be imported: {reason}")


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
LEAST = "name: least\nstages:\n  - from: in\n    handler: tests.pipeline.stations:load\n"


TWICE = "recipe: it cannot be read: ConstructorError: the key 'name' is given twice"
SAME = "recipe: it cannot be read: ConstructorError: the key True is given twice"
MERGE = "recipe: it cannot be read: ConstructorError: merge keys (<<) are not taken"


def test_a_file_of_yaml_that_is_no_recipe(tmp_path: Path) -> None:
    texts: list[tuple[str | bytes, str]] = [
        ("", "recipe: a mapping, not NoneType"),
        ("[a", "recipe: it cannot be read: ParserError: "),
        (b"\xff\xfe\xff", "recipe: it cannot be read: "),
        (LEAST + "---\n" + LEAST, "recipe: it cannot be read: ComposerError: "),
        (LEAST + "name: again\n", TWICE),
        (LEAST + "    <<: {batch: 5}\n", MERGE),
        (LEAST + "? [a]\n: 1\n", "recipe: it cannot be read: ConstructorError: "),
        ("!!python/object/apply:os.system [exit]", "recipe: it cannot be read: ConstructorError: "),
        ("a: 2024-13-45", "recipe: it cannot be read: ValueError: "),
        ("[" * 100_000, "recipe: nested deeper than 60 levels"),
        ("- " * 50_000, "recipe: nested deeper than 60 levels"),
        ("a: &a [*a]", "recipe: nested deeper than 60 levels"),
        ("[" * 70 + "]" * 70, "recipe: nested deeper than 60 levels"),
        (f"{LEAST}    lease: 1:30\n", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"{LEAST}    lease: -1:30.5\n", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"a: {':'.join(['59'] * 50_000)}", f"recipe: it cannot be read: ConstructorError: {BASE_60}"),
        (f"a: 0x{'f' * 100_000}", "recipe: an integer of more than 1,024 bits"),
        ("a: {on: 1, yes: 2}", SAME),
        ("a:\n" + "- a\n" * 21_000, "recipe: more than 20,000 values"),
    ]
    for text, reason in texts:
        (fault,) = faults(written(tmp_path, text))
        assert fault.startswith(reason), text[:40]
        assert "\n" not in fault


def test_a_file_of_json_that_is_no_recipe(tmp_path: Path) -> None:
    texts: list[tuple[str | bytes, str]] = [
        ("", "recipe: it cannot be read: JSONDecodeError: "),
        ("null", "recipe: a mapping, not NoneType"),
        (b"\xff", "recipe: it cannot be read: UnicodeDecodeError: "),
        ('{"name": 1, "name": 2}', "recipe: it cannot be read: ValueError: the key 'name' is given twice"),
        ("[" * 100_000, "recipe: nested deeper than 60 levels"),
        (json.dumps({"a": [0] * 20_000}), "recipe: more than 20,000 values"),
        ("9" * 5_000, "recipe: it cannot be read: ValueError: "),
    ]
    for text, reason in texts:
        (fault,) = faults(written(tmp_path, text, "recipe.json"))
        assert fault.startswith(reason), text[:40]


def test_a_few_aliases_that_stand_for_billions(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    text = f"{LEAST}    where: {{a: *a11}}\n    otherwise: drop\n"
    (fault,) = faults(written(tmp_path, "\n".join(lines) + "\n" + text))
    assert fault == "recipe: more than 20,000 values, aliases counted as what they stand for; write less"


def test_an_alias_stands_for_what_it_names(tmp_path: Path) -> None:
    text = LEAST + "    retry: &patient {fixed: {base: 60}}\n"
    text += "  - from: late\n    name: late\n    handler: tests.pipeline.stations:load\n    retry: *patient\n"
    by_hand = mongoq.Pipeline("least")
    by_hand.sink("in", retry=mongoq.Fixed(60))(stations.load)
    by_hand.sink("late", name="late", retry=mongoq.Fixed(60))(stations.load)
    assert mongoq.Pipeline.from_recipe(written(tmp_path, text)).compare(by_hand) == []


def test_a_mapping_that_no_error_could_show() -> None:
    for value in (1 << 100_000, [-(1 << 2_000)]):
        assert faults(least(lease=value)) == ["recipe: an integer of more than 1,024 bits; write a smaller one"]
    recipe = least()
    recipe["stages"].append(recipe)
    assert faults(recipe) == ["recipe: nested deeper than 60 levels"]


def test_a_file_beyond_the_limit(tmp_path: Path) -> None:
    limit = 1024 * 1024
    path = written(tmp_path, json.dumps(least()).ljust(limit), "recipe.json")
    assert mongoq.Pipeline.from_recipe(path).name == "least"
    for name in ("recipe.json", "recipe.yaml"):
        path = written(tmp_path, json.dumps(least()).ljust(limit + 1), name)
        assert faults(path) == ["recipe: more than 1,048,576 bytes; that is no recipe, or several"]


def test_what_is_no_recipe_at_all(tmp_path: Path) -> None:
    recipes: list[Any] = [None, 5, [least()], b"recipe.yaml", "recipe", "recipe.toml", "a\0.json"]
    for recipe in recipes:
        with pytest.raises(mongoq.ArgumentInvalid, match="^recipe: "):
            mongoq.Pipeline.from_recipe(recipe)
    with pytest.raises(FileNotFoundError):
        mongoq.Pipeline.from_recipe(tmp_path / "recipe.yaml")


WITHOUT_YAML = """
import sys
sys.modules["yaml"] = None
import mongoq

try:
    mongoq.Pipeline.from_recipe(sys.argv[1])
except mongoq.ArgumentInvalid as error:
    print(error)
print(mongoq.Pipeline.from_recipe(sys.argv[2]).name)
"""


def test_without_pyyaml_the_extra_is_named_and_json_is_read(tmp_path: Path) -> None:
    paths = written(tmp_path, LEAST), written(tmp_path, json.dumps(least()), "recipe.json")
    command = [sys.executable, "-c", WITHOUT_YAML, *map(str, paths)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    error, name = run.stdout.splitlines()
    assert "install mongoq-driver[yaml], or write the recipe as JSON" in error
    assert name == "least"


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
@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES),
    st.dictionaries(st.sampled_from(["errors", "inputs", "outputs", "trail", "name"]), VALUES),
)
def test_any_values_are_a_pipeline_or_faults(stage: dict[str, Any], whole: dict[str, Any]) -> None:
    whole_stage: dict[str, Any] = {"from": "in", "handler": f"{HERE}:load"}
    recipe = {"name": "any", **whole, "stages": [whole_stage | stage, whole_stage]}
    assert not any("\n" in fault for fault in faults_if_any(recipe))


def test_of_very_many_faults_the_error_shows_some() -> None:
    with pytest.raises(mongoq.GraphInvalid, match=r"and \d[\d,]* more, in faults") as caught:
        mongoq.Pipeline.from_recipe(least(**{f"unknown {n}": n for n in range(5_000)}))
    assert len(str(caught.value)) < 50_000
