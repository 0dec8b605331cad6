"""Filters of stages: each item is met once, and taken or settled as declared."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq
from tests.pipeline.conftest import Site, every_engine
from tests.waiting import CLOCKS

SOME = {"kind": "a"}


def pushed(site: Site, number: int = 30, **options: Any) -> None:
    site.queue("raw", **options).push_many([{"n": n, "kind": "ab"[n % 2]} for n in range(number)])


@every_engine
def test_only_what_matches_reaches_the_handler_and_the_rest_is_dropped(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    numbers = []

    @pipeline.stage("raw", to="out", where=SOME, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        numbers.append(payload["n"])
        return payload

    site.drain(pipeline)
    assert sorted(numbers) == list(range(0, 30, 2))
    assert sorted(output["n"] for output in site.payloads("out")) == list(range(0, 30, 2))
    assert site.broker.queues() == ["out"]


def test_the_rest_moves_on_as_declared(site: Site) -> None:
    pushed(site)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])
    otherwise = mongoq.Move("rest", priority=5, headers={"why": "kind"})

    @pipeline.stage("raw", to=["out", "rest"], where=SOME, otherwise=otherwise)
    def work(payload: Any) -> Any:
        return mongoq.Move("out")

    site.drain(pipeline)
    rest = site.queue("rest").peek(100)
    assert sorted(item.payload["n"] for item in rest) == list(range(1, 30, 2))
    assert {(item.priority, item.headers["why"], item.attempts, item.hops) for item in rest} == {(5, "kind", 0, 1)}
    assert len(site.payloads("out")) == 15


def test_history_and_remembered_ids_of_the_rest_are_kept(site: Site) -> None:
    kept_queue, removed_queue = site.queue("kept", history=3600), site.queue("gone")
    ids = {queue.name: queue.push({"kind": "b"}, id=ObjectId()) for queue in (kept_queue, removed_queue)}
    kept_queue.push({"kind": "b"})
    removed_queue.push({"kind": "b"})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage(["kept", "gone"], to="out", where=SOME, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        return payload

    site.drain(pipeline)
    assert [item.payload for item in kept_queue.history()] == [{"kind": "b"}] * 2
    assert list(removed_queue.history()) == []
    for queue in (kept_queue, removed_queue):  # the same id again is the same item
        queue.push({"kind": "b"}, id=ids[queue.name])
        assert queue.size(state=None) == 0


def test_what_lapsed_with_its_worker_is_screened_as_well(site: Site) -> None:
    queue = site.queue("raw")
    queue.push_many([{"n": n, "kind": "ab"[n % 2]} for n in range(6)])
    assert len(queue.reserve_many(6, lease=0.05)) == 6
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", where=SOME, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        return payload

    site.drain(pipeline)
    assert sorted(output["n"] for output in site.payloads("out")) == [0, 2, 4]
    assert site.broker.queues() == ["out"]


def test_a_filter_that_only_the_server_refuses_is_reported_at_the_start(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    where = {"kind": {"$regex": "(("}}

    @pipeline.stage("raw", to="out", where=where, otherwise=mongoq.Drop())
    def work(payload: Any) -> Any:
        return payload

    with pytest.raises(mongoq.FilterInvalid, match="server refuses"):
        site.drain(pipeline)


def test_a_trail_tells_of_the_rest_too_whatever_stands_in_its_field(site: Site, raw: Any) -> None:
    began = datetime.now(UTC) - CLOCKS
    first, second = site.queue("raw").push_many([{"kind": "b"}, {"kind": "b"}])
    raw.update_one({"_id": second}, {"$set": {"trail": "none of ours"}})
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"], trail=True)

    @pipeline.stage("raw", to=["out", "rest"], where=SOME, otherwise=mongoq.Move("rest"))
    def work(payload: Any) -> Any:
        return mongoq.Move("out")

    site.drain(pipeline)
    assert len(site.payloads("rest")) == 2
    [hop] = site.broker.trail(first) or ()
    assert (hop.queue, hop.stage, hop.ended, hop.to) == ("raw", "work", "moved", "rest")
    assert began < hop.taken <= hop.settled < datetime.now(UTC) + CLOCKS
    assert site.broker.trail(second) == ()


class Reads(CommandListener):
    """Counts the commands that read or write items."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        self.names[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


def test_many_that_do_not_match_take_few_commands_and_none_is_read_twice(uri: str, database: str) -> None:
    reads = Reads()
    with MongoClient[Any](uri, event_listeners=[reads]) as client, mongoq.Broker(client[database]["mongoq"]) as broker:
        queue = broker.queue("raw")
        for _ in range(5):
            queue.push_many([{"kind": "b"}] * 1_000)
        queue.push({"kind": "a"})
        pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

        @pipeline.stage("raw", to="out", where=SOME, otherwise=mongoq.Drop())
        def work(payload: Any) -> Any:
            return payload

        reads.names.clear()
        pipeline.drain(broker)
        assert [item.payload for item in broker.queue("out").peek(5)] == [{"kind": "a"}]
        assert queue.size(state=None) == 0
        assert reads.names["delete"] <= 14  # a small one and a large one, five or six times
