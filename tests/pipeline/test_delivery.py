"""At most once: an item leaves its queue before its run."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import Site


def test_an_item_is_gone_while_it_runs_and_what_comes_of_it_is_pushed(site: Site) -> None:
    queue = site.queue("raw")
    ids = queue.push_many([1, 2, 3], headers={"from": "test"}, priority=2)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    seen = []

    @pipeline.stage("raw", to="out", delivery="at-most-once")
    def work(payload: Any, job: Any) -> Any:
        seen.append(queue.get(job.item.id))
        return payload * 10

    site.drain(pipeline)
    assert seen == [None] * 3
    found = site.queue("out").peek(10)
    assert sorted(item.payload for item in found) == [10, 20, 30]
    assert {(item.priority, item.headers["from"]) for item in found} == {(2, "test")}
    assert not {item.id for item in found} & set(ids)


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


def test_a_patch_has_nothing_to_change_there(site: Site) -> None:
    site.queue("raw").push({"n": 1})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once")
    def work(payload: Any) -> Any:
        return mongoq.Move("out", patch={"$set": {"n": 2}})

    site.drain(pipeline)
    [item] = site.queue("line.errors").peek(5)
    assert item.error is not None
    assert "give payload= instead" in item.error.message


def test_a_dropped_or_unchanged_item_comes_to_nothing_or_to_a_copy(site: Site) -> None:
    site.queue("raw").push_many([{"n": n} for n in range(6)])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once", concurrency=3)
    def work(payload: Any) -> Any:
        return mongoq.Move("out") if payload["n"] % 2 else mongoq.Drop()

    site.drain(pipeline)
    assert sorted(one["n"] for one in site.payloads("out")) == [1, 3, 5]
    assert site.broker.queues() == ["out"]


def test_what_was_not_started_goes_back_when_the_run_is_stopped(server_site: Site) -> None:
    site = server_site
    site.queue("raw").push_many(range(50))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    holder: list[Any] = []

    @pipeline.stage("raw", to="out", delivery="at-most-once", prefetch=40)
    def work(payload: Any) -> Any:
        holder[0].stop()
        return payload

    if site.engine == "threads":
        with pipeline.start(site.broker) as run:
            holder.append(run)
            run.wait()
        assert len(site.payloads("out")) + len(site.payloads("raw")) == 50
        assert len(site.payloads("out")) >= 1
        assert site.queue("raw").size(state="reserved") == 0


def test_a_run_may_take_longer_than_the_lease_of_an_item_that_is_gone(server_site: Site) -> None:
    site = server_site
    site.queue("raw").push("slow")
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery="at-most-once", lease=0.5)
    def work(payload: Any, job: Any) -> Any:
        time.sleep(1.2)
        return job.lost.is_set()

    site.drain(pipeline)
    assert site.payloads("out") == [False]
