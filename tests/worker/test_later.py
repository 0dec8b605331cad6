"""Handlers that put their items off: no failure, no attempt, no effect on a circuit breaker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk


def test_an_item_that_is_put_off_uses_up_no_retry(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.configure(history=3600)
    queue.push("a")
    attempts: list[int] = []

    async def handle(payload: Any, job: Any) -> Any:
        attempts.append(job.item.attempts)
        return mongoq.Later(0.02) if len(attempts) < 5 else None

    desk.consume("orders", handle, max_retries=0)
    desk.run()
    assert attempts == [1] * 5
    assert [(item.attempts, item.error) for item in queue.history()] == [(1, None)]
    assert not [record for record in caplog.records if "has failed" in record.getMessage()]


def test_until_a_time(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    id = queue.push("a")
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    seen: list[Any] = []

    async def handle(payload: Any) -> Any:
        seen.append(payload)
        return mongoq.Later(when=when)

    desk.consume("orders", handle)
    running = desk.start()
    found = until(lambda: next((item for item in [queue.get(id)] if item and item.due == when), None))
    assert found is not None
    running.stop()
    assert (seen, found.state, found.attempts) == (["a"], "scheduled", 0)


def test_a_circuit_breaker_does_not_see_it(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    """It is no success that closes the breaker: the failures after it do not count either."""
    queue.push_many(["a", "b", "c"])
    calls: list[str] = []

    async def handle(payload: str) -> Any:
        calls.append(payload)
        if payload != "c" and calls.count(payload) < 3:
            raise ConnectionError("down")
        return mongoq.Later(0.3) if payload == "c" and calls.count("c") == 1 else None

    desk.consume("orders", handle, concurrency=1, probe=True, retry=mongoq.Fixed(0.1), max_retries=1)
    desk.run()
    assert calls[:4] == ["a", "b", "c", "a"]
    assert (queue.dead.size(), queue.size()) == (0, 0)
