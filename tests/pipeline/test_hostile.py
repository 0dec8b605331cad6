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
from mongoq.model.outcomes import Outcome
from mongoq.pipeline.run.outcome_resolver import StageOutcomeResolver
from mongoq.worker.threads import engine
from mongoq.worker.threads.consumer_loop import Fetcher
from tests.pipeline.conftest import QUICK, Site
from tests.waiting import PATIENCE, until


class Numbered(BaseModel):
    n: int


class OwnDrop(mongoq.Drop):
    pass


class OwnMove(mongoq.Move):
    pass


class OwnDead(mongoq.Dead):
    pass


class Unknown(Outcome):
    pass


DELIVERIES = ("exactly-once", "at-most-once")


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("outcome", [OwnDrop(), OwnMove("out"), OwnDead("bad"), Unknown()])
def test_outcomes_of_the_users_own_classes_are_what_they_derive_from(site: Site, outcome: Any, delivery: Any) -> None:
    site.queue("raw").push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=0, delivery=delivery)
    def work(payload: Any) -> Any:
        return outcome if payload == 2 else payload

    site.drain(pipeline)
    letters = [payload for payload, _ in site.letters("line.errors")]
    assert sorted(site.payloads("out")) == ([1, 2, 3] if isinstance(outcome, OwnMove) else [1, 3])
    assert letters == ([2] if isinstance(outcome, OwnDead | Unknown) else [])


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("outcome", [Unknown(), mongoq.Retry(), None])
def test_an_outcome_that_no_code_knows_fails_its_item_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, outcome: Any, delivery: Any
) -> None:
    """It is as if the handler had failed: the item comes again, or has had its only run."""
    site.queue("raw").push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    runs = []
    resolve = StageOutcomeResolver.outcomes

    @pipeline.stage("raw", to="out", max_retries=1, retry=QUICK, delivery=delivery)
    def work(payload: Any) -> Any:
        runs.append(payload)
        return payload

    def outcomes(self: StageOutcomeResolver, consumer: Any, items: Any, returned: Any) -> Any:
        return [outcome] if returned == 2 else resolve(self, consumer, items, returned)

    monkeypatch.setattr(StageOutcomeResolver, "outcomes", outcomes)
    site.drain(pipeline)
    assert sorted(site.payloads("out")) == [1, 3]
    [letter] = site.queue("line.errors").peek(5)
    assert letter.error is not None
    assert (letter.payload, letter.error.type) == (2, "mongoq.errors.OutcomeInvalid")
    assert letter.error.message == f"no item can be settled by a {type(outcome).__name__}"
    assert runs.count(2) == (1 if delivery == "at-most-once" else 2)


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


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_an_item_goes_on_as_it_came_though_its_handler_has_changed_the_payload(
    site: Site, delivery: Any, fails: bool
) -> None:
    site.queue("raw").push({"n": 1, "list": [1]})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery=delivery, max_retries=0)
    def work(payload: Any) -> Any:
        payload["list"].append(2)
        if fails:
            raise ValueError
        return mongoq.Move("out")

    site.drain(pipeline)
    assert site.payloads("line.errors" if fails else "out") == [{"n": 1, "list": [1]}]


def test_an_only_run_that_fails_counts_as_dead(broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once", max_retries=5)
    def work(payload: Any) -> Any:
        if payload == 2:
            raise ValueError
        return payload

    counts = pipeline.drain(broker).stages["work"]
    assert (counts.moved, counts.dead, counts.retried) == (2, 1, 0)


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
    site.queue("two").push("later", delay=0.7)
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


def test_a_drain_sees_what_a_filter_sends_back_to_a_queue_that_was_found_empty(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", inputs=["a", "b"], outputs="out")
    pipeline.stage("a", to="out", name="a")(lambda payload: payload)
    again = mongoq.Move("a", delay=0.5)
    pipeline.stage("b", to=["a", "out"], name="b", where={"kind": "b"}, otherwise=again)(lambda _: mongoq.Move("out"))
    counted, look, pushed = Fetcher._count_filtered, engine.is_drained, []

    def late(self: Fetcher, number: int) -> None:
        time.sleep(0.3)
        counted(self, number)

    def looked(context: Any, *args: Any, **options: Any) -> Any:
        if context.name == "b" and not pushed:
            pushed.append(broker.queue("b").push({"kind": "a"}))
            until(lambda: raw.count_documents({"q": "a"}) == 1)
        return look(context, *args, **options)

    monkeypatch.setattr(Fetcher, "_count_filtered", late)
    monkeypatch.setattr(engine, "is_drained", looked)
    pipeline.drain(broker)
    assert [item.id for item in broker.queue("out").peek(5)] == pushed


@pytest.mark.prove
def test_a_hundred_thousand_that_do_not_fit_keep_nobody_from_stopping(broker: mongoq.Broker) -> None:
    queue = broker.queue("raw")
    for _ in range(10):
        queue.push_many([{"kind": "b"}] * 10_000)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])

    @pipeline.stage("raw", to=["out", "rest"], where={"kind": "a"}, otherwise=mongoq.Move("rest"))
    def work(_: Any) -> Any:
        return mongoq.Move("out")

    with pipeline.start(broker) as run:
        until(lambda: run.progress().stages["work"].screened > 0)
        run.stop()
        assert run.wait(PATIENCE)
        screened = run.progress().stages["work"].screened
    assert 0 < screened < 100_000
    assert (queue.size(), broker.queue("rest").size()) == (100_000 - screened, screened)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, StopIteration])
def test_whatever_a_handler_raises_is_its_items_failure(site: Site, error: type[BaseException]) -> None:
    site.queue("raw").push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=1, retry=QUICK)
    def work(payload: Any) -> Any:
        if payload == 2:
            raise error
        return payload

    site.drain(pipeline)
    assert (sorted(site.payloads("out")), site.payloads("line.errors")) == ([1, 3], [2])
