"""Items that may have killed their worker: only what dies alone is buried for it, and nobody is held up by it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import PATIENCE, until
from tests.worker.conftest import Desk
from tests.worker.processes import Process

NEIGHBOURS = Path(__file__).with_name("neighbours.py")


@pytest.mark.parametrize("kind", ["threads"])
def test_an_item_that_kills_its_worker_buries_itself_and_nobody_beside_it(
    process: Any, queue: mongoq.Queue[Any], kind: str
) -> None:
    """It dies in each of its runs, and once more alone; its neighbours have died with it twice at most."""
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
        assert deaths <= 4
    handled.update(worker.said("end"))
    assert deaths == 4
    assert set(handled) == set(map(str, range(9)))
    (letter,) = queue.dead.peek(9)
    assert (letter.payload, letter.origin.reason, letter.origin.attempts) == ("poison", "retries exhausted", 3)
    assert max(item.attempts for item in queue.history()) <= 3


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


@pytest.mark.prove
@pytest.mark.parametrize("batch", [(), (16,)], ids=["single", "batches"])
@pytest.mark.parametrize("max_retries", [0, 1, 10])
def test_of_a_thousand_neighbours_of_a_poison_none_is_buried(
    uri: str, database: str, queue: mongoq.Queue[Any], max_retries: int, batch: tuple[int, ...]
) -> None:
    queue.push_many([*range(500), "poison", *range(500, 1000)])
    workers: list[Process] = []

    def alive() -> list[Process]:
        return [worker for worker in workers if worker.process.poll() is None]

    try:
        while not _is_over(queue):
            for _ in range(2 - len(alive())):
                workers.append(Process(uri, database, max_retries, *batch, script=NEIGHBOURS))
            until(lambda: _is_over(queue) or len(alive()) < 2)
    finally:
        for worker in workers:
            worker.close()
    assert [letter.payload for letter in queue.dead.peek(9)] == ["poison"]


def lapsed(raw: Any, ids: list[ObjectId], *, attempts: int = 1) -> None:
    """Make items look as if a worker that held all of them had died a while ago."""
    until, token = datetime.now(UTC) - timedelta(seconds=1), ObjectId()
    dead = {"when": until, "reserved": True, "token": token, "batch": token, "by": "gone:1:0", "attempts": attempts}
    raw.update_many({"_id": {"$in": ids}}, {"$set": dead})


def test_what_has_died_once_runs_beside_others(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    lapsed(raw, queue.push_many(["died", "died"]))
    queue.push_many([1, 2])
    running: list[Any] = []
    together: list[list[Any]] = []

    async def handle(payload: Any) -> None:
        running.append(payload)
        deadline = time.monotonic() + PATIENCE
        while not together and time.monotonic() < deadline:
            if len(running) == 4:
                together.append(list(running))
            await asyncio.sleep(0.001)

    desk.consume("orders", handle, concurrency=4)
    desk.run()
    assert sorted(map(str, together[0])) == ["1", "2", "died", "died"]


def test_of_those_that_died_twice_one_at_a_time_runs_beside_others(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    lapsed(raw, queue.push_many(["died twice"] * 3), attempts=2)
    queue.push_many(["patient", *["healthy"] * 20])
    running: list[str] = []
    seen: list[list[str]] = []
    beside = False

    async def handle(payload: str) -> None:
        nonlocal beside
        running.append(payload)
        deadline = time.monotonic() + PATIENCE
        while payload != "healthy" and not beside and time.monotonic() < deadline:
            beside = {"patient", "died twice"} <= set(running)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)
        seen.append(list(running))
        running.remove(payload)

    desk.consume("orders", handle, concurrency=4)
    desk.run()
    assert beside
    assert len(seen) == 24
    assert all(each.count("died twice") <= 1 for each in seen)


def test_an_item_whose_death_would_bury_it_runs_when_nothing_else_of_the_worker_does(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    other_queue = desk.broker.queue("others")
    ids = queue.push_many(["suspect", "suspect", *range(30)])
    other_queue.push_many(range(30))
    lapsed(raw, ids[:2], attempts=3)
    running: list[Any] = []
    beside: list[list[Any]] = []

    async def handle(payload: Any) -> None:
        running.append(payload)
        for _ in range(5):
            if "suspect" in running:
                beside.append(list(running))
            time.sleep(0.002)
        running.remove(payload)

    desk.consume("orders", handle, concurrency=4, max_retries=2)
    desk.consume("others", handle, concurrency=4)
    desk.run()
    assert beside
    assert all(alongside == ["suspect"] for alongside in beside)


def test_what_had_all_its_runs_alone_is_buried_without_another_one(
    desk: Desk, queue: mongoq.Queue[Any], raw: Any
) -> None:
    (id,) = queue.push_many(["spent"])
    lapsed(raw, [id], attempts=3)
    raw.update_one({"_id": id}, {"$unset": {"batch": ""}})
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
    desk.consume("orders", handle, max_retries=0)
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
