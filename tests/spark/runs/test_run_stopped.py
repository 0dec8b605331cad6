"""A run on Spark that is stopped ends within its grace, whatever its handlers, its sources and the server do."""

from __future__ import annotations

import time
from typing import Any

import pytest

import mongoq

PATIENCE = 120


def test_a_run_that_is_stopped_waits_for_its_handlers_and_leaves_nothing_reserved(
    start: Any, broker: mongoq.Broker
) -> None:
    pipeline = mongoq.Pipeline("slow", outputs="out")

    @pipeline.stage("raw", to="out")
    def check(payload: Any) -> Any:
        time.sleep(0.3)
        return payload

    broker.queue("raw").push_many(range(400))  # they would take a minute
    with start(pipeline) as run:
        while not broker.queue("out").size():
            assert not run.wait(0.1)
        run.stop()
        assert run.wait(PATIENCE)
    progress = run.progress()
    assert progress.interrupted
    counts = broker.queue("raw").counts()
    assert counts.reserved == 0
    assert progress.stages["check"].moved == broker.queue("out").size() == 400 - counts.total
    assert 0 < counts.total < 400


def endless(number: int) -> mongoq.Pipeline:
    """Sources that never yield anything, and a stage."""
    pipeline = mongoq.Pipeline("endless", inputs="raw", outputs=["out", "fed"])

    @pipeline.stage("raw", to="out")
    def check(payload: Any) -> Any:
        return payload

    for place in range(number):

        @pipeline.source(to="fed", name=f"source {place}")
        def rows(position: Any) -> Any:
            while True:
                time.sleep(0.1)
                if position:
                    yield mongoq.Record(1, position=1)

    return pipeline


@pytest.mark.prove
def test_sources_that_yield_nothing_leave_room_for_stages_and_hold_up_no_stop(
    start: Any, broker: mongoq.Broker
) -> None:
    broker.queue("raw").push_many(range(20))
    with start(endless(2), available_now=False, grace=1) as run:  # as many as there are slots
        deadline = time.monotonic() + PATIENCE
        while broker.queue("out").size() < 20 and time.monotonic() < deadline:
            assert not run.wait(0.1)
        run.stop()
        assert run.wait(PATIENCE)
    assert broker.queue("out").size() == 20
    assert run.progress().stages["check"].moved == 20


def test_a_handler_that_does_not_end_is_given_up_when_the_grace_is_over(start: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("hanging", outputs="out")

    @pipeline.stage("raw", to="out", concurrency=1, prefetch=0)
    def check(payload: Any) -> Any:
        time.sleep(PATIENCE if payload else 0)
        return payload

    broker.queue("raw").push_many([0, 1])
    with start(pipeline, available_now=False, tasks=1, grace=0.5) as run:
        while not (broker.queue("out").size() and broker.queue("raw").counts().reserved):
            assert not run.wait(0.1)
        run.stop()
        assert run.wait(PATIENCE / 2)
    counts = broker.queue("raw").counts()
    assert (counts.total, counts.reserved, counts.ready) == (1, 0, 1)
