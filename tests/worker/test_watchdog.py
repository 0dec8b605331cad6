"""What a worker tells of itself: runs that take too long, its record, how much it holds."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.waiting import PATIENCE, until
from tests.worker.conftest import KINDS, Desk, every_kind, in_tasks


async def a_place_to_hang(is_over: Callable[[], bool]) -> None:
    while not is_over():
        await asyncio.sleep(0.01)


def a_place_to_block(is_over: Callable[[], bool]) -> None:
    while not is_over():
        time.sleep(0.01)


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_the_stack_of_a_run_that_takes_too_long_is_logged_once(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(["slow", "quick"])

    async def handle(payload: str) -> None:
        if payload == "slow":
            await a_place_to_hang(lambda: "has run for" in caplog.text)

    desk.consume("orders", handle, max_time=0.2)
    with caplog.at_level(logging.ERROR, "mongoq.worker"):
        desk.run()
    text = next(entry.getMessage() for entry in caplog.records if "has run for" in entry.getMessage())
    if desk.kind == "tasks":
        assert "in a_place_to_hang" in text
        assert "await a_place_to_hang(lambda" in text
    else:
        assert "lambda payload: asyncio.run(handler(payload))" in text


def test_a_handler_that_blocks_the_event_loop_is_found_too(
    uri: str, database: str, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(1)

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)

            @worker.consumer("orders", max_time=0.2)
            async def handle(payload: Any) -> None:
                a_place_to_block(lambda: "has run for" in caplog.text)

            await worker.run(drain=True)

    with caplog.at_level(logging.ERROR, "mongoq.worker"):
        asyncio.run(work())
    assert "in a_place_to_block" in caplog.text


def blocked_loops(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if "the event loop has been blocked for" in record.getMessage()]


@in_tasks
def test_a_coroutine_that_blocks_the_event_loop_past_its_lease_is_named_once(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.push_many(["x"])

    async def handle(payload: str) -> None:
        item = queue.reserve(wait=PATIENCE)  # a plain call; it gets the item when the lease of this run is over
        assert item is not None
        queue.commit(item)
        until(lambda: blocked_loops(caplog))

    desk.consume("orders", handle, lease=3)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        desk.run()
    (record,) = blocked_loops(caplog)
    text = record.getMessage()
    assert (record.levelname, record.name) == ("WARNING", "mongoq.worker")
    assert f" s by {__name__}.{handle.__qualname__} of queue 'orders': " in text
    assert "asyncio.to_thread" in text
    assert f"in {handle.__name__}\n" in text, "its stack"
    assert (record.mongoq_queue, record.mongoq_item) == ("orders", str(id))
    assert record.mongoq_duration >= 0.5
    assert f"item {id} of queue 'orders' was not settled" in caplog.text, "nor is the loss silent"


class Handlers:
    """Handlers that block the event loop until that is logged, each in another way."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def block(self) -> None:
        until(lambda: blocked_loops(self._caplog))

    async def compute(self, payload: Any) -> None:
        until(lambda: blocked_loops(self._caplog) or not sum(range(10_000_000)))  # no other thread runs during a sum

    async def call_later(self, payload: Any) -> None:
        asyncio.get_running_loop().call_soon(self.block)
        while not blocked_loops(self._caplog):
            await asyncio.sleep(0.01)

    async def hold_in_turns(self, payload: Any) -> None:
        while not blocked_loops(self._caplog):
            time.sleep(0.2)
            await asyncio.sleep(0)


@in_tasks
@pytest.mark.parametrize(
    ("name", "culprit", "place"),
    [
        ("compute", f"{__name__}.Handlers.compute of queue 'orders'", "in compute"),
        ("hold_in_turns", f"{__name__}.Handlers.hold_in_turns of queue 'orders'", "in hold_in_turns"),
        ("call_later", "code outside of the handlers' tasks", "in block"),
    ],
)
def test_so_is_code_that_blocks_it_in_another_way(
    desk: Desk, caplog: pytest.LogCaptureFixture, name: str, culprit: str, place: str
) -> None:
    desk.broker.queue("orders").push_many(range(20))
    desk.consume("orders", getattr(Handlers(caplog), name), lease=3, concurrency=20)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        desk.run()
    (record,) = blocked_loops(caplog)
    assert f" s by {culprit}: " in record.getMessage()
    assert place in record.getMessage()


