"""``rate_key``: each key has the rate to itself; items whose key has no start left go back until it has one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

import mongoq
from tests.integration.commands import listened_to
from tests.waiting import until
from tests.worker.conftest import Desk
from tests.worker.test_rate import Starts


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
    assert len({item.due for item in waiting}) == 29
    desk.stop_all()


def test_items_of_one_key_keep_their_order(desk: Desk, queue: Any) -> None:
    order: list[int] = []

    async def handle(payload: Any) -> None:
        order.append(payload["n"])

    queue.push_many([{"n": n} for n in range(8)])
    desk.consume("orders", handle, rate="10/s", burst=1, rate_key="n.missing")
    desk.run()
    assert sorted(order) == list(range(8))
    assert order[0] == 0
    assert order[-1] == 7


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
