"""Handlers that return and raise what nobody expects, and runs that end at bad moments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import QUICK, Site, each_server_engine
from tests.waiting import PATIENCE


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
