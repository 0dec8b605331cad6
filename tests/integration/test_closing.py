"""A broker is closed, and its event loop ends, whatever was cancelled before, and however early."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

import mongoq
from tests.integration.commands import Commands
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_a_program_ends_whose_calls_were_cancelled(uri: str, database: str) -> None:
    command = [sys.executable, "-m", "tests.integration.leaving", uri, database]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert completed.stdout.splitlines() == ["polled", "torn down", "another loop"], completed.stderr
    assert completed.returncode == 0


@pytest.mark.parametrize("group_commit", [True, False])
async def test_close_returns_after_calls_were_cancelled(uri: str, database: str, group_commit: bool) -> None:
    """The calls, and the tasks that send their commands, some of them before their first step."""
    async with AsyncMongoClient[Any](uri) as client:
        for name in ("size", "push", "pop", "reserve", "peek"):
            for steps in range(3):
                broker = mongoq.AsyncBroker(client[database]["mongoq"], group_commit=group_commit)
                method = getattr(broker.queue("orders"), name)
                before = asyncio.all_tasks()
                task = asyncio.create_task(method(1) if name in ("push", "peek") else method())
                for _ in range(steps):
                    await asyncio.sleep(0)
                for each in asyncio.all_tasks() - before:
                    each.cancel()
                await asyncio.wait_for(broker.close(), PATIENCE)
                assert task.done(), (name, steps)


@pytest.mark.parametrize(("when", "command"), [("before", "insert"), ("after", "find"), ("after", "insert")])
async def test_a_replay_whose_broker_is_closed_tells_the_truth(
    uri: str, database: str, when: str, command: str
) -> None:
    commands = Commands()
    async with AsyncMongoClient[Any](uri, event_listeners=[commands]) as client:
        collection = client[database]["mongoq"]
        async with mongoq.AsyncBroker(collection) as filling:
            queue = filling.queue("orders", history=3600)
            await queue.push_many(range(20))
            await queue.commit_many(await queue.reserve_many(20))
        broker = mongoq.AsyncBroker(collection)
        closing: list[asyncio.Task[None]] = []
        setattr(commands, when, lambda name, _: name == command and closing.append(asyncio.create_task(broker.close())))
        replay = asyncio.create_task(broker.queue("orders", history=3600).replay(to="copies"))
        [result] = await asyncio.gather(replay, return_exceptions=True)
        assert closing
        await asyncio.wait(closing)
        copies = await collection.count_documents({"q": "copies"})
        assert isinstance(result, mongoq.BrokerClosed) or (result.pushed, copies) == (20, 20), result


async def test_a_command_whose_task_alone_was_cancelled_leaves_nobody_waiting(uri: str, database: str) -> None:
    async with AsyncMongoClient[Any](uri) as client:
        broker = mongoq.AsyncBroker(client[database]["mongoq"])
        before = asyncio.all_tasks()
        call = asyncio.create_task(broker.ping())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before - {call}:
            task.cancel()  # it has not had its first step
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, PATIENCE)
