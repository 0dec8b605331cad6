"""Handlers that hang in a worker that lives: what becomes of their items is the consumer's to say."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk, in_tasks

LEASE = 0.6


class Hung:
    """A handler that hangs until it is let go; of every kind of worker.

    Attributes:
        jobs: those of its runs.
        ended: how many of them have ended by themselves.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.jobs: list[Any] = []
        self.ended = 0

    async def __call__(self, payload: Any, job: Any) -> None:
        self.jobs.append(job)
        while not self.go.is_set():
            await asyncio.sleep(0.02)
        self.ended += 1


@pytest.fixture
def hung() -> Any:
    handler = Hung()
    yield handler
    handler.go.set()
    until(lambda: handler.ended == len(handler.jobs))  # else it would log in some other test


async def hang(payload: Any, job: Any) -> None:
    """Stand for the handler where one is only registered."""


def test_a_released_item_is_run_by_another_worker_and_the_late_result_is_ignored(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, hung: Hung, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.push_many(["x"])
    attempts: list[int] = []
    desk.consume("orders", hung.__call__, max_time=0.2, on_timeout="release", lease=LEASE)
    first = desk.start()
    until(lambda: hung.jobs and hung.jobs[0].lost.is_set())
    desk.consumers.clear()

    async def handle(payload: Any, job: Any) -> None:
        attempts.append(job.item.attempts)

    desk.consume("orders", handle)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        second = desk.start()
        until(lambda: raw.find_one({"_id": id}) is None)
        assert attempts == [2]
        hung.go.set()
        until(lambda: any("has ended late" in text and str(id) in text for text in caplog.messages))
    second.stop()
    first.stop()
    assert hung.ended == 1
    assert queue.dead.size() == 0


def test_a_released_item_keeps_why_and_is_buried_by_the_next_claim(
    desk: Desk, queue: mongoq.Queue[Any], hung: Hung
) -> None:
    queue.push("x")
    desk.consume("orders", hung.__call__, max_time=0.2, on_timeout="release", lease=LEASE, max_retries=0, prefetch=0)
    running = desk.start()
    until(lambda: hung.jobs and hung.jobs[0].lost.is_set())
    until(lambda: queue.peek(1, state=None)[0].error)

    def buried() -> bool:
        assert desk.broker.queue("orders", max_retries=0).reserve() is None
        return queue.dead.size() == 1

    desk.broker.queue("orders").configure(max_retries=0)
    until(buried)
    (letter,) = queue.dead.peek(2)
    assert letter.error is not None
    assert letter.origin is not None
    assert (letter.error.type, letter.origin.attempts) == ("TimeoutError", 1)
    assert "max_time, 0.2 s" in letter.error.message
    assert len(hung.jobs) == 1
    running.stop()


def test_a_worker_without_a_place_that_is_free_claims_nothing_and_gives_back_what_waits(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any, hung: Hung
) -> None:
    queue.push_many(range(5))
    desk.consume("orders", hung.__call__, max_time=0.5, on_timeout="release", lease=LEASE, prefetch=2)
    running = desk.start()
    until(lambda: hung.jobs and hung.jobs[0].lost.is_set())
    until(lambda: raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == 4)
    hung.go.set()
    until(lambda: queue.size() == 0)
    running.stop()
    assert queue.dead.size() == 0


def test_a_worker_that_drains_does_not_wait_for_a_handler_that_was_released(
    desk: Desk, queue: mongoq.Queue[Any], hung: Hung
) -> None:
    queue.push_many(["hangs", "runs"])
    runs: list[Any] = []

    async def handle(payload: Any, job: Any) -> None:
        runs.append((payload, job.item.attempts))
        if job.item.attempts == 1 and payload == "hangs":
            await hung(payload, job)

    desk.consume("orders", handle, concurrency=2, max_time=1, on_timeout="release", lease=3)
    desk.run()
    assert sorted(runs) == [("hangs", 1), ("hangs", 2), ("runs", 1)]
    assert hung.ended == 0


def test_a_worker_that_stops_does_not_wait_for_a_handler_that_was_released(
    desk: Desk, queue: mongoq.Queue[Any], hung: Hung
) -> None:
    queue.push("x")
    desk.consume("orders", hung.__call__, max_time=0.2, on_timeout="release", lease=3600)
    running = desk.start(grace=3600)
    until(lambda: hung.jobs and hung.jobs[0].lost.is_set())
    running.stop()
    (item,) = queue.peek(2, state="reserved")
    assert item.attempts == 1, "it was not given back: its attempt counts"


def test_the_whole_batch_is_released(desk: Desk, queue: mongoq.Queue[Any], raw: Any, hung: Hung) -> None:
    queue.push_many([1, 2, 3])
    runs: list[list[Any]] = []

    async def handle(payloads: Any, job: Any) -> None:
        runs.append(payloads)
        if len(payloads) == 3:
            await hung(payloads, job)

    desk.consume("orders", handle, batch=3, prefetch=3, concurrency=4, max_time=1, on_timeout="release", lease=3)
    desk.run()
    assert runs[0] == [1, 2, 3]
    # together once more, and then one at a time: what hangs twice is found by that
    assert sorted(number for batch in runs if len(batch) < 3 for number in batch) == [1, 2, 3]
    assert queue.dead.size() == 0


def asynchronous(uri: str, database: str, handler: Any, **options: Any) -> None:
    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)
            worker.consumer("orders", **options)(handler)
            await worker.run(drain=True)

    asyncio.run(work())


