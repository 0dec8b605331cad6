"""Leases while handlers run: kept, and lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq
from mongoq.model.item import id_key
from mongoq.protocol.settle.by_token import ExtendedItems, extend_leases
from tests.waiting import until
from tests.worker.conftest import Desk


def test_a_lease_is_extended_for_as_long_as_the_handler_runs(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.configure(history=3600)
    queue.push_many(range(6))
    runs: Counter[int] = Counter()

    async def handle(payload: int) -> None:
        runs[payload] += 1
        await asyncio.sleep(2.5)

    desk.consume("orders", handle, concurrency=3, lease=1.5, prefetch=3)
    running = desk.start()
    until(lambda: queue.counts().reserved == 6)
    while size := queue.size():
        assert queue.reserve() is None, f"{size} are left"
        time.sleep(0.05)
    running.stop()
    assert runs == dict.fromkeys(range(6), 1), "those that waited for a run were kept as well"
    assert [item.attempts for item in queue.history()] == [1] * 6


class Updates(CommandListener):
    """Notes how many updates each command of leases carries."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def started(self, event: Any) -> None:
        updates = event.command.get("updates", [])
        if updates and all(statement["u"].keys() == {"$max"} for statement in updates):
            self.sizes.append(sum(len(statement["q"]["_id"].get("$in", [0])) for statement in updates))

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


def test_the_leases_of_all_queues_are_extended_in_one_command(uri: str, database: str) -> None:
    listener = Updates()
    with (
        MongoClient[Any](uri, event_listeners=[listener]) as client,
        mongoq.Broker(client[database]["mongoq"]) as broker,
    ):
        worker = mongoq.Worker(broker)
        for name in ("a", "b", "c"):
            broker.queue(name).push_many(range(4))
            worker.consumer(name, concurrency=4, lease=4)(lambda _: time.sleep(3))
        worker.run(drain=True)
    assert listener.sizes
    assert max(listener.sizes) == 12


def stolen(raw: Any, id: Any) -> ObjectId:
    """Take an item away, as another worker does when its lease has run out."""
    token, until = ObjectId(), datetime.now(UTC) + timedelta(hours=1)
    raw.update_one({"_id": id}, {"$set": {"token": token, "by": "thief", "when": until}, "$inc": {"attempts": 1}})
    return token


def test_a_handler_whose_item_is_lost_is_notified_and_its_result_ignored(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.push_many(["x"])
    tokens = []
    payloads = []

    async def handle(payload: Any, job: Any) -> None:
        tokens.append(stolen(raw, id))
        for _ in range(10_000):
            if job.lost.is_set():
                payloads.append(payload)
                return
            await asyncio.sleep(0.01)

    desk.consume("orders", handle, lease=0.5)
    running = desk.start()
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        until(lambda: payloads)
        until(lambda: "ended after its item" in caplog.text)
        running.stop()
    assert "it was taken, or settled, by somebody else" in caplog.text
    document = raw.find_one({"_id": id})
    assert (document["token"], document["by"], document["q"]) == (tokens[0], "thief", "orders")


def test_what_waits_for_a_run_and_is_lost_is_not_run(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    first, second = queue.push_many(["first", "second"])
    payloads = []

    async def handle(payload: Any) -> None:
        payloads.append(payload)
        stolen(raw, second)
        await asyncio.sleep(4)  # many times what passes until its lease is due to be extended

    desk.consume("orders", handle, lease=0.5, prefetch=1)
    running = desk.start()
    until(lambda: raw.find_one({"_id": first}) is None)
    running.stop()
    assert payloads == ["first"]


def test_a_result_that_comes_after_the_item_was_settled_elsewhere_is_ignored(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push("x")

    async def handle(payload: Any, job: Any) -> None:
        raw.delete_one({"_id": job.item.id})

    desk.consume("orders", handle)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        desk.run()
    assert "was not settled" in caplog.text
    assert raw.count_documents({"q": {"$exists": True}}) == 0


def test_a_job_can_extend_its_lease_itself(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    (id,) = queue.push_many(["x"])
    ends = []

    async def handle(payload: Any, job: Any) -> None:
        extending = job.extend(lease=500)
        if extending is not None:
            await extending
        await asyncio.sleep(0.8)
        ends.append(raw.find_one({"_id": id}, {"when": 1})["when"])

    desk.consume("orders", handle, lease=0.5)
    desk.consume("others", handle, lease=0.5)
    desk.run()
    assert (ends[0].timestamp() - time.time()) > 400, "the worker has not taken it back"


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


class Finds(CommandListener):
    """Counts the reads."""

    number = 0

    def started(self, event: Any) -> None:
        self.number += event.command_name == "find"

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


def test_what_was_lost_of_many_leases_is_read_in_one_command(uri: str, database: str, raw: Any) -> None:
    listener = Finds()
    with (
        MongoClient[Any](uri, event_listeners=[listener]) as client,
        mongoq.Broker(client[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        queue.push_many(range(5))
        once = queue.reserve(lease=0.05)
        time.sleep(0.1)
        items = [once, *(item for _ in range(5) if (item := queue.reserve(lease=60)))]
        assert {item.id for item in items if item} == {item.id for item in items[1:]}, "the first was claimed again"
        stolen(raw, items[2].id)
        raw.delete_one({"_id": items[3].id})
        wanted = [ExtendedItems(item.token, [item.id], timedelta(seconds=300)) for item in items]
        before, now = listener.number, broker._context.clock.now()
        ends, lost_keys = broker._driver.run(extend_leases(broker._context, wanted))
        assert listener.number == before + 1
    assert lost_keys == {(id_key(items[n].id), items[n].token) for n in (0, 2, 3)}
    assert all(end >= now + timedelta(seconds=299) for end in ends)
    documents = raw.find({"by": {"$ne": "thief"}, "q": "orders"})
    assert {(document["_id"], document["when"]) for document in documents} == {
        (items[n].id, ends[n].replace(microsecond=ends[n].microsecond // 1000 * 1000)) for n in (1, 4, 5)
    }
