"""A broker is closed, and its event loop ends, whatever was cancelled before, and however early."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

import mongoq
from mongoq.drivers import counter_flush

ROOT = Path(__file__).parents[2]
PATIENCE = 60


@pytest.mark.parametrize("way", ["cancelled", "polled", "torn down", "another loop"])
def test_a_program_ends_whose_calls_were_cancelled(uri: str, database: str, way: str) -> None:
    command = [sys.executable, "-m", "tests.integration.leaving", uri, database, way]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert completed.stdout.splitlines() == ["closed", "ended"], completed.stderr
    assert completed.returncode == 0


@pytest.fixture(params=[True, False], ids=["group commit", "each by itself"])
async def fresh(request: pytest.FixtureRequest, uri: str, database: str) -> AsyncIterator[mongoq.AsyncBroker]:
    """A broker that has sent nothing yet."""
    async with AsyncMongoClient(uri) as client:
        yield mongoq.AsyncBroker(client[database]["mongoq"], group_commit=request.param)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("call", ["size", "push", "pop", "reserve", "peek"])
async def test_close_returns_after_calls_were_cancelled(fresh: mongoq.AsyncBroker, call: str, steps: int) -> None:
    queue = fresh.queue("orders")
    calls: dict[str, Any] = {"push": lambda: queue.push(1), "peek": lambda: queue.peek(3)}
    before = asyncio.all_tasks()
    task = asyncio.create_task(calls.get(call, getattr(queue, call))())
    for _ in range(steps):
        await asyncio.sleep(0)
    for each in asyncio.all_tasks() - before:
        each.cancel()
    await asyncio.wait_for(fresh.close(), PATIENCE)
    assert task.done()


async def test_a_command_whose_task_alone_was_cancelled_leaves_nobody_waiting(fresh: mongoq.AsyncBroker) -> None:
    before = asyncio.all_tasks()
    call = asyncio.create_task(fresh.ping())
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - before - {call}:
        task.cancel()  # it has not had its first step
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, PATIENCE)


async def test_the_change_stream_is_read_after_its_first_reader_was_cancelled_before_it_began(
    uri: str, database: str
) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue, registry = broker.queue("orders"), broker._context.registry
        await queue.push(0)
        await queue.pop()
        waiting = asyncio.create_task(queue.reserve(wait=PATIENCE))
        while not registry.running:
            await asyncio.sleep(0)
        for task in list(broker._driver._performer._side_tasks):
            task.cancel()  # it has not had its first step
        first = registry.running
        while registry.cursor is None or registry.running == first:
            assert not waiting.done()
            await asyncio.sleep(0.01)
        await queue.push(1)
        item = await waiting
        assert item is not None
        await queue.commit(item)


async def test_counters_are_written_after_their_task_was_cancelled_before_it_began(
    uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter_flush, "FLUSH_INTERVAL_SECONDS", 0.05)
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push(1)
        tasks = broker._driver._performer._tasks
        async with asyncio.timeout(PATIENCE):
            while not (writes := [task for task in tasks if task.get_coro().__name__ == "_write_counters"]):
                await asyncio.sleep(0)
        (write,) = writes
        assert inspect.getcoroutinestate(write.get_coro()) == inspect.CORO_CREATED
        write.cancel()
        await queue.push(2)
        async with asyncio.timeout(PATIENCE):
            while broker._context.counters:
                await asyncio.sleep(0.01)
