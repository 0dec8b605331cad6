"""Handlers that return and raise what nobody expects, and runs that end at bad moments."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import MongoClient

import mongoq
from tests.pipeline.conftest import QUICK, Site, each_server_engine
from tests.waiting import PATIENCE, until


class Numbered(BaseModel):
    n: int


class OwnDrop(mongoq.Drop):
    pass


class OwnMove(mongoq.Move):
    pass


class OwnDead(mongoq.Dead):
    pass


class Unknown(mongoq.Outcome):
    pass


DELIVERIES = ("exactly-once", "at-most-once")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_outcomes_of_the_users_own_classes_are_what_they_derive_from(site: Site, delivery: Any) -> None:
    """One that no code knows is as if the handler had failed: the item comes again, or has had its only run."""
    outcomes = {2: OwnDrop(), 3: OwnMove("out"), 4: OwnDead("bad"), 5: Unknown()}
    site.queue("raw").push_many(range(8))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    runs = []

    @pipeline.stage("raw", to="out", max_retries=1, retry=QUICK, delivery=delivery)
    def work(payload: Any) -> Any:
        runs.append(payload)
        return outcomes.get(payload, payload)

    site.drain(pipeline)
    assert sorted(site.payloads("out")) == [0, 1, 3, 6, 7]
    assert sorted(site.payloads("line.errors")) == [4, 5]
    assert runs.count(5) == (1 if delivery == "at-most-once" else 2)


def test_a_payload_is_what_was_returned_whatever_becomes_of_the_object(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(60)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    row: dict[str, Any] = {}

    @pipeline.stage("raw", to="out")
    def work(payload: Any) -> Any:
        row.update(payload)
        return row if payload["n"] % 2 else mongoq.Move("out", payload=row)

    site.drain(pipeline)
    assert sorted(output["n"] for output in site.payloads("out")) == list(range(60))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_an_item_goes_on_as_it_came_though_its_handler_has_changed_the_payload(site: Site, delivery: Any) -> None:
    payloads = [{"fails": fails, "list": [1]} for fails in (False, True)]
    site.queue("raw").push_many(payloads)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery=delivery, max_retries=0)
    def work(payload: Any) -> Any:
        payload["list"].append(2)
        if payload["fails"]:
            raise ValueError
        return mongoq.Move("out")

    site.drain(pipeline)
    assert (site.payloads("out"), site.payloads("line.errors")) == (payloads[:1], payloads[1:])


def test_what_does_not_fit_the_model_and_has_no_error_queue_is_lost_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.queue("raw").push_many([{"n": "x"}, {"n": 1}])
    pipeline = mongoq.Pipeline("line", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once", model=Numbered, lease=1)
    def work(payload: Numbered) -> Any:
        return {"n": payload.n}

    with caplog.at_level(logging.ERROR, "mongoq"):
        site.drain(pipeline)
    assert site.payloads("out") == [{"n": 1}]
    assert caplog.text.count("is lost: its only run has failed") == 1


def test_a_stage_that_stops_takes_nothing_from_its_other_queues(site: Site) -> None:
    site.queue("one").push("bad")
    site.queue("two").push("later", delay=3_600)
    pipeline = mongoq.Pipeline("line")
    payloads = []

    @pipeline.sink(["one", "two"], max_retries=0)
    def work(payload: Any) -> Any:
        payloads.append(payload)
        raise ValueError

    with pytest.raises(mongoq.StageStopped) as stopped:
        site.drain(pipeline)
    assert (payloads, stopped.value.queue, site.queue("two").size(state=None)) == (["bad"], "one", 1)


@pytest.mark.prove
@pytest.mark.parametrize("engine", ["threads", "asyncio"])
def test_at_most_once_bears_with_a_server_that_goes_away(
    uri: str, database: str, broker: mongoq.Broker, client: MongoClient[Any], engine: str
) -> None:
    name = f"once-{database}"
    own = f"{uri}&appName={name}&serverSelectionTimeoutMS=500"
    broker.queue("raw").push_many(range(60))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    runs: list[int] = []

    @pipeline.stage("raw", to="out", delivery="at-most-once", lease=2, prefetch=20)
    def work(payload: int) -> Any:
        runs.append(payload)
        time.sleep(0.05)
        return payload

    def trouble() -> None:
        until(lambda: len(runs) > 3)
        how = {
            "failCommands": ["find", "update", "delete", "insert", "hello"],
            "appName": name,
            "closeConnection": True,
        }
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=how)
        time.sleep(2.5)
        client.admin.command("configureFailPoint", "failCommand", mode="off")

    async def drained() -> None:
        async with mongoq.connect_async(own, database=database) as away:
            await pipeline.drain_async(away)

    troubling = threading.Thread(target=trouble)
    troubling.start()
    try:
        if engine == "asyncio":
            asyncio.run(drained())
        else:
            with mongoq.connect(own, database=database) as away:
                pipeline.drain(away)
    finally:
        troubling.join()
    assert len(runs) == len(set(runs))
    assert sorted(item.payload for item in broker.queue("out").peek(100)) == sorted(runs)


def waiting_line() -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", prefetch=5, concurrency=2)
    async def work(payload: Any) -> Any:
        await asyncio.sleep(20)
        return payload

    return pipeline


def test_a_block_that_is_cancelled_as_it_ends_leaves_no_task_and_no_item(
    uri: str, database: str, broker: mongoq.Broker
) -> None:
    broker.queue("raw").push_many(range(10))

    async def work() -> list[str]:
        async with mongoq.connect_async(uri, database=database) as own:

            async def block() -> None:
                async with waiting_line().start_async(own) as run:
                    await run.wait()

            task = asyncio.create_task(block())
            while not await own.queue("raw").size(state="reserved"):
                await asyncio.sleep(0.05)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.1)
            with pytest.raises(asyncio.CancelledError):
                await task
            return [running.get_name() for running in asyncio.all_tasks() if running.get_name().startswith("mongoq-")]

    assert asyncio.run(work()) == []
    assert broker.queue("raw").counts() == mongoq.Counts(ready=10)


@pytest.mark.prove
def test_a_run_ends_soon_when_its_broker_is_closed(uri: str, database: str, broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many(range(10))

    async def work() -> None:
        own = await mongoq.connect_async(uri, database=database)
        run = await waiting_line().start_async(own, grace=600)
        while not await own.queue("raw").size(state="reserved"):
            await asyncio.sleep(0.05)
        await own.close()
        with pytest.raises(mongoq.BrokerClosed):
            await run.wait(PATIENCE)

    asyncio.run(work())


@each_server_engine
def test_whatever_a_handler_raises_is_its_items_failure(site: Site) -> None:
    errors = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, StopIteration]
    site.queue("raw").push_many(range(8))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=1, retry=QUICK)
    def work(payload: Any) -> Any:
        if payload < len(errors):
            raise errors[payload]
        return payload

    site.drain(pipeline)
    assert (sorted(site.payloads("out")), sorted(site.payloads("line.errors"))) == ([5, 6, 7], [0, 1, 2, 3, 4])
