"""Handlers that put their items off: no failure, no attempt, no effect on a circuit breaker."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
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
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    seen: list[Any] = []

    async def handle(payload: Any) -> Any:
        seen.append(payload)
        return mongoq.Later(when=until)

    desk.consume("orders", handle)
    running = desk.start()
    while (found := queue.get(id)) is None or found.due != until:
        pass
    running.stop()
    assert (seen, found.state, found.attempts) == (["a"], "scheduled", 0)


def test_each_item_of_a_batch_has_its_own_outcome(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many(range(4))
    runs = Counter[int]()

    async def handle(payloads: list[int]) -> Any:
        runs.update(payloads)
        return [mongoq.Later(0.05) if n % 2 and runs[n] == 1 else None for n in payloads]

    desk.consume("orders", handle, batch=4, max_retries=0)
    desk.run()
    assert runs == {0: 1, 1: 2, 2: 1, 3: 2}
    assert queue.dead.size() == 0


def test_a_circuit_breaker_does_not_see_it(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    """It is no success that closes the breaker: the failure after it does not count either."""
    queue.push_many(["a", "b"])
    calls: list[str] = []

    async def handle(payload: str) -> Any:
        calls.append(payload)
        if payload == "a" and calls.count("a") < 3:
            raise ConnectionError("down")
        return mongoq.Later(0.3) if payload == "b" and calls.count("b") == 1 else None

    desk.consume("orders", handle, concurrency=1, probe=True, retry=mongoq.Fixed(0.1), max_retries=1)
    desk.run()
    assert calls[:3] == ["a", "b", "a"]
    assert (queue.dead.size(), queue.size()) == (0, 0)