def test_a_cancelled_run_has_failed(uri: str, database: str, queue: mongoq.Queue[Any]) -> None:
    queue.push("x")
    cancelled: list[int] = []

    async def handle(payload: Any, job: Any) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            assert job.lost.is_set()
            await asyncio.sleep(0.01)  # what cleans up may await
            cancelled.append(job.item.attempts)
            raise

    options: dict[str, Any] = {"max_time": 0.2, "on_timeout": "cancel", "max_retries": 1, "lease": 3600}
    asynchronous(uri, database, handle, retry=mongoq.Fixed(0.01), **options)
    assert cancelled == [1, 2]
    (letter,) = queue.dead.peek(2)
    assert letter.error is not None
    assert (letter.error.type, "max_time, 0.2 s" in letter.error.message) == ("TimeoutError", True)


@in_tasks
def test_a_worker_that_stops_settles_what_is_cancelled_meanwhile(
    desk: Desk, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue.push("x")
    begun = threading.Event()

    async def handle(payload: Any) -> None:
        begun.set()
        await asyncio.sleep(3600)

    desk.consume("orders", handle, max_time=0.5, on_timeout="cancel", lease=3600, retry=mongoq.Fixed(60))
    running = desk.start(grace=2)
    until(begun.is_set)
    running.stop()
    assert "could not be given back" not in caplog.text


def test_a_cancelled_run_that_returns_all_the_same_has_failed(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many([1, 2])

    async def handle(payloads: Any) -> Any:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return mongoq.Drop() if payloads == [] else None

    asynchronous(
        uri, database, handle, max_time=0.2, on_timeout="cancel", max_retries=0, batch=2, prefetch=2, lease=3600
    )
    assert sorted(letter.payload for letter in queue.dead.peek(3)) == [1, 2]


def test_an_item_that_is_run_at_most_once_goes_to_the_error_queue(
    uri: str, database: str, broker: mongoq.Broker
) -> None:
    broker.queue("in").push_many(["hangs", "runs"])
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    @pipeline.sink("in", delivery="at-most-once", max_time=1, on_timeout="cancel", concurrency=2)
    async def load(payload: str) -> None:
        if payload == "hangs":
            await asyncio.Event().wait()

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as opened:
            await pipeline.drain_async(opened)

    asyncio.run(work())
    (letter,) = broker.queue("line.errors").peek(3)
    assert letter.error is not None
    assert (letter.payload, letter.error.type) == ("hangs", "TimeoutError")


def plain(payload: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_timeout": "kill", "max_time": 1}, "'log', 'release' or 'cancel', not 'kill'"),
        ({"on_timeout": None, "max_time": 1}, "'log', 'release' or 'cancel', not None"),
        ({"on_timeout": "release"}, "needs a max_time"),
        ({"on_timeout": "cancel", "max_time": 1}, "cannot be cancelled"),
    ],
)
def test_what_cannot_be_is_refused_at_the_registration(
    broker: mongoq.Broker, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=f"on_timeout.*{words}"):
        mongoq.Worker(broker).consumer("orders", **options)(plain)
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    pipeline.sink("in", name="a", **options)(plain)
    pipeline.join(["b", "c"], on=None, name="d", **options)(lambda a, b: None)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.check()
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["stage 'a'", "stage 'd'"]


def test_a_plain_function_of_an_async_worker_is_not_cancelled(uri: str, database: str) -> None:
    async def register() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)
            worker.consumer("others", max_time=1, on_timeout="cancel")(hang)
            with pytest.raises(mongoq.ArgumentInvalid, match=r"plain is a plain function, and a thread cannot"):
                worker.consumer("orders", max_time=1, on_timeout="cancel")(plain)

    asyncio.run(register())
