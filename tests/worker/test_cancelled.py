"""A worker's tasks that somebody else cancels: the worker goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from pymongo import AsyncMongoClient

import mongoq
from tests.integration.commands import Commands

PATIENCE = 60
OWN = tuple(f"mongoq-{loop}" for loop in ("beat", "drain", "fetch", "keep", "read", "run", "settle", "source"))
"""What the names of a worker's own tasks begin with; to cancel the task of a pipeline's run is to end that."""


async def cancel_each_once(work: Coroutine[Any, Any, Any]) -> set[str]:
    """Do some work, each of whose tasks is cancelled as soon as it is there; return their names."""
    task = asyncio.create_task(work)
    names: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        while not task.done():
            for each_task in asyncio.all_tasks():
                name = each_task.get_name()
                if name.startswith(OWN) and name not in names:
                    names.add(name)
                    each_task.cancel()
            await asyncio.sleep(0)
    await task
    return names


async def test_a_worker_goes_on_whose_tasks_were_cancelled_before_they_began(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue, payloads = broker.queue("orders"), []
        worker = mongoq.AsyncWorker(broker)

        @worker.consumer("orders", concurrency=3)
        async def handle(payload: int) -> None:
            payloads.append(payload)

        await queue.push_many(list(range(20)))
        names = await cancel_each_once(worker.run(drain=True))
        assert {"mongoq-fetch-orders", "mongoq-settle-orders", "mongoq-run-orders-1", "mongoq-drain"} <= names
        assert sorted(payloads) == list(range(20))
        assert await queue.size() == 0


async def test_a_source_is_read_whose_task_was_cancelled_before_it_began(uri: str, database: str) -> None:
    pipeline = mongoq.Pipeline("numbers")
    payloads = []

    @pipeline.source(to="orders")
    async def rows(position: int | None) -> AsyncIterator[mongoq.Record]:
        for number in range(position or 0, 20):
            yield mongoq.Record(number, position=number + 1)

    @pipeline.sink("orders")
    async def handle(payload: int) -> None:
        payloads.append(payload)

    async with mongoq.connect_async(uri, database=database) as broker:

        async def drained() -> None:
            await pipeline.drain_async(broker)

        names = await cancel_each_once(drained())
        assert {"mongoq-read-rows", "mongoq-source-rows", "mongoq-fetch-orders"} <= names
    assert payloads == list(range(20))


async def test_a_plain_function_whose_task_is_cancelled_is_waited_for(uri: str, database: str) -> None:
    """Nothing can end its thread: an item that failed meanwhile would run twice at the same time."""
    payloads: list[int] = []
    began, free = threading.Event(), threading.Event()
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        worker = mongoq.AsyncWorker(broker)

        @worker.consumer("orders", max_retries=0)
        def handle(payload: int) -> None:
            payloads.append(payload)
            began.set()
            free.wait(PATIENCE)

        await queue.push_many([1, 2])
        running = asyncio.create_task(worker.run(drain=True))
        await asyncio.to_thread(began.wait, PATIENCE)
        for _ in range(2):
            [runner] = [task for task in asyncio.all_tasks() if task.get_name().startswith("mongoq-run-")]
            runner.cancel()
            await asyncio.sleep(0.1)
        free.set()
        await asyncio.wait_for(running, PATIENCE)
        assert payloads == [1, 2]
        assert await queue.dead.size() == 0


async def test_a_worker_that_is_cancelled_again_gives_back_what_it_claims(uri: str, database: str, raw: Any) -> None:
    commands = Commands()
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri, event_listeners=[commands])
    async with client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders", lease=600)
        await queue.push_many(range(5))
        worker = mongoq.AsyncWorker(broker)

        @worker.consumer("orders", concurrency=2)
        async def handle(_payload: int) -> None: ...

        claimed = asyncio.Event()
        commands.before = lambda name, body: name == "update" and "batch" in str(body) and claimed.set()
        running = asyncio.create_task(worker.run())
        await claimed.wait()
        commands.before = None
        while not running.done():
            running.cancel()
            await asyncio.sleep(0.001)
    assert raw.count_documents({"reserved": True}) == 0


@pytest.mark.parametrize("way", ["stop", "cancel"])
async def test_permits_of_cancelled_handlers_are_free_at_once(uri: str, database: str, way: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue, begun = broker.queue("orders", lease=600), []
        await queue.push_many(range(6))
        worker = mongoq.AsyncWorker(broker, grace=0.1)

        @worker.consumer(queue, concurrency=3, max_running=3)
        async def handle(payload: int) -> None:
            begun.append(payload)
            await asyncio.sleep(3600)

        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE):
            while len(begun) < 3:
                await asyncio.sleep(0.01)
        worker.stop() if way == "stop" else running.cancel()
        await asyncio.wait([running])
        limits = await queue.limits()
        assert (limits.permits, limits.reason) == (0, None)
        assert (await queue.counts()).ready == 6


async def test_a_cancellation_while_a_worker_ends_is_not_lost(uri: str, database: str) -> None:
    begun, given_up, free = asyncio.Event(), asyncio.Semaphore(0), asyncio.Event()
    async with mongoq.connect_async(uri, database=database) as broker:
        await broker.queue("orders").push(1)
        worker = mongoq.AsyncWorker(broker, grace=0.1)

        @worker.consumer("orders")
        async def handle(_payload: int) -> None:
            begun.set()
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:  # it resists
                    given_up.release()

        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop()
        for _ in range(2):  # after the grace, and once more at the very end
            await given_up.acquire()
        running.cancel()
        await asyncio.sleep(0)
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await running
