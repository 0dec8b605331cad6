"""A run on Spark that is stopped ends within its grace, whatever its handlers, its sources and the server do."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer

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


def test_tasks_under_way_and_those_that_wait_for_a_slot_are_asked_to_stop(
    start: Any, broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.pipeline.on_spark.run.TASK_SECONDS", 3600.0)
    pipeline = mongoq.Pipeline("endless", inputs="raw")

    @pipeline.stage("raw", to="raw")
    def turn(payload: Any) -> Any:
        time.sleep(0.01)
        return payload + 1

    broker.queue("raw").push_many([0] * 50)
    with start(pipeline, tasks=6, available_now=False) as run:  # of which two have a slot
        while run._scheduler._working < 6 or not any(item.payload for item in broker.queue("raw").peek(50)):
            assert not run.wait(0.1)
        run.stop()
        assert run.wait(PATIENCE)
    counts = broker.queue("raw").counts()
    assert (counts.reserved, counts.total) == (0, 50)
    assert run.progress().stages["turn"].moved == sum(item.payload for item in broker.queue("raw").peek(50)) > 0


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


@pytest.mark.prove
def test_a_source_that_another_process_runs_leaves_its_slot(start: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("endless", outputs="fed")

    @pipeline.source(to="fed", lease=60)
    def rows(position: Any) -> Any:
        yield mongoq.Record(1, position=1)

    lease = {"_id": "source:endless/rows", "token": "theirs", "by": "them", "until": datetime(2100, 1, 1, tzinfo=UTC)}
    broker._driver._backend.targets["collection"].insert_one(lease)
    with start(pipeline, available_now=False) as run:
        free, deadline = 0, time.monotonic() + PATIENCE
        while free < 10 and time.monotonic() < deadline:  # its rests grow, so that one is a second long in the end
            assert not run.wait(0.1)
            free = 0 if run._scheduler.is_at_work else free + 1
        assert free == 10
    assert broker.queue("fed").size() == 0


def test_a_source_that_is_called_again_has_not_ended(start: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("again", outputs="fed")

    @pipeline.source(to="fed", every=0.1)
    def rows(position: Any) -> Any:
        yield mongoq.Record(position or 0, position=(position or 0) + 1)

    with start(pipeline, available_now=False) as run:
        deadline = time.monotonic() + PATIENCE
        while run.progress().sources["rows"].pushed < 2 and time.monotonic() < deadline:
            assert not run.wait(0.05)
        source = run.progress().sources["rows"]
        assert source.pushed >= 2
        assert not source.ended


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


@pytest.mark.prove
def test_a_run_can_be_stopped_while_the_server_is_away(
    spark: Any, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.pipeline.on_spark.run.SERVER_SECONDS", 2.0)
    monkeypatch.setattr("mongoq.pipeline.on_spark.scheduler.SERVER_SECONDS", 2.0)
    pipeline = mongoq.Pipeline("cut off", outputs="out")

    @pipeline.stage("raw", to="out")
    def check(payload: Any) -> Any:
        time.sleep(0.02)
        return payload

    path = memory / "cut-off"
    with EmbeddedServer(path) as server:
        with mongoq.connect(server.uri, database="app") as broker:
            broker.queue("raw").push_many(range(1000))
            run = pipeline.run_on_spark(spark, server.uri, database="app", grace=0.5)
            while not broker.queue("out").size():
                assert not run.wait(0.1)
        server.stop()
        run.stop()
        assert run.wait(PATIENCE)
    assert run.progress().interrupted
    with EmbeddedServer(path) as server, MongoClient[Any](server.uri) as client:
        items = list(client["app"]["mongoq"].find({"_id": {"$type": "objectId"}}))
    assert sorted(item["payload"] for item in items) == list(range(1000))
