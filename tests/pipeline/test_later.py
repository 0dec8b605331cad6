"""Stages that put their items off."""

from __future__ import annotations

from typing import Any

import mongoq
from tests.pipeline.conftest import Site


def test_a_stage_puts_an_item_off_and_runs_it_again(site: Site) -> None:
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
    attempts: list[int] = []

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any, job: Any) -> Any:
        attempts.append(job.item.attempts)
        return mongoq.Later(0.02) if len(attempts) < 4 else {"done": payload}

    site.queue("raw").push(1)
    site.drain(pipeline)
    assert attempts == [1] * 4
    assert site.payloads("out") == [{"done": 1}]
    assert site.letters("graph.errors") == []
    (item,) = site.queue("out").peek()
    assert item.hops == 1, "an item that is put off makes no hop"


def test_without_an_error_queue_it_does_not_stop_the_stage(site: Site) -> None:
    pipeline = mongoq.Pipeline("graph", errors=None, outputs="out")
    runs: list[Any] = []

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any) -> Any:
        runs.append(payload)
        return mongoq.Later(0.02) if len(runs) < 3 else payload

    site.queue("raw").push(1)
    site.drain(pipeline)
    assert site.payloads("out") == [1]


def test_at_most_once_a_copy_waits(site: Site) -> None:
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
    items: list[Any] = []

    @pipeline.stage("raw", to="out", delivery="at-most-once")
    def work(payload: Any, job: Any) -> Any:
        items.append(job.item)
        return mongoq.Later(0.02) if len(items) == 1 else payload

    id = site.queue("raw").push({"n": 1}, headers={"a": 1}, priority=3)
    site.drain(pipeline)
    first, second = items
    assert first.id == id != second.id
    assert (second.payload, second.headers["a"], second.priority) == ({"n": 1}, 1, 3)
    assert (site.payloads("out"), site.letters("graph.errors")) == ([{"n": 1}], [])
