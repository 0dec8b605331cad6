"""A handler that keeps failing: one item at a time is tried, and failures are nobody's fault."""

from __future__ import annotations

from typing import Any

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk


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
