"""How a worker ends: on request, by signals, when the queues are empty; and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from typing import Any

import anyio
import pytest
from pymongo import AsyncMongoClient

import mongoq
from tests.waiting import PATIENCE, until
from tests.worker.conftest import KINDS, Desk, Running

CLIENTS: list[AsyncMongoClient[Any]] = []
"""Clients whose loop has ended: nothing can close them any more, so the collector would warn in some later test."""


@pytest.mark.parametrize(("kind", "number"), [("threads", signal.SIGTERM), ("tasks", signal.SIGINT)])
def test_on_a_signal_it_finishes_what_runs_and_gives_back_the_rest(
    process: Any, queue: mongoq.Queue[Any], raw: Any, kind: str, number: signal.Signals
) -> None:
    queue.push_many(range(20))
    worker = process(kind, 0.7, 20)
    until(lambda: len(worker.said("begin")) >= 2)
    worker.process.send_signal(number)
    assert worker.end() == 0
    assert sorted(worker.said("end")) == sorted(worker.said("begin"))
    assert "stopped" in worker.lines
    remaining = 20 - len(worker.said("end"))
    assert queue.counts() == mongoq.Counts(ready=remaining)
    assert raw.count_documents({"q": "orders", "attempts": 0}) == remaining
    assert raw.count_documents({"_id": {"$regex": "^worker:"}}) == 0


@pytest.mark.parametrize("kind", KINDS[:2])
def test_what_has_not_ended_within_the_grace_goes_back_too(
    process: Any, queue: mongoq.Queue[Any], raw: Any, kind: str
) -> None:
    queue.push_many(range(8))
    worker = process(kind, 3600, 0.3)
    until(lambda: len(worker.said("begin")) == 2)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 0
    assert queue.counts() == mongoq.Counts(ready=8)
    assert raw.count_documents({"q": "orders", "attempts": 0}) == 8


@pytest.mark.parametrize("kind", ["threads"])
def test_a_second_signal_ends_it_at_once(process: Any, queue: mongoq.Queue[Any], kind: str) -> None:
    queue.push_many(range(8))
    worker = process(kind, 3600, 3600)
    until(lambda: len(worker.said("begin")) == 2)
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: queue.counts().ready == 6)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 0
    assert queue.counts() == mongoq.Counts(ready=8)


def test_it_stops_when_another_thread_asks(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)
    payloads = []

    async def handle(payload: Any) -> None:
        payloads.append(payload)

    desk.consume("orders", handle)
    running = desk.start()
    until(lambda: payloads)
    running.stop()
    queue.push(2)
    assert payloads == [1]
    assert queue.counts() == mongoq.Counts(ready=1)


def test_at_whatever_moment_it_is_stopped_nothing_stays_reserved(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    """In the middle of a claim, for instance."""
    queue.push_many(range(1_000))

    async def handle(payload: Any) -> None:
        pass

    desk.consume("orders", handle, concurrency=2)
    desk.consume("others", handle)
    for n in range(8):
        running = desk.start()
        time.sleep(n * 0.004)
        running.stop()
        assert queue.counts().reserved == 0, f"after {n * 4} ms"
    assert raw.count_documents({"q": "orders", "attempts": {"$gt": 0}}) == 0


def test_a_handler_may_stop_its_worker(broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(5))
    payloads = []
    worker = mongoq.Worker(broker)

    @worker.consumer("orders")
    def handle(payload: Any) -> None:
        payloads.append(payload)
        worker.stop()

    worker.run()
    assert payloads == [0], "what it was in the middle of was finished, and nothing more"
    assert queue.counts() == mongoq.Counts(ready=4)


def test_it_can_run_again(broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    payloads = []
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(payloads.append)
    for n in range(3):
        queue.push(n)
        worker.run(drain=True)
    assert payloads == [0, 1, 2]


def test_no_thread_is_left_when_it_has_ended(broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> None:
    before = set(threading.enumerate())
    queue.push_many(range(20))
    worker = mongoq.Worker(broker)
    worker.consumer("orders", concurrency=4, max_time=60)(lambda _: time.sleep(0.01))
    worker.run(drain=True)
    until(lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith("mongoq-")])


def test_the_handlers_of_signals_are_what_they_were(uri: str, database: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with mongoq.connect(uri, database=database) as broker:
        worker = mongoq.Worker(broker)
        worker.consumer("orders")(print)
        worker.run(drain=True)

    async def asynchronous() -> None:
        async with mongoq.connect_async(uri, database=database) as opened:
            worker = mongoq.AsyncWorker(opened)
            worker.consumer("orders")(print)
            await worker.run(drain=True)

    asyncio.run(asynchronous())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_draining_waits_for_what_is_scheduled_and_what_handlers_pass_on(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push("now")
    queue.push("later", delay=0.4)
    payloads = []

    async def first(payload: Any) -> Any:
        return mongoq.Move("second", delay=0.1)

    async def second(payload: Any) -> None:
        payloads.append(payload)

    desk.consume("orders", first)
    desk.consume("second", second)
    desk.run()
    assert sorted(payloads) == ["later", "now"]


def test_a_cancelled_run_gives_back_what_it_holds(uri: str, database: str, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(10))

    async def work() -> None:
        began = asyncio.Event()
        async with mongoq.connect_async(uri, database=database) as opened:
            worker = mongoq.AsyncWorker(opened)

            @worker.consumer("orders", concurrency=2, prefetch=4)
            async def handle(payload: Any) -> None:
                began.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(worker.run())
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())
    assert queue.counts() == mongoq.Counts(ready=10)


def test_the_end_of_the_event_loop_gives_back_what_a_worker_holds(
    uri: str, database: str, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It cancels all tasks at once: those of the worker's loops, and the one that runs the worker."""
    gc.collect()  # what other tests have left
    caplog.clear()
    queue.push_many(range(10))

    async def work() -> asyncio.Task[None]:
        began = asyncio.Event()
        CLIENTS.append(AsyncMongoClient(uri))
        worker = mongoq.AsyncWorker(mongoq.AsyncBroker(CLIENTS[-1][database]["mongoq"]))

        @worker.consumer("orders", concurrency=2, prefetch=4)
        async def handle(payload: Any) -> None:
            began.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(worker.run())
        await began.wait()
        return task

    assert asyncio.run(work()).cancelled()
    assert queue.counts() == mongoq.Counts(ready=10)
    gc.collect()
    assert "Task was destroyed" not in caplog.text


