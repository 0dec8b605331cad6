"""Items that nobody started in time, met by a worker: they are not run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk

PAST = datetime(2000, 1, 1, tzinfo=UTC)


def test_expired_items_are_not_run(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.configure(on_expired="dead")
    queue.push_many(range(40), expires=[PAST if n % 2 else 3600 for n in range(40)])
    handled: list[int] = []

    async def handle(payload: int) -> None:
        handled.append(payload)

    desk.consume("orders", handle, concurrency=2)
    desk.run()
    assert sorted(handled) == list(range(0, 40, 2))
    letters = queue.dead.peek(99)
    assert sorted(letter.payload for letter in letters) == list(range(1, 40, 2))
    assert {letter.origin and letter.origin.reason for letter in letters} == {"expired"}


def test_a_retry_does_not_expire(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    """Its time is over before its second run."""
    queue.configure(history=3600)
    id = queue.push("a", expires=30)
    runs: list[int] = []

    async def handle(payload: Any, job: Any) -> None:
        runs.append(job.item.attempts)
        assert raw.find_one({"_id": id}, {"start_by": 1}) == {"_id": id}
        if len(runs) == 1:
            raise ValueError("once more")

    desk.consume("orders", handle, retry=mongoq.Fixed(0.01))
    desk.run()
    assert runs == [1, 2]
    assert [item.start_by for item in queue.history()] == [None]


def test_an_item_whose_claim_was_cut_off_is_judged_again_when_it_is_claimed_alone(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    """As a killed worker leaves it: reserved, with its time; its lease is over."""
    queue.push_many(["late", "good"], expires=[PAST, 3600])
    raw.update_many({"q": "orders"}, {"$set": {"reserved": True, "token": None, "by": "x", "attempts": 1}})
    handled: list[str] = []

    async def handle(payload: str) -> None:
        handled.append(payload)

    desk.consume("orders", handle)
    running = desk.start()
    until(lambda: queue.size() == 0)
    running.stop()
    assert handled == ["good"]
