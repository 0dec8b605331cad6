"""Probing: one item at a time while the other side is down, and nothing of the kind for a bad item."""

from __future__ import annotations

import asyncio
from typing import Any

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk, in_tasks


def test_while_the_other_side_is_down_items_are_tried_one_at_a_time_and_keep_their_attempts(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    queue.push_many(range(30))
    tried: list[int] = []
    counts: list[int] = []
    down = [True]

    async def handle(payload: int) -> None:
        tried.append(payload)
        if down[0]:
            counts.append(raw.count_documents({"q": "orders", "reserved": True}))
            raise ConnectionError("down")

    desk.consume("orders", handle, concurrency=1, prefetch=20, probe=True, retry=mongoq.Fixed(0.05), max_retries=1)
    running = desk.start()
    until(lambda: len(tried) >= 12)
    assert queue.dead.size() == 0
    assert len(set(tried[:10])) == 10, "another one each time"
    assert counts[2:10] == [1] * 8, "what had been prefetched was released"
    assert raw.count_documents({"q": "orders", "attempts": {"$gt": 0}}) <= 2, "the first one's, and that of a run"
    down[0] = False
    until(lambda: queue.size() == 0)
    running.stop()
    assert queue.dead.size() == 0
    assert set(tried) == set(range(30))


def test_what_is_dead_for_a_reason_of_its_own_does_not_close_it(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(5))

    async def handle(payload: int) -> Any:
        return mongoq.Dead("no")

    desk.consume("orders", handle, probe=True, retry=mongoq.Fixed(3600))
    desk.run()
    assert queue.dead.size() == 5


def test_a_bad_item_delays_no_other_one(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    bad = queue.push("bad")
    runs: list[str] = []

    async def handle(payload: str) -> Any:
        runs.append(payload)
        if payload == "bad":
            return mongoq.Retry(0 if runs == ["bad"] else None)
        return None

    desk.consume("orders", handle, probe=True, retry=mongoq.Fixed(3600))
    running = desk.start()
    until(lambda: (item := queue.get(bad)) and item.state == "scheduled" and len(runs) == 2)
    queue.push("good")
    until(lambda: "good" in runs, seconds=20)  # a pause would last for 30 s
    running.stop()
    item = queue.get(bad)
    assert item is not None
    assert item.attempts == 2


def test_a_bad_item_that_is_the_only_one_has_as_many_runs_as_without_probing(
    desk: Desk, queue: mongoq.Queue[Any]
) -> None:
    queue.push("bad")
    runs: list[str] = []

    async def handle(payload: str) -> None:
        runs.append(payload)
        raise ValueError("cannot be done")

    desk.consume("orders", handle, probe=True, retry=mongoq.Fixed(0.01), max_retries=3)
    running = desk.start()
    until(lambda: queue.dead.size() == 1 or len(runs) > 4)
    running.stop()
    assert len(runs) == 4


def test_bad_items_that_come_first_let_others_be_tried(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    """Two that fail look like an outage; the probe of another item ends that, whatever their priority is."""
    queue.push_many(["bad", "worse"], priority=-1)
    runs: list[str] = []

    async def handle(payload: str) -> None:
        runs.append(payload)
        if payload != "good":
            raise ValueError("cannot be done")

    desk.consume("orders", handle, concurrency=1, probe=True, retry=mongoq.Fixed(0.05), max_retries=2)
    running = desk.start()
    until(lambda: len(runs) >= 4)
    assert queue.dead.size() == 0
    queue.push("good")
    until(lambda: "good" in runs)
    until(lambda: queue.push("good") is not None and queue.dead.size() == 2)
    running.stop()


@in_tasks
def test_runs_that_are_cancelled_during_an_outage_do_not_count(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many(range(5))
    begun: list[int] = []

    async def handle(payload: int) -> None:
        begun.append(payload)
        await asyncio.sleep(3600)

    options: dict[str, Any] = {"max_time": 0.05, "on_timeout": "cancel", "retry": mongoq.Fixed(0.01), "max_retries": 0}
    desk.consume("orders", handle, concurrency=1, probe=True, **options)
    running = desk.start()
    until(lambda: len(begun) >= 8)
    running.stop()
    assert (queue.size(), queue.dead.size()) == (4, 1)
    assert raw.count_documents({"q": "orders", "attempts": {"$gt": 0}}) <= 1, "that of a run"
