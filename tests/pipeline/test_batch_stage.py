"""Stages on frames, by each engine; what may be wrong with them is reported before they run, and nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from pydantic import BaseModel, PositiveInt

import mongoq
from tests.pipeline.conftest import QUICK, Site, counted, each_server_engine

ROOT = Path(__file__).parents[2]
HANDLERS = "tests.pipeline.framing"


def framed(*targets: str, errors: str | None = "graph.errors", **options: Any) -> Any:
    """Return a pipeline, and the decorator of its one stage."""
    pipeline = mongoq.Pipeline("graph", errors=errors, outputs=targets)
    return pipeline, pipeline.batch_stage("raw", to=targets, **{"format": "pandas", "max_retries": 0, **options})


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


@each_server_engine
@pytest.mark.parametrize("format", ["pandas", "arrow"])
def test_a_function_on_frames_enriches_items(site: Site, format: str) -> None:
    from tests.pipeline import framing

    ids = site.queue("raw").push_many(flights(50), headers={"from": "test"}, priority=2)
    pipeline, stage = framed("out", format=format, batch=20)
    stage(framing.enrich if format == "pandas" else framing.enrich_table)
    site.drain(pipeline)
    items = site.queue("out").peek(100)
    assert [item.payload for item in items] == [{**flight, "late": flight["delay"] > 15} for flight in flights(50)]
    assert [item.id for item in items] == ids
    assert {(item.priority, item.headers["from"], item.hops) for item in items} == {(2, "test", 1)}
    assert site.broker.queues() == ["out"]


def test_rows_drop_route_retry_and_bury(site: Site) -> None:
    import pandas

    site.queue("raw").push_many([{"n": n} for n in range(10)])
    pipeline, stage = framed("even", "odd", max_retries=3, retry=QUICK)

    @stage
    def route(frame: Any) -> Any:
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


def test_several_rows_of_an_item_are_a_fork(site: Site) -> None:
    ids = site.queue("raw").push_many([{"tags": ["a", "b"]}, {"tags": ["c"]}, {"tags": []}])
    pipeline, stage = framed("out")
    stage(lambda frame: frame.explode("tags").dropna(subset="tags"))
    site.drain(pipeline)
    assert counted(site.payloads("out")) == counted([{"tags": tag} for tag in "abc"])
    assert [item.id in ids for item in site.queue("out").peek(9) if item.payload == {"tags": "c"}] == [True]
    assert site.broker.queues() == ["out"]


def test_a_sink_may_return_nothing(site: Site) -> None:
    site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    numbers: list[int] = []
    pipeline, stage = framed()

    @stage
    def load(frame: Any, job: Any) -> None:
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
    def load(frame: Any) -> Any:
        return frame.assign(_retry=["closed", None, None])[:2]

    site.drain(pipeline)
    assert site.letters("graph.errors") == [({"n": 0}, "failed, no retries allowed")]
    [letter] = site.queue("graph.errors").peek(5)
    assert letter.error is not None
    assert letter.error.message == "closed"


class Order(BaseModel):
    sku: str
    quantity: PositiveInt
    price: Decimal128 | None = None

    model_config = {"arbitrary_types_allowed": True}


def test_a_model_keeps_what_does_not_fit_out_of_the_frame(site: Site) -> None:
    site.queue("raw").push_many([{"sku": "bolt", "quantity": "12"}, {"sku": "nut", "quantity": "many"}, 7])
    pipeline, stage = framed("out", model=Order)

    @stage
    def double(frame: Any) -> Any:
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
    def less(frame: Any) -> Any:
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


def test_a_wrong_frame_fails_the_batch_and_loses_nothing(site: Site) -> None:
    ids = site.queue("raw").push_many([{"n": 1}, {"n": 2}])
    pipeline, stage = framed("out")
    stage(lambda frame: frame.drop(columns="_id"))
    site.drain(pipeline)
    letters = site.queue("graph.errors").peek(5)
    assert {item.id for item in letters} == set(ids)
    assert [item.payload for item in letters] == [{"n": 1}, {"n": 2}]
    for letter in letters:
        assert letter.error is not None
        assert letter.error.type == "mongoq.errors.OutcomeInvalid"
        assert "no column '_id'" in letter.error.message
    assert site.broker.queues() == ["graph.errors"]


def test_one_wrong_row_fails_its_item_alone(site: Site) -> None:
    import pandas

    site.queue("raw").push_many([{"n": n} for n in range(4)])
    pipeline, stage = framed("a", "b")

    @stage
    def route(frame: Any) -> Any:
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


KILLED = """
import os, sys
import mongoq

