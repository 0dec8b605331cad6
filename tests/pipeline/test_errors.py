"""What becomes of items that fail for good: the error queue, or a stage that stops."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import QUICK, Site, every_engine


def test_an_item_that_has_used_up_its_retries_goes_to_the_error_queue(site: Site) -> None:
    id = site.queue("raw").push({"n": 1}, headers={"from": "test"})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    hashes = []

    @pipeline.stage("raw", to="out", retry=QUICK, max_retries=2)
    def fail(payload: Any, job: Any) -> Any:
        hashes.append(job.delivery_hash)
        raise ValueError("broken")

    site.drain(pipeline)
    [item] = site.queue("line.errors").peek(5)
    assert (item.id, item.payload, item.headers) == (id, {"n": 1}, {"from": "test"})
    assert item.error is not None
    assert (item.error.type, item.error.message) == ("ValueError", "broken")
    assert "in fail" in item.error.traceback
    assert item.origin is not None
    assert (item.origin.queue, item.origin.stage, item.origin.attempts) == ("raw", "fail", 3)
    assert item.origin.delivery == hashes[0]
    assert len(hashes) == 3


def test_a_stage_may_have_an_error_queue_of_its_own(site: Site) -> None:
    site.queue("raw").push("a")
    site.queue("other").push("b")
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    def fail(payload: Any) -> Any:
        raise ValueError(payload)

    pipeline.sink("raw", name="one", errors="one.errors", max_retries=0)(fail)
    pipeline.sink("other", name="two", max_retries=0)(fail)
    site.drain(pipeline)
    assert (site.payloads("one.errors"), site.payloads("line.errors")) == (["a"], ["b"])


def test_the_settings_of_the_queue_hold_where_the_stage_says_nothing(site: Site) -> None:
    site.queue("raw", max_retries=1).push("a")
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    runs = []

    @pipeline.sink("raw", retry=QUICK)
    def fail(payload: Any) -> Any:
        runs.append(payload)
        raise ValueError(payload)

    site.drain(pipeline)
    assert (runs, site.payloads("line.errors"), site.payloads("raw.dead")) == (["a", "a"], ["a"], [])


def test_letters_go_back_where_they_came_from_after_a_fix(site: Site) -> None:
    site.queue("raw").push_many([1, 2, 3])
    broken = True
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any) -> Any:
        if broken:
            raise ValueError("not yet")
        return payload

    site.drain(pipeline)
    assert sorted(site.payloads("line.errors")) == [1, 2, 3]
    broken = False
    letters = site.broker.dead_queue("line.errors")
    assert letters.replay(stage="other").found == 0
    assert letters.replay(stage="work").pushed == 3
    site.drain(pipeline)
    assert sorted(site.payloads("out")) == [1, 2, 3]


@every_engine
def test_a_stage_without_an_error_queue_stops_and_loses_nothing(site: Site) -> None:
    id = site.queue("raw").push("bad")
    pipeline = mongoq.Pipeline("line", outputs="out")
    runs = []

    @pipeline.stage("raw", to="out", retry=QUICK, max_retries=1)
    def work(payload: Any, job: Any) -> Any:
        runs.append(job.item.attempts)
        if len(runs) < 4:
            raise ValueError("broken")
        return "mended"

    with pytest.raises(mongoq.StageStopped) as stopped:
        site.drain(pipeline)
    assert (stopped.value.stage, stopped.value.queue, stopped.value.item_id) == ("work", "raw", id)
    assert isinstance(stopped.value.__cause__, ValueError)
    assert runs == [1, 2]
    item = site.queue("raw").get(id)
    assert item is not None
    assert (item.payload, item.attempts, item.token, item.error and item.error.message) == ("bad", 1, None, "broken")
    with pytest.raises(mongoq.StageStopped):
        site.drain(pipeline)
    site.drain(pipeline)
    assert (runs, site.payloads("out")) == ([1, 2, 2, 2], ["mended"])


def test_the_other_stages_go_on_when_one_stops(site: Site) -> None:
    site.queue("bad").push_many(range(5))
    site.queue("good").push_many(range(50))
    pipeline = mongoq.Pipeline("line", outputs="out")

    @pipeline.stage("bad", to="out", max_retries=0)
    def fail(payload: Any) -> Any:
        raise ValueError("broken")

    @pipeline.stage("good", to="out")
    def work(payload: Any) -> Any:
        return payload

    with pytest.raises(mongoq.StageStopped):
        site.drain(pipeline)
    assert sorted(site.payloads("out")) == list(range(50))
    assert sorted(site.payloads("bad")) == list(range(5))
    assert site.queue("bad").size(state="reserved") == 0


def test_an_item_that_kills_its_processes_stops_a_stage_without_an_error_queue(site: Site) -> None:
    queue = site.queue("raw")
    id = queue.push("poison")
    for _ in range(2):
        assert queue.reserve()
        site.raw.update_one({"_id": id}, {"$set": {"when": datetime(2020, 1, 1, tzinfo=UTC)}})  # its lease has ended
    pipeline = mongoq.Pipeline("line")
    runs = []

    @pipeline.sink("raw", max_retries=1)
    def work(payload: Any) -> Any:
        runs.append(payload)

    for _ in range(2):
        with pytest.raises(mongoq.StageStopped):
            site.drain(pipeline)
    assert runs == []
    item = queue.get(id)
    assert item is not None
    assert item.error is not None
    assert (item.attempts, item.error.message) == (
        2,
        "it has had all its runs, and the last one ended with its process",
    )
