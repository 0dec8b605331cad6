"""What a worker tells of itself: runs that take too long, its record, how much it holds."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from mongoq.protocol.coordination import heartbeats
from tests.waiting import until
from tests.worker.conftest import Desk


async def a_place_to_hang(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_the_stack_of_a_run_that_takes_too_long_is_logged_once(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(["slow", "quick"])

    async def handle(payload: str) -> None:
        await a_place_to_hang(0.8 if payload == "slow" else 0)

    desk.consume("orders", handle, max_time=0.2)
    with caplog.at_level(logging.ERROR, "mongoq.worker"):
        desk.run()
    (record,) = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert "has run for 0." in record.getMessage()
    if desk.kind == "tasks":
        assert "in a_place_to_hang" in record.getMessage()
        assert "await a_place_to_hang(0.8 if" in record.getMessage()
    else:
        assert "lambda payload: asyncio.run(handler(payload))" in record.getMessage()


def test_a_handler_that_blocks_the_event_loop_is_found_too(
    uri: str, database: str, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(1)

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)

            @worker.consumer("orders", max_time=0.2)
            async def handle(payload: Any) -> None:
                time.sleep(0.8)

            await worker.run(drain=True)

    with caplog.at_level(logging.ERROR, "mongoq.worker"):
        asyncio.run(work())
    assert "time.sleep(0.8)" in caplog.text


def test_a_worker_says_what_it_consumes_and_holds_until_it_ends(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(5))
    go = threading.Event()

    async def handle(payload: Any) -> None:
        while not go.is_set():
            await asyncio.sleep(0.01)

    desk.consume("orders", handle, concurrency=2, prefetch=1)
    desk.consume("others", handle)
    running = desk.start(heartbeat=0.1)
    until(lambda: desk.broker.workers() and desk.broker.workers()[0].queues["orders"] == 3)
    (record,) = desk.broker.workers()
    assert record.alive
    assert record.queues == {"orders": 3, "others": 0}
    assert record.started <= record.seen <= datetime.now(UTC) + timedelta(seconds=5)
    host, pid, _ = record.name.rsplit(":", 2)
    assert (record.host, str(record.pid)) == (host, pid)
    go.set()
    running.stop()
    assert desk.broker.workers() == []


def test_a_killed_worker_is_distinguished_from_live_ones(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    driver, context = desk.broker._driver, desk.broker._context
    now = context.clock.now

    def record(name: str, age: timedelta) -> None:
        queues = {"orders": 7}
        beat = heartbeats.beat(context, name, started=EARLY, every=timedelta(seconds=5), queues=queues)
        driver.run(beat)
        raw.update_one({"_id": f"worker:{name}"}, {"$set": {"seen": now() - age}})

    desk.broker.ping()
    queue.size()
    record("a:1:x/1", timedelta(0))
    record("b:2:y/1", timedelta(seconds=30))
    record("c:3:z/1", timedelta(minutes=11))
    assert [(worker.host, worker.alive) for worker in desk.broker.workers()] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]

    async def handle(payload: Any) -> None:
        pass

    desk.consume("orders", handle)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        desk.run()
    assert [worker.host for worker in desk.broker.workers()] == ["a", "b"], "the one that is gone for long was removed"
    assert "worker c:3:z/1 is gone" in caplog.text
    assert "'orders': 7" in caplog.text


EARLY = datetime(2026, 1, 1, tzinfo=UTC)


def test_one_of_many_does_the_housekeeping(broker: mongoq.Broker, uri: str, database: str) -> None:
    broker.ensure_indexes()
    broker.queue("orders").push(1)
    every = timedelta(seconds=60)
    assert broker._driver.run(heartbeats.swept(broker._context, every=every)) == []
    with mongoq.connect(uri, database=database) as second:
        second.queue("orders").pop()
        assert second._driver.run(heartbeats.swept(second._context, every=every)) is None


@pytest.mark.parametrize("prefetch", [0, 3])
def test_no_more_is_held_than_runs_and_waits(desk: Desk, queue: mongoq.Queue[Any], raw: Any, prefetch: int) -> None:
    queue.push_many(range(40))
    counts: list[int] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0.01)
        counts.append(raw.count_documents({"q": "orders", "reserved": True}))

    desk.consume("orders", handle, concurrency=2, prefetch=prefetch)
    desk.run()
    assert len(counts) == 40
    assert max(counts) <= 2 * (2 + prefetch), "what has just ended may not be settled yet"


def test_one_runner_keeps_the_order(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(50, 100))
    queue.push_many(range(50), priority=-1)
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        payloads.append(payload)

    desk.consume("orders", handle)
    desk.run()
    assert payloads == list(range(100))


def test_a_paused_queue_is_left_alone(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.pause()
    queue.push(1)
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        payloads.append(payload)

    desk.consume("orders", handle)
    running = desk.start()
    time.sleep(0.5)
    assert payloads == []
    queue.resume()
    until(lambda: payloads)
    running.stop()


def test_slow_handlers_leave_items_to_others(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    """What waits behind a slow handler is a moment's work at most."""
    queue.push_many(range(40))
    counts: list[int] = []

    async def handle(payload: int) -> None:
        await asyncio.sleep(0.3)
        counts.append(queue.counts().reserved)

    desk.consume("orders", handle)
    running = desk.start()
    until(lambda: len(counts) >= 6)
    running.stop()
    assert max(counts) <= 1 + 4 + 1
    assert queue.counts().reserved == 0


def test_idle_runners_are_neither_forgotten_nor_counted_twice(
    broker: mongoq.Broker, queue: mongoq.Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After long idleness a burst still gets as many runners as it may."""
    monkeypatch.setattr("mongoq.worker.threads.item_runner.POLL_SECONDS", 0.002)
    most, running, lock = [0], [0], threading.Lock()
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", concurrency=4)
    def handle(payload: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.2 if payload else 0)
        with lock:
            running[0] -= 1

    thread = threading.Thread(target=worker.run)
    thread.start()
    queue.push(0)
    until(lambda: queue.size() == 0)
    time.sleep(1)
    queue.push_many([1] * 4)
    until(lambda: queue.size() == 0)
    worker.stop()
    thread.join()
    assert most[0] == 4
