"""At most once: an item leaves its queue before its run."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import Site, each_server_engine, every_engine, with_asyncio
from tests.waiting import until


@every_engine
def test_an_item_is_gone_while_it_runs_and_what_comes_of_it_is_pushed(site: Site) -> None:
    queue = site.queue("raw")
    ids = queue.push_many([1, 2, 3], headers={"from": "test"}, priority=2)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    documents = []

    @pipeline.stage("raw", to="out", delivery="at-most-once")
    def work(payload: Any, job: Any) -> Any:
        documents.append(queue.get(job.item.id))
        return payload * 10

    site.drain(pipeline)
    assert documents == [None] * 3
    items = site.queue("out").peek(10)
    assert sorted(item.payload for item in items) == [10, 20, 30]
    assert {(item.priority, item.headers["from"]) for item in items} == {(2, "test")}
    assert not {item.id for item in items} & set(ids)


def test_a_failure_is_final_and_goes_to_the_error_queue(site: Site) -> None:
    site.queue("raw").push("bad")
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    runs = []

    @pipeline.stage("raw", to="out", delivery="at-most-once", max_retries=5)
    def work(payload: Any) -> Any:
        runs.append(payload)
        raise ValueError("broken")

    site.drain(pipeline)
    assert runs == ["bad"]
    [item] = site.queue("line.errors").peek(5)
    assert item.error is not None
    assert item.origin is not None
    assert (item.payload, item.error.message, item.origin.stage) == ("bad", "broken", "work")


def test_without_an_error_queue_a_failure_is_lost_and_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.queue("raw").push_many(["bad", "good"])
    pipeline = mongoq.Pipeline("line", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once")
    def work(payload: Any) -> Any:
        if payload == "bad":
            raise ValueError("broken")
        return payload

    with caplog.at_level(logging.ERROR, "mongoq"):
        site.drain(pipeline)
    assert site.payloads("out") == ["good"]
    assert "is lost: its only run has failed" in caplog.text


def test_a_dropped_or_unchanged_item_comes_to_nothing_or_to_a_copy(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(6)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once", concurrency=3)
    def work(payload: Any) -> Any:
        return mongoq.Move("out") if payload["n"] % 2 else mongoq.Drop()

    site.drain(pipeline)
    assert sorted(output["n"] for output in site.payloads("out")) == [1, 3, 5]
    assert site.broker.queues() == ["out"]


def test_what_was_not_started_goes_back_when_the_run_is_stopped(site: Site) -> None:
    site.queue("raw").push_many(range(50))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    holder: list[Any] = []

    @pipeline.stage("raw", to="out", delivery="at-most-once", prefetch=40)
    def work(payload: Any) -> Any:
        until(lambda: holder)
        holder[0].stop()
        return payload

    with pipeline.start(site.broker) as run:
        holder.append(run)
        run.wait()
    assert len(site.payloads("out")) + len(site.payloads("raw")) == 50
    assert len(site.payloads("out")) >= 1
    assert site.queue("raw").size(state="reserved") == 0


def test_a_run_may_take_longer_than_the_lease_of_an_item_that_is_gone(site: Site) -> None:
    site.queue("raw").push("slow")
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once", lease=0.3)
    def work(payload: Any, job: Any) -> Any:
        time.sleep(0.8)
        return job.lost.is_set()

    site.drain(pipeline)
    assert site.payloads("out") == [False]


@each_server_engine
def test_a_run_that_extends_the_lease_of_an_item_that_is_gone_goes_on(site: Site) -> None:
    """There is no lease; the run would fail for that, and it is the only one."""
    site.queue("raw").push("slow")
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    def work(payload: Any, job: Any) -> Any:
        job.extend(lease=60)
        return payload

    async def work_async(payload: Any, job: Any) -> Any:
        await job.extend(lease=60)
        return payload

    handler: Any = work_async if site.engine == "asyncio" else work
    pipeline.stage("raw", to="out", delivery="at-most-once")(handler)
    site.drain(pipeline)
    assert site.payloads("out") == ["slow"]


@with_asyncio
@pytest.mark.parametrize("delivery", ["at-most-once", "exactly-once"])
def test_a_cancellation_that_a_handler_leaves_behind_does_not_meet_the_next_run(site: Site, delivery: Any) -> None:
    site.queue("raw").push_many(range(5))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    runs = []

    @pipeline.stage("raw", to="out", delivery=delivery, prefetch=5)
    async def work(payload: Any) -> Any:
        runs.append(payload)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        if payload == 1 and task is not None:
            task.cancel()
        return payload

    site.drain(pipeline)
    assert runs == [0, 1, 2, 3, 4]
    assert sorted(site.payloads("out")) == runs


@with_asyncio
def test_a_handler_that_cancels_its_runner_as_it_takes_the_next_item_leaves_nobody_waiting(site: Site) -> None:
    """Nobody knows then whether the item has left its queue, so that it is not run."""
    site.queue("raw").push_many(range(5))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    runs = []

    @pipeline.stage("raw", to="out", delivery="at-most-once", prefetch=5)
    async def work(payload: Any) -> Any:
        runs.append(payload)
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if payload == 1 and task is not None:
            loop.call_soon(task.cancel)
        return payload

    site.drain(pipeline)
    assert runs[:2] == [0, 1]
    # The runner took 2 when it was cancelled: it is gone, or it was released before it had left its queue.
    assert sorted(runs) in ([0, 1, 3, 4], [0, 1, 2, 3, 4])
    assert sorted(site.payloads("out")) == sorted(runs)
