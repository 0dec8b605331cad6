"""Items that may have killed their worker: they run alone, and only what dies alone is buried for it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk


@pytest.mark.parametrize("kind", ["threads"])
def test_an_item_that_kills_its_worker_buries_itself_and_nobody_beside_it(
    process: Any, queue: mongoq.Queue[Any], kind: str
) -> None:
    """Exactly ``max_retries + 1`` deaths, and its neighbours had died with it once at most."""
    queue.configure(history=3600)
    queue.push_many([*range(3), "poison", *range(3, 9)])
    deaths, handled = 0, Counter[str]()
    while True:
        worker = process(kind, 0.01, 20, 2)
        until(lambda worker=worker: worker.process.poll() is not None or _is_over(queue))
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            assert worker.end() == 0
            break
        deaths += worker.end() == -signal.SIGKILL
        handled.update(worker.said("end"))
        assert deaths <= 3
    handled.update(worker.said("end"))
    assert deaths == 3
    assert set(handled) == set(map(str, range(9)))
    (letter,) = queue.dead.peek(9)
    assert (letter.payload, letter.origin.reason, letter.origin.attempts) == ("poison", "retries exhausted", 3)
    assert max(item.attempts for item in queue.history()) <= 2


def _is_over(queue: mongoq.Queue[Any]) -> bool:
    return queue.size() == 0


@pytest.mark.parametrize(("kind", "max_retries", "kills"), [("threads", 0, 1), ("tasks", 1, 2)])
def test_restarts_by_sigkill_bury_nobody(
    process: Any, queue: mongoq.Queue[Any], kind: str, max_retries: int, kills: int
) -> None:
    """An item that has died with others has a run by itself before it."""
    queue.push_many(range(60))
    for _ in range(kills):
        worker = process(kind, 0.02, 20, max_retries)
        # A test that gets no processor for a while finds all items done: fewer than four are then left.
        until(lambda worker=worker: len(worker.said("end")) >= 4 or _is_over(queue))
        worker.close()
    worker = process(kind, 0.005, 20, max_retries)
    until(lambda: _is_over(queue))
    worker.process.send_signal(signal.SIGTERM)
    worker.end()
    assert queue.dead.size() == 0


def lapsed(raw: Any, ids: list[ObjectId]) -> None:
    """Make items look as if their worker had died a while ago."""
    for id in ids:
        until = datetime.now(UTC) - timedelta(seconds=1)
        dead = {"when": until, "reserved": True, "token": ObjectId(), "by": "gone:1:0", "attempts": 1}
        raw.update_one({"_id": id}, {"$set": dead})


def test_a_suspect_runs_when_nothing_else_of_the_worker_does(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    other_queue = desk.broker.queue("others")
    ids = queue.push_many(["suspect", "suspect", *range(30)])
    other_queue.push_many(range(30))
    lapsed(raw, ids[:2])
    running: list[Any] = []
    beside: list[list[Any]] = []

    async def handle(payload: Any) -> None:
        running.append(payload)
        for _ in range(5):
            if "suspect" in running:
                beside.append(list(running))
            time.sleep(0.002)
        running.remove(payload)

    desk.consume("orders", handle, concurrency=4)
    desk.consume("others", handle, concurrency=4)
    desk.run()
    assert beside
    assert all(alongside == ["suspect"] for alongside in beside)


def test_what_had_all_its_runs_alone_is_buried_without_another_one(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    (id,) = queue.push_many(["spent"])
    lapsed(raw, [id])
    raw.update_one({"_id": id}, {"$set": {"attempts": 3}})
    payloads = []

    async def handle(payload: Any) -> None:
        payloads.append(payload)

    desk.consume("orders", handle, max_retries=2)
    desk.run()
    assert payloads == []
    assert [letter.payload for letter in queue.dead.peek(2)] == ["spent"]


def test_a_suspect_does_not_stop_the_others_while_a_long_handler_runs(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    desk.broker.queue("long").push("long")
    go = threading.Event()
    payloads: list[str] = []

    async def handle(payload: str) -> None:
        payloads.append(payload)
        while payload == "long" and not go.is_set():
            await asyncio.sleep(0.01)

    desk.consume("long", handle)
    desk.consume("orders", handle)
    desk.consume("others", handle)
    running = desk.start()
    until(lambda: "long" in payloads)
    queue.pause()
    lapsed(raw, queue.push_many(["suspect"], delay=3600))  # nobody can take it before it is one
    queue.resume()  # wakes the worker
    desk.broker.queue("others").push("other")
    until(lambda: "other" in payloads)
    assert "suspect" not in payloads, "it waits until nothing runs"
    go.set()
    until(lambda: "suspect" in payloads)
    running.stop()
