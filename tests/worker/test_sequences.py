"""Workers and sequences: a settlement wakes its own worker, other sequences have their turns, and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import mongoq
from mongoq.protocol.flow import Flow
from mongoq.protocol.state.wait_queue import WaitQueue
from mongoq.protocol.wait import wait
from tests.waiting import until
from tests.worker.conftest import Desk


@pytest.fixture
def only_own_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting workers hear of nothing but the writes of their own process: no change stream, and no poll."""
    begin_sleep = WaitQueue.begin_sleep

    def sleep_until_told(self: WaitQueue, waiter: Any) -> float:
        return begin_sleep(self, waiter) and 3600.0

    def open_no_stream(_context: Any) -> Flow[None]:
        yield from ()

    monkeypatch.setattr(WaitQueue, "begin_sleep", sleep_until_told)
    monkeypatch.setattr(wait, "_ensure_stream", open_no_stream)


@pytest.mark.usefixtures("only_own_news")
def test_a_settlement_wakes_its_own_worker_for_the_next_item(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(12), sequence="a")
    seen: list[int] = []

    async def handle(payload: int) -> None:
        seen.append(payload)

    desk.consume("orders", handle, concurrency=2)
    running = desk.start()
    until(lambda: len(seen) == 12, seconds=30)
    running.stop()
    assert seen == list(range(12))


@pytest.mark.usefixtures("only_own_news")
def test_a_settlement_wakes_a_caller_that_waits_for_the_next_item(queue: mongoq.Queue[Any]) -> None:
    queue.push_many([1, 2], sequence="a")
    first = queue.reserve() or pytest.fail("nothing")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.reserve, wait=60)
        until(lambda: queue._context.broker.registry.wait_queues)
        queue.commit(first)
        second = waiting.result(30)
    assert second is not None
    assert second.payload == 2


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
    until(lambda: len(running) == 3, seconds=30)
    assert running == [1, 2, 3]
    assert "queue 'orders': 1 items of sequences go on" in caplog.text
    until(lambda: raw.find_one({"_id": "repair:orders", "after": ""}))
