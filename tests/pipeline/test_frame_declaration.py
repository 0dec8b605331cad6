"""Frame stages as they are declared: what can be wrong with them, who refuses them, pictures and comparisons."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import mongoq
from mongoq.errors import GraphInvalid
from mongoq.testing import VirtualBroker


def enrich(flights: Any) -> Any:
    return flights


def pipeline(handler: Any = enrich, source: Any = "checked", **options: Any) -> mongoq.Pipeline:
    declared = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
    declared.frame_stage(source, **{"to": "out", "schema": "n int", "name": "frames", **options})(handler)
    return declared


async def coroutine(flights: Any) -> Any:
    return flights


def generator(flights: Any) -> Any:
    yield flights


def two(flights: Any, job: Any) -> Any:
    return flights


def none() -> Any:
    return None


class Called:
    def __call__(self, flights: Any) -> Any:
        return flights


FAULTS: list[tuple[dict[str, Any], str]] = [
    (
        {"schema": " "},
        "schema: columns such as 'carrier string, dep_delay int', a StructType, or None, not nothing",
    ),
    ({"schema": 5}, "schema: columns such as .*, not a value of type int"),
    ({"schema": ["n int"]}, "schema: columns such as .*, not a value of type list"),
    ({"items": 0}, "items: a whole number from 1 up, not 0"),
    ({"items": "all"}, "items: a whole number from 1 up, not 'all'"),
    ({"items": 500_001}, "items: 500,000 at most, not 500,001"),
    ({"partitions": 0}, "partitions: a whole number from 1 up, not 0"),
    ({"lease": 0.5}, "lease: of a stage on frames 1 second at least"),
    ({"lease": "long"}, "lease: "),
    ({"retry": 5}, "retry: a policy such as Exponential"),
    ({"max_retries": -1}, "max_retries"),
    ({"handler": "enrich"}, "handler: a plain function that takes one DataFrame"),
    ({"handler": coroutine}, "handler: a plain function that takes one DataFrame"),
    ({"handler": generator}, "handler: a plain function that takes one DataFrame"),
    ({"handler": two}, "handler: a plain function that takes one DataFrame"),
    ({"handler": none}, "handler: a plain function that takes one DataFrame"),
    ({"shared": 1}, "shared: a bool, not int"),
    ({"source": ["checked", "checked"]}, "source: 'checked' is given twice"),
    ({"to": "nowhere"}, "to: no stage takes items from 'nowhere'"),
    ({"errors": "checked"}, "errors: what fails would go back to 'checked'"),
]


def test_what_is_wrong_with_a_frame_stage_is_reported_before_anything_runs() -> None:
    for options, problem in FAULTS:
        with pytest.raises(GraphInvalid, match=f"stage 'frames': {problem}"):
            pipeline(**options).check()


def test_what_is_right_passes() -> None:
    handlers = (enrich, Called(), partial(two, job=None), lambda flights: flights)
    for handler in handlers:
        for options in ({}, {"schema": None}, {"source": ["a", "b"]}, {"items": 500_000}):
            pipeline(handler, **options).check()
    sink = mongoq.Pipeline("graph")
    sink.frame_stage("checked")(enrich)
    sink.check()


def test_it_returns_the_function_and_takes_its_name() -> None:
    declared = mongoq.Pipeline("graph", outputs="out")
    assert declared.frame_stage("checked", to="out")(enrich) is enrich
    assert "\nstage enrich\n" in declared.describe()


ONLY_SPARK = "stage 'frames': it takes frames, and so runs on Spark only: run the pipeline by run_on_spark"


def test_threads_asyncio_and_virtual_brokers_refuse_it_and_run_nothing(
    broker: mongoq.Broker, uri: str, database: str
) -> None:
    broker.queue("checked").push({"n": 1})
    for run in (pipeline().start, pipeline().drain):
        with pytest.raises(GraphInvalid, match=ONLY_SPARK):
            run(broker)

    async def drained() -> None:
        async with mongoq.connect_async(uri, database=database) as async_broker:
            await pipeline().drain_async(async_broker)

    with pytest.raises(GraphInvalid, match=ONLY_SPARK):
        asyncio.run(drained())
    with VirtualBroker() as virtual, pytest.raises(GraphInvalid, match=ONLY_SPARK):
        virtual.worker(pipeline())
    assert broker.queue("checked").size() == 1


def test_it_is_described() -> None:
    text = pipeline(items=500, partitions=4, lease=60).describe()
    for line in (
        "  takes       checked",
        "  gives       out",
        "  runs        on Spark, on frames",
        "  schema      'n int'",
        "  items       500 a frame at most",
        "  partitions  4",
        "  lease       60",
    ):
        assert line in text.splitlines()
    assert "  schema      the payload as JSON" in pipeline(schema=None).describe().splitlines()


def test_it_is_drawn_as_any_stage() -> None:
    chart = pipeline().to_mermaid()
    assert "queue_checked --> stage_frames" in chart
    assert "stage_frames --> queue_out" in chart


def test_what_is_different_is_reported() -> None:
    assert pipeline().compare(pipeline()) == []
    [difference] = pipeline().compare(pipeline(items=5))
    assert (difference.field, difference.before.items != 5, difference.after.items) == ("frame", True, 5)
    plain = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
    plain.stage("checked", to="out", name="frames")(enrich)
    [difference] = plain.compare(pipeline())
    assert (difference.field, difference.before, difference.after.schema) == ("frame", None, "n int")


def recipe(**stage: Any) -> dict[str, Any]:
    handler = f"{__name__}:enrich"
    own = {"name": "frames", "from": "checked", "to": "out", "handler": handler, "frame": {"schema": "n int"}}
    return {"name": "graph", "errors": "graph.errors", "outputs": "out", "stages": [{**own, **stage}]}


def test_a_recipe_declares_it() -> None:
    declared = mongoq.Pipeline.from_recipe(recipe(max_retries=2))
    assert pipeline(max_retries=2).compare(declared) == []
    assert pipeline(schema=None).compare(mongoq.Pipeline.from_recipe(recipe(frame={}))) == []


UNSAID: list[tuple[dict[str, Any], str]] = [
    ({"frame": {"rows": 5}}, "frame: unknown key 'rows'; it may have schema, items, partitions"),
    ({"frame": "n int"}, "frame: a mapping, not str"),
    ({"concurrency": 4}, "concurrency: a stage on frames of Spark has no such option"),
    ({"where": {"n": 1}, "otherwise": "drop"}, "where: a stage on frames of Spark has no such option"),
    ({"delivery": "at-most-once"}, "delivery: a stage on frames of Spark has no such option"),
    ({"none": "drop"}, "none: a stage on frames of Spark has no such option"),
    ({"join": {"on": "id"}, "from": ["a", "b"]}, "frame: a join has no such option"),
]


def test_what_a_recipe_cannot_say_of_it_is_reported() -> None:
    for options, problem in UNSAID:
        with pytest.raises(GraphInvalid) as caught:
            mongoq.Pipeline.from_recipe(recipe(**options))
        assert problem in str(caught.value)