@pytest.mark.parametrize("desk", ["plain"], indirect=True)
def test_a_plain_function_blocks_no_event_loop(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push("x")

    async def handle(payload: str) -> None:
        for _ in range(3):
            end = raw.find_one({"q": "orders"})["when"]
            a_place_to_block(lambda end=end: raw.find_one({"q": "orders"})["when"] > end)  # type: ignore[misc]

    desk.consume("orders", handle, lease=6)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        desk.run()
    assert not caplog.records


@every_kind
def test_a_run_without_a_time_limit_is_told_of_at_five_minutes_and_at_each_doubling(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.worker.time_limit.LONG_RUN", timedelta(seconds=0.1))
    (id,) = queue.push_many(["slow"])
    go = threading.Event()

    async def handle(payload: str) -> None:
        await a_place_to_hang(go.is_set)

    desk.consume("orders", handle)
    desk.consume("others", handle)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        running = desk.start(heartbeat=0.1)
        until(lambda: len(seconds_of_runs(caplog)) >= 3)
        health = desk.worker.health()
        (record,) = until(lambda: [each for each in desk.broker.workers() if each.overdue])
        go.set()
        until(lambda: not desk.worker.health().notes)
        until(lambda: not any(each.overdue for each in desk.broker.workers()))
        running.stop()
    first, second, third, *_ = seconds_of_runs(caplog)
    assert (first >= 0.1, second >= 0.2, third >= 0.4) == (True, True, True)
    assert health.healthy, "it may be a long handler"
    (note,) = health.notes
    assert note.startswith(f"queue 'orders' has run item {id} for more than ")
    assert record.overdue.keys() == {"orders"}
    assert record.overdue["orders"] >= timedelta(seconds=0.1)


def seconds_of_runs(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [record.mongoq_duration for record in caplog.records if "has run for" in record.getMessage()]  # type: ignore[attr-defined]


def test_a_stage_that_hangs_is_named(
    broker: mongoq.Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.worker.time_limit.LONG_RUN", timedelta(seconds=0.1))
    broker.queue("in").push("x")
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    @pipeline.sink("in")
    def load(payload: str) -> None:
        until(lambda: "the handler of stage 'load' has run for" in caplog.text and any(run.health().notes))

    with pipeline.start(broker) as run:
        until(lambda: broker.queue("in").size() == 0)
    assert "in load" in caplog.text


def test_a_worker_says_what_it_consumes_and_holds_until_it_ends(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(5))
    go = threading.Event()

    async def handle(payload: Any) -> None:
        while not go.is_set():
            await asyncio.sleep(0.01)

    desk.consume("orders", handle, concurrency=2, prefetch=1)
    desk.consume("others", handle)
    running = desk.start(heartbeat=0.1)
    (record,) = until(lambda: [each for each in desk.broker.workers() if each.alive and each.queues["orders"] == 3])
    assert record.queues == {"orders": 3, "others": 0}
    assert record.started <= record.seen <= datetime.now(UTC) + timedelta(seconds=5)
    host, pid, _ = record.name.rsplit(":", 2)
    assert (record.host, str(record.pid)) == (host, pid)
    go.set()
    running.stop()
    assert desk.broker.workers() == []


def test_a_killed_worker_is_distinguished_from_live_ones(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def record(name: str, age: timedelta) -> None:
        host, pid, _ = name.split(":")
        now = datetime.now(UTC)
        times = {"started": EARLY, "seen": now - age, "every": 5.0, "expires": now + timedelta(hours=1)}
        queues = [{"queue": "orders", "held": 7}]
        raw.insert_one({"_id": f"worker:{name}", "host": host, "pid": int(pid), **times, "queues": queues})

    desk.broker.ping()
    queue.size()
    record("a:1:x/1", timedelta(0))
    record("b:2:y/1", timedelta(seconds=60))
    record("c:3:z/1", timedelta(minutes=11))
    assert [(worker.host, worker.alive) for worker in desk.broker.workers()] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]

    async def handle(payload: Any) -> None:
        pass

    desk.consume("orders", handle)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        desk.run()
    assert [worker.host for worker in desk.broker.workers()] == ["a", "b"], "the one that is gone for long was removed"
    assert "worker c:3:z/1 is gone" in caplog.text
    assert "'orders': 7" in caplog.text


EARLY = datetime(2026, 1, 1, tzinfo=UTC)


def test_no_more_is_held_than_runs_and_waits(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many(range(40))
    counts, ended = list[int](), set[Any]()

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0.01)
        reserved = {document["payload"] for document in raw.find({"q": "orders", "reserved": True}, {"payload": 1})}
        counts.append(len(reserved - ended))  # what has ended may not be settled yet
        ended.add(payload)

    desk.consume("orders", handle, concurrency=2, prefetch=3)
    desk.run()
    assert len(counts) == 40
    assert max(counts) <= 2 + 3


def test_one_runner_keeps_the_order(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(50, 100))
    queue.push_many(range(50), priority=-1)
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        payloads.append(payload)

    desk.consume("orders", handle)
    desk.run()
    assert payloads == list(range(100))


def test_a_paused_queue_is_left_alone(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.pause()
    queue.push(1)
    desk.broker.queue("others").push(2)
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        payloads.append(payload)

    desk.consume("orders", handle)
    desk.consume("others", handle)
    running = desk.start()
    until(lambda: payloads)
    assert payloads == [2]
    queue.resume()
    until(lambda: payloads == [2, 1])
    running.stop()


def test_slow_handlers_leave_items_to_others(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    """What waits behind a slow handler is a moment's work at most."""
    queue.push_many(range(40))
    counts: list[int] = []

    async def handle(payload: int) -> None:
        await asyncio.sleep(0.3)
        counts.append(queue.counts().reserved)

    desk.consume("orders", handle)
    running = desk.start()
    until(lambda: len(counts) >= 3)
    running.stop()
    assert max(counts) <= 1 + 4 + 1
    assert queue.counts().reserved == 0
