"""``rate_key``: each key has the rate to itself; items whose key has no start left go back until it has one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import mongoq
from tests.integration.commands import explain, listened_to
from tests.waiting import until
from tests.worker.conftest import Desk
from tests.worker.test_rate import CLOCKS, Starts


def test_each_key_has_the_rate_to_itself(desk: Desk, raw: Any, queue: Any) -> None:
    starts = Starts()
    queue.push_many([{"key": key, "n": n} for n in range(6) for key in ("a", "b", "$c", "d.e")])
    starts.consume(desk, "orders", concurrency=4, rate="6/s", burst=1, rate_key="key")
    desk.run()
    assert {key: len(times) for key, times in starts.times.items()} == {"a": 6, "b": 6, "$c": 6, "d.e": 6}
    assert all(starts.keep_to(key, 6, 1) for key in starts.times)
    buckets = list(raw.find({"_id": {"$regex": "^rate:orders:"}}))
    assert len(buckets) == 4
    assert all(bucket["expires"] for bucket in buckets)
    assert raw.find_one({"_id": "rate:orders"}) is None


@pytest.mark.parametrize("rate_key", ["key", lambda payload: {"ids": [payload["key"]]}], ids=["field", "function"])
def test_a_uuid_is_a_key(desk: Desk, queue: Any, rate_key: Any) -> None:
    starts = Starts()
    queue.push_many([{"key": UUID(int=n)} for n in (1, 2, 1)])
    starts.consume(desk, "orders", rate="1/h", rate_key=rate_key)
    running = desk.start()
    until(lambda: len(queue.peek(10, state="scheduled")) == 1)
    running.stop()
    assert {key: len(times) for key, times in starts.times.items()} == {UUID(int=1): 1, UUID(int=2): 1}


def test_a_key_without_a_start_left_holds_up_no_other(desk: Desk, queue: Any) -> None:
    starts = Starts()
    queue.push_many([{"key": "busy"}] * 30)
    queue.push_many([{"key": key} for key in range(10)])
    starts.consume(desk, "orders", concurrency=4, rate="2/m", burst=1, rate_key=lambda payload: payload["key"])
    desk.start()
    desk.start()
    until(lambda: sum(len(times) for times in starts.times.values()) == 11)
    until(lambda: len(queue.peek(100, state="scheduled")) == 29)
    waiting = queue.peek(100, state="scheduled")
    assert {item.attempts for item in waiting} == {0}
    assert len({item.due for item in waiting}) > 2  # those that cannot start within a minute look again then
    assert max(item.due for item in waiting) <= waiting[0].read_at + timedelta(minutes=1)
    desk.stop_all()


def test_items_of_one_key_run_about_in_their_order(desk: Desk, queue: Any) -> None:
    order: list[int] = []

    async def handle(payload: Any) -> None:
        order.append(payload["n"])

    queue.push_many([{"n": n} for n in range(8)])
    desk.consume("orders", handle, rate="10/s", burst=1, rate_key="n.missing")
    desk.run()
    assert sorted(order) == list(range(8))
    assert order[0] == 0
    # on a busy machine some change places; in any order they would be about 21 places away from their own
    assert sum(abs(place - n) for place, n in enumerate(order)) < 12


def test_a_key_loses_no_start_when_a_busy_machine_is_late(uri: str, database: str) -> None:
    def delay_rates(name: str, command: Mapping[str, Any]) -> None:
        if "rate:orders" in str(command):
            time.sleep(0.3)  # before the reply arrives; by then a start of an idle key was lost

    starts: list[Any] = []
    with listened_to(uri, database) as (broker, commands):
        commands.after = delay_rates
        queue = broker.queue("orders")
        queue.push_many([{"key": "a"}, {"key": "b"}])
        worker = mongoq.Worker(broker)
        worker.consumer(queue, rate="1/h", burst=1, rate_key="key")(starts.append)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            until(lambda: len(starts) == 2)
        finally:
            worker.stop()
            thread.join()


def test_a_changed_rate_holds_for_items_that_were_put_off(
    desk: Desk, queue: Any, raw: Any, uri: str, database: str
) -> None:
    starts = Starts()
    times = starts.times["a"]
    with listened_to(uri, database) as (broker, commands):
        queue.push_many([{"key": "a"}] * 40)
        queue.push({"key": "a"}, delay=3600)
        worker = mongoq.Worker(broker)
        worker.consumer("orders", concurrency=4, rate="1/h", rate_key="key")(
            lambda payload: times.append(time.monotonic())
        )
        starts.consume(desk, "orders", concurrency=4, rate="1/h", rate_key="key")
        other, thread = desk.start(), threading.Thread(target=worker.run)
        thread.start()
        try:
            until(lambda: len(queue.peek(100, state="scheduled")) == 40)
            starts.began = time.monotonic()
            queue.configure(rate="10/s", burst=1)
            until(lambda: len(times) > 8)
            assert starts.keep_to("a", 10, 2)  # one of them before
            queue.configure(rate=None)
            until(lambda: len(times) == 40)
        finally:
            worker.stop()
            thread.join()
            other.stop()
        assert queue.counts().scheduled == 1  # a delay of the caller's own stays
        ends = [each for each in commands.sent if "throttled" in str(each.get("updates", [{}])[0].get("q", {}))]
        assert "COLLSCAN" not in explain(raw, ends[0]).stages


def test_an_item_that_expires_before_its_slot_does_not_start(desk: Desk, broker: mongoq.Broker, raw: Any) -> None:
    queue, started = broker.queue("orders", history=3600), list[Any]()

    async def handle(payload: Any) -> None:
        started.append(payload["n"])
        if payload["n"] == 0:
            slot = raw.find_one({"_id": {"$regex": "^rate:orders:"}})["next"] / 1000
            queue.push({"key": "a", "n": 1}, expires=datetime.fromtimestamp(slot - 0.1, UTC))
            queue.push({"key": "a", "n": 2})

    queue.push({"key": "a", "n": 0})
    desk.consume("orders", handle, concurrency=4, rate="2/s", burst=1, rate_key="key")
    desk.run()
    assert started == [0, 2]
    assert {item.payload["n"]: item.attempts for item in queue.history()} == {0: 1, 1: 0, 2: 1}


def test_no_more_items_run_than_may_when_the_rate_of_their_key_ends(desk: Desk, queue: Any) -> None:
    lock, running, most = threading.Lock(), list[Any](), list[int]()

    async def handle(payload: Any) -> None:
        with lock:
            running.append(payload)
            most.append(len(running))
        time.sleep(0.001)
        with lock:
            running.remove(payload)

    queue.push_many([{"key": n % 2, "n": n} for n in range(60)])
    desk.consume("orders", handle, concurrency=4, max_running=2, rate="1/h", rate_key="key")
    worker = desk.start()
    until(lambda: len(queue.peek(100, state="scheduled")) == 58)
    queue.configure(rate=None)
    until(lambda: len(most) == 60)
    worker.stop()
    assert max(most) <= 2


@pytest.mark.prove
@pytest.mark.timeout(120)
@pytest.mark.parametrize("keys", [1, 1_000])
def test_an_observer_sees_no_start_above_the_rate_and_few_below_it(desk: Desk, queue: Any, keys: int) -> None:
    """The observer knows the times at which handlers began, and counts by a bucket of its own."""
    rate, burst, interval, seconds = ("20/s", 5, 0.05, 12) if keys == 1 else ("6/m", 1, 10.0, 24)
    starts = Starts()
    queue.push_many([{"key": n % keys} for n in range(10_000)])
    for _ in range(2):
        desk.consumers.clear()
        starts.consume(desk, "orders", concurrency=16, rate=rate, burst=burst, rate_key="key")
        desk.start()
    until(lambda: len(starts.times) == keys)
    time.sleep(seconds)
    ended = time.monotonic()
    desk.stop_all()
    started = allowed = 0
    for times in starts.times.values():
        full = 0.0  # when the bucket is full again
        for at in sorted(times):
            assert at >= full - burst * interval - CLOCKS
            full = max(full, at) + interval
        started += sum(at < ended for at in times)
        allowed += burst + int((ended - min(times)) / interval)
    assert started >= 0.95 * allowed
