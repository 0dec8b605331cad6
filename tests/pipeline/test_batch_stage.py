"""Stages on frames, by each engine; what may be wrong with them is reported before they run, and nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.compute
import pytest
from bson import Decimal128, ObjectId
from pydantic import BaseModel, PositiveInt

import mongoq
from mongoq.testing import VirtualBroker
from tests.pipeline import stations
from tests.pipeline.conftest import QUICK, Site, counted

ROOT = Path(__file__).parents[2]
HERE = "tests.pipeline.test_batch_stage"
FORMATS = ("pandas", "arrow")


def framed(*targets: str, errors: str | None = "graph.errors", **options: Any) -> Any:
    """Return a pipeline, and the decorator of its one stage."""
    pipeline = mongoq.Pipeline("graph", errors=errors, outputs=targets)
    return pipeline, pipeline.batch_stage("raw", to=targets, **{"format": "pandas", "max_retries": 0, **options})


def enrich(flights: pandas.DataFrame) -> pandas.DataFrame:
    return flights.assign(late=flights["delay"] > 15)


def enrich_table(flights: pyarrow.Table) -> pyarrow.Table:
    return flights.append_column("late", pyarrow.compute.greater(flights["delay"], 15))


def flights(number: int) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "delay": n,
            "id": ObjectId(n.to_bytes(12, "big")),
            "price": Decimal128("1.50"),
            "legs": [{"to": "EWR"}],
        }
        for n in range(number)
    ]


# --- at work -------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_function_on_frames_enriches_items(site: Site, format: str) -> None:
    ids = site.queue("raw").push_many(flights(50), headers={"from": "test"}, priority=2)
    pipeline, stage = framed("out", format=format, batch=20)
    stage(enrich if format == "pandas" else enrich_table)
    site.drain(pipeline)
    items = site.queue("out").peek(100)
    assert [item.payload for item in items] == [{**flight, "late": flight["delay"] > 15} for flight in flights(50)]
    assert [item.id for item in items] == ids
    assert {(item.priority, item.headers["from"], item.hops) for item in items} == {(2, "test", 1)}
    assert site.broker.queues() == ["out"]


def test_rows_drop_route_retry_and_bury(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(10)])
    pipeline, stage = framed("even", "odd", max_retries=3, retry=QUICK)

    @stage
    def route(frame: pandas.DataFrame) -> pandas.DataFrame:
        frame = frame[frame["n"] > 1]
        frame["_to"] = frame["n"].mod(2).map({0: "even", 1: "odd"})
        frame["_retry"] = [
            "closed" if n == 4 and runs == 1 else None for n, runs in zip(frame["n"], frame["_attempts"], strict=True)
        ]
        frame["_dead"] = pandas.Series(pandas.NA, index=frame.index, dtype="string").mask(frame["n"] == 5, "a five")
        return frame

    site.drain(pipeline)
    assert counted(site.payloads("even")) == counted([{"n": n} for n in (2, 4, 6, 8)])
    assert counted(site.payloads("odd")) == counted([{"n": n} for n in (3, 7, 9)])
    assert site.letters("graph.errors") == [({"n": 5}, "a five")]
    assert site.broker.stats()["raw"].rollback == 1
    assert site.broker.queues() == ["even", "graph.errors", "odd"]


@pytest.mark.parametrize("format", FORMATS)
def test_several_rows_of_an_item_are_a_fork(site: Site, format: str) -> None:
    ids = site.queue("raw").push_many([{"tags": ["a", "b"]}, {"tags": ["c"]}, {"tags": []}])
    pipeline, stage = framed("out", format=format)

    @stage
    def split(frame: Any) -> Any:
        if format == "pandas":
            return frame.explode("tags").dropna(subset="tags")
        rows = [{"_id": row["_id"], "tags": tag} for row in frame.to_pylist() for tag in row["tags"]]
        return pyarrow.Table.from_pylist(rows)

    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([{"tags": tag} for tag in "abc"])
    assert [item.id in ids for item in site.queue("out").peek(9) if item.payload == {"tags": "c"}] == [True]
    assert site.broker.queues() == ["out"]


def test_a_sink_may_return_nothing(site: Site) -> None:
    site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    numbers: list[int] = []
    pipeline, stage = framed()

    @stage
    def load(frame: pandas.DataFrame, job: Any) -> None:
        assert [str(item.id) for item in job.items] == frame["_id"].tolist()
        assert [job.hash_of(item) for item in job.items] == frame["_delivery_hash"].tolist()
        numbers.extend(frame["n"])

    site.drain(pipeline)
    assert numbers == [1, 2]
    assert site.broker.queues() == []


def test_rows_of_a_sink_may_tell_of_failures(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(3)])
    pipeline, stage = framed()

    @stage
    def load(frame: pandas.DataFrame) -> pandas.DataFrame:
        return frame.assign(_retry=["closed", None, None])[:2]

    site.drain(pipeline)
    assert site.letters("graph.errors") == [({"n": 0}, "failed, no retries allowed")]
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.error is not None
    assert letter.error.message == "closed"


def test_payloads_that_are_no_documents_are_a_column(site: Site) -> None:
    site.queue("raw").push_many([1, None, 3])
    pipeline, stage = framed("out")

    @stage
    def double(frame: pandas.DataFrame) -> pandas.DataFrame:
        assert list(frame.columns) == ["_id", "_delivery_hash", "_attempts", "payload"]
        return frame.assign(payload=frame["payload"] * 2)

    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([2, None, 6])


def test_none_is_a_forgotten_return_unless_it_is_declared(site: Site) -> None:
    site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    pipeline, stage = framed("out")
    stage(lambda frame: None)
    site.drain(pipeline)
    assert len(site.letters("graph.errors")) == 2
    site.queue("raw").push_many([{"n": 3}])
    pipeline, stage = framed("out", none="drop")
    stage(lambda frame: None)
    site.drain(pipeline)
    assert site.broker.queues() == ["graph.errors"]
    assert len(site.letters("graph.errors")) == 2


def test_items_that_the_filter_keeps_away_have_no_row(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(4)])
    pipeline, stage = framed("out", where={"n": {"$gte": 2}}, otherwise=mongoq.Drop())

    @stage
    def look(frame: pandas.DataFrame) -> pandas.DataFrame:
        assert frame["n"].min() >= 2
        return frame

    site.drain(pipeline)
    assert site.payloads("out") == [{"n": 2}, {"n": 3}]
    assert site.broker.queues() == ["out"]


class Order(BaseModel):
    sku: str
    quantity: PositiveInt
    price: Decimal128 | None = None

    model_config = {"arbitrary_types_allowed": True}


def test_a_model_keeps_what_does_not_fit_out_of_the_frame(site: Site) -> None:
    site.queue("raw").push_many([{"sku": "bolt", "quantity": "12"}, {"sku": "nut", "quantity": "many"}, 7])
    pipeline, stage = framed("out", model=Order)

    @stage
    def double(frame: pandas.DataFrame) -> pandas.DataFrame:
        assert str(frame["quantity"].dtype) == "Int64"
        return frame.assign(quantity=frame["quantity"] * 2)

    site.drain(pipeline)
    assert site.payloads("out") == [{"sku": "bolt", "quantity": 24, "price": None}]
    assert counted([payload for payload, _ in site.letters("graph.errors")]) == counted(
        [{"sku": "nut", "quantity": "many"}, 7]
    )


def test_rows_are_checked_by_the_model_of_the_next_stage(site: Site) -> None:
    site.queue("raw").push_many([{"sku": "bolt", "quantity": 2}, {"sku": "nut", "quantity": 1}])
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.batch_stage("raw", to="checked", format="pandas", max_retries=0)
    def less(frame: pandas.DataFrame) -> pandas.DataFrame:
        return frame.assign(quantity=frame["quantity"] - 1)

    @pipeline.stage("checked", to="out", model=Order)
    def on(order: Order) -> str:
        return order.sku

    site.drain(pipeline)
    assert site.payloads("out") == ["bolt"]
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.origin is not None
    assert (letter.payload, letter.origin.stage) == ({"sku": "nut", "quantity": 1}, "less")


# --- failures ------------------------------------------------------------------------------------


def test_a_function_that_raises_fails_its_batch_and_the_next_run_may_succeed(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(5)])
    pipeline, stage = framed("out", max_retries=2, retry=QUICK)

    @stage
    def fail_first(frame: pandas.DataFrame) -> pandas.DataFrame:
        if frame["_attempts"].min() == 1:
            raise ValueError("the first time")
        return frame

    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([{"n": n} for n in range(5)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda frame: frame.drop(columns="_id"), "no column '_id'"),
        (lambda frame: frame.assign(_id="x"), "no item of the batch"),
        (lambda frame: frame.assign(_too="out"), "'_too'"),
        (lambda frame: frame.to_dict(), "got a dict"),
    ],
)
def test_a_wrong_frame_fails_the_batch_and_loses_nothing(site: Site, wrong: Any, message: str) -> None:
    ids = site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    pipeline, stage = framed("out")
    stage(wrong)
    site.drain(pipeline)
    letters = site.queue("graph.errors").peek(5)
    assert {item.id for item in letters} == set(ids)
    assert [item.payload for item in letters] == [{"n": 1}, {"n": 2}]
    for letter in letters:
        assert letter.error is not None
        assert letter.error.type == "mongoq.errors.OutcomeInvalid"
        assert message in letter.error.message
    assert site.broker.queues() == ["graph.errors"]


def test_one_wrong_row_fails_its_item_alone(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(4)])
    pipeline, stage = framed("a", "b")

    @stage
    def route(frame: pandas.DataFrame) -> pandas.DataFrame:
        frame = frame.assign(_to=["a", "elsewhere", None, "b"], at=None)
        frame.loc[3, "at"] = pandas.Timestamp("2026-01-01")  # it says no time zone
        return frame.astype({"at": object})

    site.drain(pipeline)
    assert site.payloads("a") == [{"n": 0, "at": None}]
    letters = {item.payload["n"]: item.error and item.error.message for item in site.queue("graph.errors").peek(9)}
    assert sorted(letters) == [1, 2, 3]
    assert "'elsewhere', which is not one of its targets ('a', 'b')" in str(letters[1])
    assert "no _to" in str(letters[2])
    assert "naive datetime" in str(letters[3])
    assert site.broker.queues() == ["a", "graph.errors"]


def test_exceptions_that_count_as_success_send_items_on_as_they_are(site: Site) -> None:
    site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    pipeline, stage = framed("out", success_on=KeyError)

    @stage
    def miss(frame: pandas.DataFrame) -> pandas.DataFrame:
        return frame[["nowhere"]]

    site.drain(pipeline)
    assert site.payloads("out") == [{"n": 1}, {"n": 2}]


KILLED = """
import os, sys
import mongoq

