"""Sources: every record is pushed once and in order, whatever happens to the process that runs it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.testing import VirtualBroker
from tests.pipeline.conftest import Site, each_server_engine, with_asyncio
from tests.waiting import CLOCKS, PATIENCE, until

Rows = Callable[[Any], Iterator[Any]]
LARGE = "x" * (3 * 1024 * 1024)
DOCUMENT = "source:line/rows"


def line(rows: Any, **options: Any) -> mongoq.Pipeline:
    """Return a pipeline of one source, whose queue others read."""
    pipeline = mongoq.Pipeline("line", outputs="raw")
    pipeline.source(to="raw", name="rows", **options)(rows)
    return pipeline


def counting(stop: int, start: int = 0) -> Rows:
    def rows(position: int | None) -> Iterator[Any]:
        for n in range(position or start, stop):
            yield mongoq.Record(n, position=n + 1)

    return rows


def document(site: Site) -> Any:
    return site.raw.find_one({"_id": DOCUMENT})


# --- records --------------------------------------------------------------------------------------


@each_server_engine
def test_all_records_are_pushed_once_and_in_order(site: Site) -> None:
    positions = []

    def rows(position: int | None) -> Iterator[Any]:
        positions.append(position)
        yield from counting(950)(position)

    pipeline = line(rows, batch=100)
    site.drain(pipeline)
    assert site.payloads("raw") == list(range(950))
    assert (document(site)["position"], document(site)["pushed"]) == (950, 950)
    assert "token" not in document(site)
    site.drain(pipeline)
    assert (positions, site.queue("raw").size()) == ([None, 950], 950)
    assert site.broker.stats()["raw"].put == 950


@with_asyncio
def test_an_async_generator_is_a_source_with_asyncio(site: Site) -> None:
    closed = []

    async def rows(position: int | None) -> AsyncIterator[Any]:
        try:
            for n in range(position or 0, 250):
                await asyncio.sleep(0)
                yield mongoq.Record(n, position=n + 1)
        finally:
            closed.append(True)

    pipeline = line(rows, batch=20)
    with pytest.raises(mongoq.GraphInvalid, match="source 'rows': handler: .*rows is an async generator; start_as"):
        pipeline.start(site.broker)
    site.drain(pipeline)
    assert (site.payloads("raw"), closed) == (list(range(250)), [True])


def test_records_have_options(site: Site) -> None:
    def rows(position: Any) -> Iterator[Any]:
        yield mongoq.Record("late", position=1, delay=60)
        yield mongoq.Record("last", position=2, priority=5, headers={"from": "here"})
        yield mongoq.Record("first", position={"at": [3]}, priority=-5)

    site.drain(line(rows))
    items = site.queue("raw").peek(5, state=None)
    assert [(item.payload, item.priority, item.state) for item in items] == [
        ("first", -5, "ready"),
        ("late", 0, "scheduled"),
        ("last", 5, "ready"),
    ]
    assert items[2].headers == {"from": "here"}
    assert document(site)["position"] == {"at": [3]}


def test_values_are_those_at_the_time_of_the_yield(site: Site) -> None:
    def rows(position: Any) -> Iterator[Any]:
        row, place = {"n": 0}, [0]
        for _ in range(3):
            yield mongoq.Record(row, position=place)
            row["n"] += 1
            place[0] += 1

    site.drain(line(rows))
    assert site.payloads("raw") == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert document(site)["position"] == [2]


def test_large_records_are_pushed_in_smaller_batches(site: Site) -> None:
    def rows(position: int | None) -> Iterator[Any]:
        for n in range(position or 0, 12):
            yield mongoq.Record({"n": n, "text": LARGE}, position=n + 1)

    site.drain(line(rows))
    assert [payload["n"] for payload in site.payloads("raw")] == list(range(12))


def test_a_slow_generator_waits_for_no_full_batch(site: Site) -> None:
    go_on = threading.Event()

    def rows(position: Any) -> Iterator[Any]:
        yield mongoq.Record("one", position=1)
        go_on.wait(PATIENCE)

    with line(rows, lease=2).start(site.broker):
        until(lambda: site.payloads("raw"))
        before = document(site)
        extended = until(lambda: (now := document(site))["until"] > before["until"] and now)
        assert extended["token"] == before["token"]
        go_on.set()


def test_a_generator_is_not_far_ahead_of_what_is_pushed(site: Site) -> None:
    ahead = 0

    def rows(position: Any) -> Iterator[Any]:
        nonlocal ahead
        for n in range(500):
            yield mongoq.Record(n, position=n + 1)
            control = document(site) if n % 10 == 0 else None
            ahead = max(ahead, n - control.get("pushed", 0)) if control else ahead

    site.drain(line(rows, batch=20))
    assert ahead <= 60


class Flight(BaseModel):
    number: int


def test_payloads_fit_the_model_of_the_stage_behind(site: Site) -> None:
    pipeline = mongoq.Pipeline("line")
    got = []

    @pipeline.source(to="raw")
    def rows(position: int | None) -> Iterator[Any]:
        if not position:
            yield mongoq.Record(Flight(number=1), position=1)
        yield mongoq.Record({"number": "none"}, position=2)

    @pipeline.sink("raw", model=Flight)
    def load(flight: Flight) -> None:
        got.append(flight.number)

    with pytest.raises(mongoq.StageStopped) as stopped:
        site.drain(pipeline)
    assert isinstance(stopped.value.__cause__, mongoq.PayloadInvalid)
    assert got == [1]


def test_a_topic_gets_its_copies(site: Site) -> None:
    site.broker.bind("raw", "a", "b")
    site.drain(line(counting(2_500), batch=1_000))
    assert site.queue("raw").size() == 0
    for queue in ("a", "b"):
        items = site.queue(queue).peek(3_000)
        assert [item.payload for item in items] == list(range(2_500))
        assert items[0].origin is not None
        assert items[0].origin.queue == "raw"


# --- the end --------------------------------------------------------------------------------------


def test_a_stopped_run_gives_the_lease_back_and_the_next_goes_on(site: Site) -> None:
    closed = []

    def rows(position: int | None) -> Iterator[Any]:
        try:
            for n in range(position or 0, 1_000_000):
                time.sleep(0.001)
                yield mongoq.Record(n, position=n + 1)
        finally:
            closed.append(True)

    pipeline = line(rows, batch=10)
    for times in (1, 2):
        before = site.queue("raw").size()
        with pipeline.start(site.broker) as run:
            until(lambda before=before: site.queue("raw").size() > before + 30)  # type: ignore[misc]
            run.stop()
            run.wait()
            result = run.progress()
        assert result.sources["rows"] == mongoq.SourceProgress("rows", "raw", result.sources["rows"].pushed)
        assert result.sources["rows"].pushed > 30
        assert len(closed) == times
        assert "token" not in document(site)
    payloads = [item.payload for item in site.queue("raw").peek(10_000)]
    assert payloads == list(range(len(payloads)))


async def test_an_async_generator_that_waits_is_closed_at_once(uri: str, database: str) -> None:
    closed = []

    async def rows(position: Any) -> AsyncIterator[Any]:
        try:
            yield mongoq.Record(1, position=1)
            await asyncio.sleep(3600)
        finally:
            closed.append(True)

    async with mongoq.connect_async(uri, database=database) as broker, line(rows).start_async(broker) as run:
        while not await broker.queue("raw").size():
            await asyncio.sleep(0.01)
        run.stop()
        assert await run.wait(PATIENCE)
    assert closed == [True]


def test_a_generator_that_does_not_end_is_left_behind_after_the_grace(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, closed = threading.Event(), threading.Event()

    def rows(position: Any) -> Iterator[Any]:
        try:
            yield mongoq.Record(1, position=1)
            go_on.wait(PATIENCE)
            yield mongoq.Record(2, position=2)
        finally:
            closed.set()

    with line(rows).start(site.broker, grace=0.2):
        until(lambda: site.queue("raw").size())
    assert "source 'rows' does not come to its end, and is left behind" in caplog.text
    assert "token" not in document(site)
    go_on.set()
    assert closed.wait(PATIENCE)
    assert site.payloads("raw") == [1]


def test_a_source_is_called_again_after_so_many_seconds(site: Site) -> None:
    calls: list[Any] = []

    def rows(position: int | None) -> Iterator[Any]:
        calls.append(position)
        start = position or 0
        yield from (mongoq.Record(n, position=n + 1) for n in range(start, start + 3))

    with line(rows, every=0.1).start(site.broker):
        until(lambda: len(calls) >= 4)
    assert calls[:4] == [None, 3, 6, 9]
    payloads = site.payloads("raw")
    assert payloads == list(range(len(payloads)))


def test_progress_tells_of_sources(broker: mongoq.Broker) -> None:
    result = line(counting(5)).drain(broker)
    assert result.sources == {"rows": mongoq.SourceProgress("rows", "raw", pushed=5, ended=True)}
    assert line(counting(5)).drain(broker).sources["rows"].pushed == 0


# --- failures -------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_pushed_stops_the_source_there(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    cases: list[tuple[Any, str]] = [
        ("nothing", "yield: a mongoq.Record(payload, position=…), not str"),
        (mongoq.Record(object(), position=9), "payload: BSON cannot hold a builtins.object"),
        (mongoq.Record(LARGE * 6, position=9), "payload: 18,874,"),
        (mongoq.Record(1, position=None), "position: None stands for the beginning"),
        (mongoq.Record(1, position=object()), "position: BSON cannot hold"),
        (mongoq.Record(1, position="x" * 65_536), "position: 65,5"),
        (mongoq.Record(1, position=9, priority=1_000), "priority: an int"),
        (mongoq.Record(1, position=9, delay=-1), "delay: cannot be negative"),
        (mongoq.Record(1, position=9, headers={"a": "x" * 20_000}), "headers: 20,0"),
    ]
    for number, (wrong, problem) in enumerate(cases):
        queue, name = f"raw{number}", f"rows{number}"

        def rows(position: int | None, wrong: Any = wrong) -> Iterator[Any]:
            yield from counting(3)(position)
            yield wrong
            yield mongoq.Record(4, position=5)

        pipeline = mongoq.Pipeline("line", outputs=queue)
        pipeline.source(to=queue, name=name)(rows)
        with pytest.raises(mongoq.StageStopped, match=f"source '{name}' has stopped") as stopped:
            site.drain(pipeline)
        assert (stopped.value.stage, stopped.value.queue, stopped.value.item_id) == (name, queue, None)
        assert problem in str(stopped.value.__cause__)
        assert site.payloads(queue) == [0, 1, 2]
        assert site.raw.find_one({"_id": f"source:line/{name}"})["position"] == 3
    lines = [record for record in caplog.records if record.name == "mongoq.source" and "stops" in record.message]
    assert [record.levelname for record in lines] == ["ERROR"] * len(cases)


def test_an_error_of_the_generator_stops_the_source_behind_what_it_yielded(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", errors="errors")
    got = []

    @pipeline.source(to="raw", every=0.01)
    def rows(position: int | None) -> Iterator[Any]:
        yield from counting((position or 0) + 3)(position)
        raise OSError("the file is gone")

    @pipeline.sink("raw")
    def load(n: int) -> None:
        got.append(n)

    for times in (1, 2):
        with pytest.raises(mongoq.StageStopped) as stopped:
            site.drain(pipeline)
        assert repr(stopped.value.__cause__) == "OSError('the file is gone')"
        assert got == list(range(3 * times))
    assert "token" not in document(site)


def test_other_stages_go_on_when_a_source_has_stopped(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", errors="errors")

    @pipeline.source(to="raw")
    def rows(position: Any) -> Iterator[Any]:
        raise SystemExit
        yield

    got: list[int] = []
    pipeline.sink("raw", name="load")(got.append)
    with pytest.raises(mongoq.StageStopped), pipeline.start(broker) as run:
        while not (progress := run.progress()).sources["rows"].stopped:
            assert not run.wait(0.05)
        assert not progress.sources["rows"].ended
        broker.queue("raw").push(1)
        until(lambda: got)


def test_a_lost_lease_aborts_the_batch_and_the_source_waits_for_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    thief, calls = ObjectId(), []

    def rows(position: int | None) -> Iterator[Any]:
        calls.append(position)
        for n in range(position or 0, 60):
            if n == 20 and len(calls) == 1:
                until(lambda: (document(site) or {}).get("pushed") == 20)
                until_then = datetime.now(UTC) + timedelta(minutes=10)
                site.raw.update_one({"_id": DOCUMENT}, {"$set": {"token": thief, "by": "thief", "until": until_then}})
            yield mongoq.Record(n, position=n + 1)

    with line(rows, batch=20, lease=1.5).start(site.broker):
        until(lambda: "has lost its lease, which thief has" in caplog.text)
        assert site.payloads("raw") == list(range(20)), "nothing of the batch is seen"
        site.raw.update_one({"_id": DOCUMENT}, {"$set": {"until": datetime.now(UTC)}})
        until(lambda: site.queue("raw").size() == 60)
    assert site.payloads("raw") == list(range(60))
    assert calls == [None, 20]
    assert [record.levelname for record in caplog.records if "lost its lease" in record.message] == ["WARNING"]


def test_a_source_that_another_process_runs_is_waited_for(site: Site) -> None:
    site.drain(line(counting(5)))
    until_then = datetime.now(UTC) + timedelta(seconds=1.5)
    lease = {"token": ObjectId(), "until": until_then, "by": "another"}
    site.raw.update_one({"_id": DOCUMENT}, {"$set": lease})
    begun = []

    def rows(position: int | None) -> Iterator[Any]:
        begun.append(datetime.now(UTC))
        yield from counting(10)(position)

    with line(rows, lease=0.3).start(site.broker):
        until(lambda: site.queue("raw").size() == 10)
    assert begun[0] > until_then - CLOCKS
    assert site.payloads("raw") == list(range(10))


# --- what it is -----------------------------------------------------------------------------------


def test_a_standalone_server_is_refused_before_anything_is_written() -> None:
    with EmbeddedServer(replica_set=None) as server, MongoClient[Any](server.uri) as client:
        broker = mongoq.Broker(client["test"]["mongoq"])
        with pytest.raises(mongoq.TransactionsUnavailable, match="transactions of source 'rows' need a rep") as refused:
            line(counting(1)).start(broker)
        assert refused.value.needed_by == ("source 'rows'",)
        assert client["test"].list_collection_names() == []


def test_a_virtual_broker_refuses_sources() -> None:
    with VirtualBroker() as virtual, pytest.raises(mongoq.ArgumentInvalid, match="source 'rows', which needs a server"):
        virtual.worker(line(counting(1)))


def no_generator(position: Any) -> Any:
    return []


async def a_coroutine(position: Any) -> Any:
    return []


def two_parameters(position: Any, more: Any) -> Iterator[Any]:
    yield


def test_all_faults_are_reported_at_once() -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.source(to="raw")(no_generator)
    pipeline.source(to="raw")(a_coroutine)
    pipeline.source(to="raw")(two_parameters)
    pipeline.source(to="raw", name="number")(5)  # type: ignore[type-var]
    pipeline.source(to="", name="options", batch=0, every=-1, lease=0)(counting(1))
    pipeline.source(to=["a", "b"], name="options", batch=10_001)(counting(1))  # type: ignore[arg-type]
    pipeline.source(to="nowhere", name="load", lease=0.01)(counting(1))
    pipeline.source(to="raw", name=" ")(counting(1))
    pipeline.sink("raw", name="load")(print)
    with pytest.raises(mongoq.GraphInvalid) as invalid:
        pipeline.check()
    text = "\n".join(invalid.value.faults)
    for fault in (
        "source 'no_generator': handler: no_generator is a plain function, and a source is a generator; let it yield",
        "source 'a_coroutine': handler: a_coroutine is a coroutine function, and a source is a generator",
        "source 'two_parameters': handler: two_parameters is to take (position), and nothing else",
        "source 'number': handler: a generator function, not int",
        "source 'options': batch: a whole number from 1 up, not 0",
        "source 'options': every: cannot be negative",
        "source 'options': lease: must be a millisecond",
        "source 'options': to: a queue name cannot be empty",
        "source 'options': to: a queue name is a string, not list",
        "source 'options': batch: 10,000 at most, not 10,001",
        "source 'options': 2 sources have this name",
        "source 'load': a stage has this name as well",
        "source 'load': lease: a tenth of a second or longer",
        "source 'load': to: no stage takes items from 'nowhere'",
        "source ' ': name: it cannot be empty",
    ):
        assert fault in text


def test_a_source_is_described() -> None:
    pipeline = mongoq.Pipeline("line", outputs="raw")
    pipeline.source(to="raw", name="rows", every=60)(no_rows)
    assert pipeline.describe() == "\n".join(
        [
            "pipeline line",
            "  in          none",
            "  out         raw",
            "  errors      none: a stage stops",
            "",
            "source rows",
            "  gives       raw",
            "  handler     tests.pipeline.test_source:no_rows",
            "  every       60",
        ]
    )
    assert pipeline.to_mermaid() == "\n".join(
        [
            "flowchart LR",
            '    queue_raw(["raw"])',
            '    source_rows[("rows")]',
            "    source_rows --> queue_raw",
        ]
    )
    changed = mongoq.Pipeline("line", outputs="raw")
    changed.source(to="raw", name="rows", batch=5)(no_rows)
    assert [str(difference) for difference in pipeline.compare(changed)] == [
        "source 'rows': batch was 1000, and is 5",
        "source 'rows': every was 60, and is None",
    ]
    assert [str(difference) for difference in mongoq.Pipeline("line", outputs="raw").compare(changed)] == [
        "source 'rows' was added"
    ]
    assert "pipeline: it has no stages" not in str(pipeline.check())


def no_rows(position: Any) -> Iterator[Any]:
    yield from ()


def test_a_recipe_names_sources() -> None:
    recipe: dict[str, Any] = {
        "name": "line",
        "outputs": "raw",
        "sources": [
            {"handler": f"{__name__}:no_rows", "to": "raw"},
            {"handler": f"{__name__}:no_rows", "to": "raw", "name": "b", "batch": 5, "every": 60, "lease": 10},
        ],
        "stages": [],
    }
    pipeline = mongoq.Pipeline("line", outputs="raw")
    pipeline.source(to="raw")(no_rows)
    pipeline.source(to="raw", name="b", batch=5, every=60, lease=10)(no_rows)
    assert mongoq.Pipeline.from_recipe(recipe).compare(pipeline) == []
    recipe["sources"] = [
        {"handler": f"{__name__}:no_generator", "to": "raw", "every": "often"},
        {"to": "raw", "name": "x"},
        {"handler": "nowhere:rows", "to": "elsewhere", "speed": 5},
    ]
    with pytest.raises(mongoq.GraphInvalid) as invalid:
        mongoq.Pipeline.from_recipe(recipe)
    text = "\n".join(invalid.value.faults)
    for fault in (
        "sources[1] ('x'): 'handler' is missing",
        "sources[2]: unknown key 'speed'; it may have name, to, handler, batch, every, lease",
        "sources[2]: handler: 'nowhere:rows' cannot be imported",
        "source 'no_generator': handler: no_generator is a plain function",
        "source 'no_generator': every: 'often' is no duration; write it as 90s, 5m, 2h or 7d",
        "source 'sources[2]': to: no stage takes items from 'elsewhere'",
    ):
        assert fault in text
