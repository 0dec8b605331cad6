"""Leases while handlers run: kept, and lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import PATIENCE, until
from tests.worker.conftest import KINDS, Desk

LEASE = 6.0
"""Seconds; a worker extends it after a third of them, and a busy machine has the rest of the time for that."""


def test_a_lease_is_extended_for_as_long_as_the_handler_runs(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.configure(history=3600)
    queue.push_many(range(4))
    go = threading.Event()

    async def handle(payload: int) -> None:
        await asyncio.to_thread(go.wait, PATIENCE)

    desk.consume("orders", handle, concurrency=2, lease=LEASE, prefetch=2)
    running = desk.start()
    until(lambda: queue.counts().reserved == 4)
    ends = raw.distinct("when", {"q": "orders", "reserved": True})
    # Those that wait for a run are kept as well.
    until(lambda: raw.count_documents({"q": "orders", "when": {"$gt": max(ends)}}) == 4)
    go.set()
    until(lambda: queue.size() == 0)
    running.stop()
    assert [item.attempts for item in queue.history()] == [1] * 4


def stolen(raw: Any, id: Any) -> ObjectId:
    """Take an item away, as another worker does when its lease has run out."""
    token, until = ObjectId(), datetime.now(UTC) + timedelta(hours=1)
    raw.update_one({"_id": id}, {"$set": {"token": token, "by": "thief", "when": until}, "$inc": {"attempts": 1}})
    return token


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_a_handler_whose_item_is_lost_is_notified_and_its_result_ignored(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.push_many(["x"])
    tokens = []
    payloads = []

    async def handle(payload: Any, job: Any) -> None:
        tokens.append(stolen(raw, id))
        while not job.lost.is_set():
            await asyncio.sleep(0.01)
        payloads.append(payload)

    desk.consume("orders", handle, lease=0.5)
    running = desk.start()
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        until(lambda: payloads)
        until(lambda: "ended after its item" in caplog.text)
        running.stop()
    assert "it was taken, or settled, by somebody else" in caplog.text
    document = raw.find_one({"_id": id})
    assert (document["token"], document["by"], document["q"]) == (tokens[0], "thief", "orders")


def test_what_waits_for_a_run_and_is_lost_is_not_run(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = queue.push_many(["first", "second"])
    payloads = []

    async def handle(payload: Any) -> None:
        payloads.append(payload)
        stolen(raw, second)
        await asyncio.to_thread(until, lambda: f"item {second} of queue 'orders' is lost" in caplog.text)

    desk.consume("orders", handle, lease=LEASE, prefetch=1)
    running = desk.start()
    until(lambda: raw.find_one({"_id": first}) is None)
    running.stop()
    assert payloads == ["first"]


def test_a_job_can_extend_its_lease_itself(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    own, other = queue.push_many(["own", "other"])
    extended = threading.Event()
    ends = []

    def end_of(id: Any) -> datetime:
        return raw.find_one({"_id": id}, {"when": 1})["when"]  # type: ignore[no-any-return]

    async def handle(payload: Any, job: Any) -> None:
        if payload == "own":
            extending = job.extend(lease=500)
            if extending is not None:
                await extending
            await asyncio.to_thread(extended.wait, PATIENCE)
            ends.append(end_of(own))
        else:
            before = end_of(other)
            await asyncio.to_thread(until, lambda: end_of(other) > before)  # the worker has extended what it holds
            extended.set()

    desk.consume("orders", handle, lease=LEASE, concurrency=2)
    desk.run()
    assert ends[0] > datetime.now(UTC) + timedelta(seconds=400), "the worker has not taken it back"


def test_the_delivery_hash_is_the_same_in_every_run_and_of_no_other_item(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([1, 2])
    hashes: list[tuple[int, str]] = []

    async def handle(payload: Any, job: Any) -> None:
        hashes.append((payload, job.delivery_hash))
        if job.item.attempts < 3:
            raise ValueError

    desk.consume("orders", handle, retry=mongoq.Fixed(0))
    desk.run()
    assert len(hashes) == 6
    assert len(set(hashes)) == 2
    assert all(len(digest) == 64 for _, digest in hashes)


def test_each_visit_of_a_queue_is_another_delivery(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([1, 2])
    hashes: list[str] = []

    async def handle(payload: Any, job: Any) -> Any:
        hashes.append(job.delivery_hash)
        if job.item.attempts < 2:
            raise ValueError
        if len(hashes) < 18:
            return mongoq.Move("orders" if job.item.queue == "back" else "back")
        return None

    desk.consume("orders", handle, retry=mongoq.Fixed(0))
    desk.consume("back", handle, retry=mongoq.Fixed(0))
    desk.run()
    assert len(hashes) > 18
    assert set(Counter(hashes).values()) == {2}, "two runs of each visit"


def test_the_first_claim_of_a_process_goes_by_the_stored_lease(uri: str, database: str) -> None:
    with mongoq.connect(uri, database=database) as broker:
        broker.queue("orders", lease=600).push(1)
    lengths = []
    with mongoq.connect(uri, database=database) as broker:
        worker = mongoq.Worker(broker)

        @worker.consumer("orders")
        def handle(payload: int, job: mongoq.Job) -> None:
            assert job.item.lease_until is not None
            lengths.append((job.item.lease_until - datetime.now(UTC)).total_seconds())

        worker.run(drain=True)
    assert lengths[0] > 500
