"""A broker that is used on another event loop than its own: an error, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import mongoq
from tests.waiting import PATIENCE

CALLERS = 5
OTHER_LOOP = "an AsyncBroker, like its client, belongs to the event loop on which it was first used"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("driver, way", [("pymongo", "closed"), ("motor", "stopped")])
def test_nobody_waits_for_calls_of_a_loop_that_has_ended(
    uri: str, database: str, raw: Any, driver: str, way: str
) -> None:
    command = [sys.executable, "-m", "tests.integration.left_behind", uri, database, driver, way]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert completed.stdout.splitlines() == [OTHER_LOOP, "closed"], completed.stderr
    assert raw.count_documents({"payload": "late"}) == 0
    assert "Traceback" not in completed.stderr, completed.stderr


def test_a_loop_beside_that_of_the_broker_is_refused(uri: str, database: str, raw: Any) -> None:
    """A caller that shares a command with others would hear of its end from a thread that must not touch its loop."""
    ready, over = Event(), Event()
    brokers: list[mongoq.AsyncBroker] = []
    pushed: list[Any] = []

    async def busy() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            queue = broker.queue("orders")
            brokers.append(broker)

            async def pusher() -> None:
                while not over.is_set():
                    pushed.append(await queue.push("mine"))
                    ready.set()

            await asyncio.gather(*(pusher() for _ in range(CALLERS)))

    async def other(operation: str) -> None:
        queue, worker = brokers[0].queue("orders"), mongoq.AsyncWorker(brokers[0])
        worker.consumer("orders")(print)
        called = {"push": lambda: queue.push("late"), "reserve": queue.reserve, "count": queue.size, "work": worker.run}
        await asyncio.wait_for(called[operation](), PATIENCE)

    thread = Thread(target=asyncio.run, args=(busy(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        for operation in ("push", "reserve", "count", "work"):
            with pytest.raises(RuntimeError, match=OTHER_LOOP):
                asyncio.run(other(operation))
    finally:
        over.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert raw.count_documents({"payload": "late"}) == 0
    assert raw.count_documents({"payload": "mine"}) == len(pushed), "the others have not noticed"
    assert raw.count_documents({"reserved": True}) == 0