def die(frame):
    assert len(frame) > 1
    os._exit(9)

pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
pipeline.batch_stage("raw", to="out", format="pandas", name="halve", lease=0.3)(die)
pipeline.drain(mongoq.connect(sys.argv[1], database=sys.argv[2]))
"""


def test_a_batch_whose_process_dies_runs_again_item_by_item(site: Site, uri: str, database: str) -> None:
    ids = site.queue("raw").push_many([{"n": n} for n in range(6)])
    died = subprocess.run([sys.executable, "-c", KILLED, uri, database], cwd=ROOT, check=False)
    assert died.returncode == 9
    pipeline, stage = framed("out", name="halve", max_retries=3)
    sizes: list[tuple[int, int]] = []

    @stage
    def halve(frame: pandas.DataFrame) -> pandas.DataFrame:
        sizes.append((len(frame), int(frame["_attempts"].max())))
        return frame.assign(n=frame["n"] * 2)

    site.drain(pipeline)
    items = site.queue("out").peek(10)
    assert {item.id for item in items} == set(ids)
    assert counted([item.payload for item in items]) == counted([{"n": 2 * n} for n in range(6)])
    assert sizes == [(1, 2)] * 6
    assert site.broker.queues() == ["out"]


# --- coroutine functions -------------------------------------------------------------------------


def waiting() -> mongoq.Pipeline:
    pipeline, stage = framed("out")

    @stage
    async def enrich_later(frame: pandas.DataFrame) -> pandas.DataFrame:
        await asyncio.sleep(0.001)
        return enrich(frame)

    return pipeline  # type: ignore[no-any-return]


async def test_a_coroutine_function_runs_with_asyncio(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        await broker.queue("raw").push_many([{"delay": 20}, {"delay": 3}])
        await waiting().drain_async(broker)
        assert [item.payload["late"] for item in await broker.queue("out").peek(5)] == [True, False]


def test_threads_refuse_a_coroutine_function_by_its_name(broker: mongoq.Broker) -> None:
    with pytest.raises(mongoq.GraphInvalid, match=r"waiting\.<locals>\.enrich_later is a coroutine function"):
        waiting().start(broker)


# --- before it runs ------------------------------------------------------------------------------


def faults(pipeline: mongoq.Pipeline) -> list[str]:
    try:
        pipeline.check()
    except mongoq.GraphInvalid as invalid:
        return list(invalid.faults)
    return []


def takes_list(flights: list[dict[str, Any]]) -> Any: ...
def takes_table(flights: pyarrow.Table) -> Any: ...
def returns_dict(flights: Any) -> dict[str, Any]: ...  # type: ignore[empty-body]
def returns_none(flights: Any) -> None: ...
def returns_list(flights: Any) -> list[mongoq.Drop]: ...  # type: ignore[empty-body]
def takes_much(flights: Any, job: Any, more: Any) -> Any: ...


FAULTS: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "nothing": ({}, enrich, []),
    "a list is returned": ({}, returns_list, []),
    "another format": ({"format": "polars"}, enrich, ["format: 'pandas' or 'arrow', not 'polars'"]),
    "no format": ({"format": 5}, enrich, ["format: 'pandas' or 'arrow', not 5"]),
    "no batch": ({"batch": None}, enrich, ["batch: a frame is made of a batch; say of how many items at most"]),
    "an empty batch": ({"batch": 0}, enrich, ["batch: a whole number from 1 up, not 0"]),
    "another frame": (
        {},
        takes_table,
        ["format: the handler takes pyarrow.Table, and is given a pandas.DataFrame; change one of them"],
    ),
    "a list": (
        {"format": "arrow"},
        takes_list,
        ["format: the handler takes list, and is given a pyarrow.Table; change one of them"],
    ),
    "a document": (
        {},
        returns_dict,
        ["format: the handler returns dict, where a pandas.DataFrame is due; change one of them"],
    ),
    "nothing returned": (
        {},
        returns_none,
        ["the handler returns None, where a payload is due; return one, or declare a sink, or none='drop'"],
    ),
    "three arguments": (
        {},
        takes_much,
        ["handler: takes_much is to take (payload) or (payload, job), and nothing else"],
    ),
    "no function": ({"name": "x"}, 5, ["handler: a function, not int"]),
    "a model that is none": ({"model": 5}, enrich, ["model: "]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_reported_before_anything_runs(case: str) -> None:
    options, handler, expected = FAULTS[case]
    pipeline, stage = framed("out", **options)
    stage(handler)
    name = options.get("name") or handler.__name__
    messages = faults(pipeline)
    assert len(messages) == len(expected)
    for fault, start in zip(messages, expected, strict=True):
        assert fault.startswith(f"stage {name!r}: {start}")


@pytest.mark.parametrize(("format", "library"), [("pandas", "pandas"), ("arrow", "pyarrow")])
def test_a_missing_library_is_reported_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, format: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"mongoq.pipeline.frames.{format}_frames", raising=False)
    pipeline, stage = framed("out", format=format)
    stage(stations.pass_on)
    hint = f"install mongoq-driver[{format}] (pip install '.[{format}]')"
    expected = [f"stage 'pass_on': format: {format!r} needs {library}: {hint}"]
    assert faults(pipeline) == expected
    with VirtualBroker() as virtual, pytest.raises(mongoq.GraphInvalid, match="needs"):
        virtual.worker(pipeline)


def test_a_declaration_imports_no_library() -> None:
    code = (
        "import sys, mongoq; pipeline = mongoq.Pipeline('p'); "
        "pipeline.batch_stage('raw', format='pandas')(print); pipeline.describe(); "
        "print([name for name in ('pandas', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_it_is_described_by_its_function() -> None:
    pipeline, stage = framed("out")
    assert stage(enrich) is enrich
    assert pipeline.describe().split("\n\n")[1] == (
        "stage enrich\n"
        "  takes       raw\n"
        "  gives       out\n"
        "  errors      graph.errors\n"
        f"  handler     {HERE}:enrich\n"
        "  format      pandas\n"
        "  delivery    exactly-once\n"
        "  max_retries 0\n"
        "  batch       1000"
    )
    changed, stage = framed("out", format="arrow")
    stage(enrich)
    assert [str(difference) for difference in pipeline.compare(changed)] == [
        "stage 'enrich': format was 'pandas', and is 'arrow'"
    ]


def test_a_recipe_may_declare_one() -> None:
    stage_recipe = {"from": "raw", "to": "out", "handler": f"{HERE}:enrich", "format": "pandas", "max_retries": 0}
    whole = {"name": "graph", "errors": "graph.errors", "outputs": "out"}
    pipeline, stage = framed("out")
    stage(enrich)
    assert mongoq.Pipeline.from_recipe({**whole, "stages": [stage_recipe]}).compare(pipeline) == []
    pipeline, stage = framed("out", batch=7)
    stage(enrich)
    assert mongoq.Pipeline.from_recipe({**whole, "stages": [{**stage_recipe, "batch": 7}]}).compare(pipeline) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"format": "csv"}, "format: 'pandas' or 'arrow', not 'csv'"),
        ({"delivery": "at-most-once"}, "delivery: what is run at most once is run item by item"),
        ({"from": ["raw", "more"], "join": {"on": "n"}}, "format: a join takes payloads"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes: dict[str, Any], fault: str) -> None:
    stage_recipe = {"from": "raw", "to": "out", "handler": f"{HERE}:enrich", "format": "pandas", **changes}
    with pytest.raises(mongoq.GraphInvalid) as caught:
        mongoq.Pipeline.from_recipe(
            {"name": "graph", "errors": "graph.errors", "outputs": "out", "stages": [stage_recipe]}
        )
    assert any(message.startswith(f"stage 'enrich': {fault}") for message in caught.value.faults), caught.value.faults
