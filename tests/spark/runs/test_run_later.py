"""Stages on Spark that put items off, and items that no task started in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq

PAST = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.mark.prove
def test_a_stage_in_a_task_puts_an_item_off(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any, job: Any) -> Any:
        waited = job.item.read_at >= payload["until"]
        return {"attempts": job.item.attempts} if waited else mongoq.Later(when=payload["until"])

    broker.queue("raw").push({"until": datetime.now(UTC) + timedelta(seconds=2)})
    progress = drained(pipeline)
    assert [item.payload for item in broker.queue("out").peek(9)] == [{"attempts": 1}]
    assert broker.queue("line.errors").size() == 0
    stage = progress.stages["work"]
    assert (stage.moved, stage.retried, stage.dead) == (1, 0, 0)


def test_a_task_does_not_run_expired_items(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out")
    def work(payload: Any) -> Any:
        return payload

    raw = broker.queue("raw")
    raw.configure(on_expired="dead")
    raw.push_many(range(6), expires=[PAST, None, 3600, PAST, 3600, None])
    drained(pipeline)
    assert sorted(item.payload for item in broker.queue("out").peek(9)) == [1, 2, 4, 5]
    letters = broker.queue("line.errors").peek(9)
    assert sorted(item.payload for item in letters) == [0, 3]
    assert {item.origin and item.origin.reason for item in letters} == {"expired"}