def test_a_worker_in_a_cancel_scope_has_given_back_all_it_held_when_it_ends(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    """Such a scope cancels again whatever is awaited before its end, unlike ``task.cancel``."""
    queue.push_many(range(10))

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as opened:
            worker = mongoq.AsyncWorker(opened)
            with anyio.CancelScope() as scope:

                @worker.consumer("orders", concurrency=2, prefetch=4)
                async def handle(payload: Any) -> None:
                    scope.cancel()
                    await asyncio.sleep(60)

                await worker.run()
            assert scope.cancelled_caught
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mongoq-")]
            assert queue.counts() == mongoq.Counts(ready=10)

    asyncio.run(work())


def test_a_handler_that_resists_its_cancellation_keeps_nobody_from_stopping(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push(1)

    async def work() -> None:
        resisting, free = 0, asyncio.Event()
        async with mongoq.connect_async(uri, database=database) as opened:
            worker = mongoq.AsyncWorker(opened, grace=0.1)

            @worker.consumer("orders")
            async def handle(payload: Any) -> None:
                nonlocal resisting
                worker.stop()
                while not free.is_set():
                    try:
                        await free.wait()
                    except asyncio.CancelledError:
                        resisting += 1

            await asyncio.wait_for(worker.run(), PATIENCE)
            assert resisting
            free.set()

    asyncio.run(work())
    assert queue.counts() == mongoq.Counts(ready=1)


def test_a_broker_that_is_closed_ends_its_worker(uri: str, database: str) -> None:
    broker = mongoq.connect(uri, database=database)
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(print)
    running = Running(worker.run, worker.stop)
    until(lambda: worker.health().healthy)
    broker.close()
    with pytest.raises(mongoq.BrokerClosed):
        running.join()


def test_a_broker_that_is_closed_while_a_handler_runs_leaves_no_loop_behind(uri: str, database: str) -> None:
    async def work() -> None:
        broker = mongoq.connect_async(uri, database=database)
        opened = await broker
        await opened.queue("orders").push(1)
        worker = mongoq.AsyncWorker(opened, grace=0.5)

        @worker.consumer("orders")
        async def handle(payload: Any) -> None:
            await opened.close()

        with pytest.raises(mongoq.BrokerClosed):
            await asyncio.wait_for(worker.run(), PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())


def test_a_signal_ends_every_worker_of_a_loop_and_calls_who_listened_before(uri: str, database: str) -> None:
    received = []

    async def work() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, received.append, "mine")
        async with mongoq.connect_async(uri, database=database) as broker:
            workers, runs = [mongoq.AsyncWorker(broker) for _ in range(2)], []
            for worker, name in zip(workers, "ab", strict=True):
                await broker.queue(name).push(name)
                worker.consumer(name)(runs.append)
            running = asyncio.gather(*(worker.run() for worker in workers))
            while len(runs) < len(workers):  # they listen by then
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, PATIENCE)
            os.kill(os.getpid(), signal.SIGTERM)
            while len(received) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(work())
    assert received == ["mine", "mine"], "once while they ran, once after"


def test_a_handler_that_leaves_a_cancellation_behind_stops_nobody(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many(range(5))
    payloads = []

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)

            @worker.consumer("orders")
            async def handle(payload: Any) -> None:
                payloads.append(payload)
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

            await asyncio.wait_for(worker.run(drain=True), PATIENCE)

    asyncio.run(work())
    assert sorted(set(payloads)) == list(range(5))
    assert queue.size() == 0


def test_a_handler_that_cancels_its_runner_as_it_rests_stops_nobody(uri: str, database: str) -> None:
    payloads, cancelled = [], list[bool]()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)

            @worker.consumer("orders", concurrency=1)
            async def handle(payload: Any) -> None:
                task = asyncio.current_task()
                assert task is not None
                payloads.append(payload)
                loop.call_later(0.1, lambda: cancelled.append(task.cancel()))

            running = asyncio.create_task(worker.run())
            for count in (1, 2):
                await broker.queue("orders").push(count)
                async with asyncio.timeout(PATIENCE):
                    while len(cancelled) < count:
                        await asyncio.sleep(0.01)
            worker.stop()
            await asyncio.wait_for(running, PATIENCE)

    asyncio.run(work())
    assert payloads == [1, 2]