def die(frame):
    assert len(frame) > 1
    os._exit(9)

pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
pipeline.batch_stage("raw", to="out", format="pandas", name="halve")(die)
pipeline.drain(mongoq.connect(sys.argv[1], database=sys.argv[2]))
"""


def test_a_batch_whose_process_dies_runs_again_item_by_item(site: Site, uri: str, database: str) -> None:
    ids = site.queue("raw").push_many([{"n": n} for n in range(6)])
    died = subprocess.run([sys.executable, "-c", KILLED, uri, database], cwd=ROOT, check=False)
    assert died.returncode == 9
    site.raw.update_many({"q": "raw"}, {"$set": {"when": datetime(2020, 1, 1, tzinfo=UTC)}})  # their leases have ended
    pipeline, stage = framed("out", name="halve")  # without a retry they run alone
    sizes: list[tuple[int, int]] = []

    @stage
    def halve(frame: Any) -> Any:
        sizes.append((len(frame), int(frame["_attempts"].max())))
        return frame.assign(n=frame["n"] * 2)

    site.drain(pipeline)
    items = site.queue("out").peek(10)
    assert {item.id for item in items} == set(ids)
    assert counted([item.payload for item in items]) == counted([{"n": 2 * n} for n in range(6)])
    assert sizes == [(1, 2)] * 6
    assert site.queue("raw").counts().total == 0  # the dead process counts as its consumer for a while


# --- coroutine functions -------------------------------------------------------------------------


async def test_a_coroutine_function_runs_with_asyncio(uri: str, database: str, broker: mongoq.Broker) -> None:
    pipeline, stage = framed("out")

    @stage
    async def enrich_later(frame: Any) -> Any:
        await asyncio.sleep(0.001)
        return frame.assign(late=frame["delay"] > 15)

    with pytest.raises(mongoq.GraphInvalid, match=r"<locals>\.enrich_later is a coroutine function"):
        pipeline.start(broker)
    async with mongoq.connect_async(uri, database=database) as own:
        await own.queue("raw").push_many([{"delay": 20}, {"delay": 3}])
        await pipeline.drain_async(own)
        assert [item.payload["late"] for item in await own.queue("out").peek(5)] == [True, False]


# --- before it runs ------------------------------------------------------------------------------


def faults(pipeline: mongoq.Pipeline) -> list[str]:
    try:
        pipeline.check()
    except mongoq.GraphInvalid as invalid:
        return list(invalid.faults)
    return []


def test_faults_are_reported_before_anything_runs() -> None:
    from tests.pipeline import framing

    faulty: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
        "nothing": ({}, framing.enrich, []),
        "a list is returned": ({}, framing.returns_list, []),
        "another format": ({"format": "polars"}, framing.enrich, ["format: 'pandas' or 'arrow', not 'polars'"]),
        "no format": ({"format": 5}, framing.enrich, ["format: 'pandas' or 'arrow', not 5"]),
        "no batch": (
            {"batch": None},
            framing.enrich,
            ["batch: a frame is made of a batch; say of how many items at most"],
        ),
        "an empty batch": ({"batch": 0}, framing.enrich, ["batch: a whole number from 1 up, not 0"]),
        "another frame": (
            {},
            framing.takes_table,
            ["format: the handler takes pyarrow.Table, and is given a pandas.DataFrame; change one of them"],
        ),
        "a list": (
            {"format": "arrow"},
            framing.takes_list,
            ["format: the handler takes list, and is given a pyarrow.Table; change one of them"],
        ),
        "a document": (
            {},
            framing.returns_dict,
            ["format: the handler returns dict, where a pandas.DataFrame is due; change one of them"],
        ),
        "nothing returned": (
            {},
            framing.returns_none,
            ["the handler returns None, where a payload is due; return one, or declare a sink, or none='drop'"],
        ),
        "three arguments": (
            {},
            framing.takes_much,
            ["handler: takes_much is to take (payload) or (payload, job), and nothing else"],
        ),
        "no function": ({"name": "x"}, 5, ["handler: a function, not int"]),
        "a model that is none": ({"model": 5}, framing.enrich, ["model: "]),
    }
    for case, (options, handler, expected) in faulty.items():
        pipeline, stage = framed("out", **options)
        stage(handler)
        name = options.get("name") or handler.__name__
        messages = faults(pipeline)
        assert len(messages) == len(expected), case
        for fault, start in zip(messages, expected, strict=True):
            assert fault.startswith(f"stage {name!r}: {start}"), case


MISSING = """
import sys
import mongoq

