"""``rate`` and ``burst``: how many items of a queue start in any time, over all workers, as the handlers count it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from pymongo import AsyncMongoClient

import mongoq
from tests.waiting import PATIENCE, until
from tests.worker.conftest import Desk

CLOCKS = 0.05
"""Seconds by which the server's clock may go faster than that of the test."""


class Starts:
    """The times at which handlers began, by queue or key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.times: defaultdict[Any, list[float]] = defaultdict(list)
        self.began = time.monotonic()

    def consume(self, desk: Desk, queue: str, **options: Any) -> None:
        """Have the next worker note starts: by queue, or by the key in the payloads."""

        def handle(payload: Any) -> None:
            now = time.monotonic()
            with self._lock:
                self.times[payload["key"] if "rate_key" in options else queue].append(now)

        async def handle_async(payload: Any) -> None:
            handle(payload)

        desk.consumers.append((queue, handle_async if desk.kind == "tasks" else handle, options))

    def keep_to(self, key: Any, rate: float, burst: int) -> bool:
        """Return whether there was time for so many starts: a busy machine notes each of them late, never early."""
        times = list(self.times[key])  # workers may still add to it
        return max(times) - self.began >= (len(times) - burst) / rate - CLOCKS


def test_each_queue_of_a_worker_goes_by_its_own_rate(desk: Desk, raw: Any, broker: mongoq.Broker) -> None:
    starts = Starts()
    for queue, number, options in (("orders", 12, {"rate": "10/s"}), ("mails", 60, {"rate": "40/s", "burst": 5})):
        broker.queue(queue).push_many(list(range(number)))
        starts.consume(desk, queue, concurrency=4, **options)
    desk.run()
    assert len(starts.times["orders"]) == 12
    assert len(starts.times["mails"]) == 60
    assert starts.keep_to("orders", 10, 2)
    assert starts.keep_to("mails", 40, 5)
    assert sorted(raw.distinct("_id", {"_id": {"$regex": "^rate:"}})) == ["rate:mails", "rate:orders"]


def test_two_workers_share_a_rate(desk: Desk, raw: Any, queue: Any) -> None:
    starts = Starts()
    queue.push_many(list(range(200)))
    starts.consume(desk, "orders", concurrency=4, rate="10/s", burst=1)
    desk.start()
    desk.start()
    until(lambda: len(starts.times["orders"]) >= 15)
    desk.stop_all()
    assert starts.keep_to("orders", 10, 1)
    assert raw.find_one({"_id": "rate:orders"})["expires"] is not None


async def test_starts_that_come_late_use_no_slots_that_have_passed(uri: str, database: str) -> None:
    # In the far future: the server deletes what has expired by its own clock.
    clock, starts = mongoq.VirtualClock(datetime(2100, 1, 1, tzinfo=UTC)), list[datetime]()
    async with AsyncMongoClient[Any](uri) as client, mongoq.AsyncBroker(client[database].mongoq, clock=clock) as broker:
        worker = mongoq.AsyncWorker(broker)
        others = asyncio.Event()

        @worker.consumer("orders", concurrency=3, rate="1/m", burst=3)
        async def handle(payload: Any) -> None:
            starts.append(clock.now())
            if len(starts) == 1:
                clock.advance(3600)  # the process stood still: the slots of the other two have passed

        @worker.consumer("others")
        async def handle_others(payload: Any) -> None:
            others.set()

        await broker.queue("orders").push_many(range(9))
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            while len(starts) < 4:
                await asyncio.sleep(0.01)
            await broker.queue("others").push(1)
            await others.wait()
            worker.stop()
    assert starts[1:] == [clock.now()] * 3


def test_an_idle_worker_starts_the_first_item_of_a_slow_rate(desk: Desk, queue: Any, raw: Any) -> None:
    starts = Starts()
    starts.consume(desk, "orders", concurrency=4, rate="3/h")
    running = desk.start()
    until(lambda: raw.find_one({"_id": "rate:orders"}) is not None)  # it has looked for items, in vain
    queue.push(1)
    until(lambda: len(starts.times["orders"]) == 1)
    running.stop()


def test_a_rate_follows_what_is_configured(desk: Desk, queue: Any) -> None:
    starts = Starts()
    times = starts.times["orders"]
    queue.push_many(list(range(1_000)))
    starts.consume(desk, "orders", concurrency=4, rate="1/h")
    running = desk.start()
    until(lambda: len(times) == 1)
    starts.began = time.monotonic()
    queue.configure(rate="10/s", burst=1)
    until(lambda: len(times) > 8)
    assert starts.keep_to("orders", 10, 2)  # one of them before
    queue.configure(rate=None)
    until(lambda: len(times) > 300)
    running.stop()
