"""Workers and sequences: a settlement wakes its own worker, other sequences have their turns, and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk


def test_a_long_sequence_leaves_the_others_their_turns(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(9), sequence="a")
    queue.push("b", sequence="b")
    queue.push("free")
    seen: list[Any] = []

    async def handle(payload: Any) -> None:
        seen.append(payload)

    desk.consume("orders", handle, concurrency=1)
    desk.run()
    assert [each for each in seen if isinstance(each, int)] == list(range(9))
    assert {seen.index("b"), seen.index("free")} == {1, 2}


@pytest.fixture
def running(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> Iterator[list[int]]:
    """A worker that begins when the first item of a sequence was deleted; a list of what it handles."""
    first, *_ = queue.push_many(range(4), sequence="a")
    raw.delete_one({"_id": first})
    seen: list[int] = []

    async def handle(payload: int) -> None:
        seen.append(payload)

    desk.consume("orders", handle)
    started = desk.start()
    yield seen
    started.stop()


def test_a_worker_repairs_the_sequences_of_its_queues(
    running: list[int], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: len(running) == 3)
    assert running == [1, 2, 3]
    assert "queue 'orders': 1 items of sequences go on" in caplog.text
    until(lambda: raw.find_one({"_id": "repair:orders", "after": ""}))