for format, library in (("pandas", "pandas"), ("arrow", "pyarrow")):
    sys.modules[library] = None
    pipeline = mongoq.Pipeline("graph", outputs="out")
    pipeline.batch_stage("raw", to="out", format=format, name="work")(lambda frame: frame)
    try:
        pipeline.check()
    except mongoq.GraphInvalid as invalid:
        print(*invalid.faults, sep="\\n")
"""


def test_a_missing_library_is_reported_with_the_extra_that_has_it() -> None:
    run = subprocess.run([sys.executable, "-c", MISSING], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        f"stage 'work': format: {format!r} needs {library}: install mongoq-driver[{format}] (pip install '.[{format}]')"
        for format, library in (("pandas", "pandas"), ("arrow", "pyarrow"))
    ]


def test_a_declaration_imports_no_library() -> None:
    code = (
        "import sys, mongoq; pipeline = mongoq.Pipeline('p'); "
        "pipeline.batch_stage('raw', format='pandas')(print); pipeline.describe(); "
        "print([name for name in ('pandas', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_it_is_described_by_its_function() -> None:
    from tests.pipeline.framing import enrich

    pipeline, stage = framed("out")
    assert stage(enrich) is enrich
    assert pipeline.describe().split("\n\n")[1] == (
        "stage enrich\n"
        "  takes       raw\n"
        "  gives       out\n"
        "  errors      graph.errors\n"
        f"  handler     {HANDLERS}:enrich\n"
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
    from tests.pipeline.framing import enrich

    stage_recipe = {"from": "raw", "to": "out", "handler": f"{HANDLERS}:enrich", "format": "pandas", "max_retries": 0}
    whole = {"name": "graph", "errors": "graph.errors", "outputs": "out"}
    pipeline, stage = framed("out")
    stage(enrich)
    assert mongoq.Pipeline.from_recipe({**whole, "stages": [stage_recipe]}).compare(pipeline) == []
    pipeline, stage = framed("out", batch=7)
    stage(enrich)
    assert mongoq.Pipeline.from_recipe({**whole, "stages": [{**stage_recipe, "batch": 7}]}).compare(pipeline) == []


def test_a_recipe_that_cannot_be_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"format": "csv"}, "format: 'pandas' or 'arrow', not 'csv'"),
        ({"delivery": "at-most-once"}, "delivery: what is run at most once is run item by item"),
        ({"from": ["raw", "more"], "join": {"on": "n"}}, "format: a join has no such option"),
    ]
    for changes, fault in wrong:
        stage = {"from": "raw", "to": "out", "handler": f"{HANDLERS}:enrich", "format": "pandas", **changes}
        with pytest.raises(mongoq.GraphInvalid) as caught:
            mongoq.Pipeline.from_recipe({"name": "graph", "outputs": "out", "stages": [stage]})
        assert any(message.startswith(f"stage 'enrich': {fault}") for message in caught.value.faults)
