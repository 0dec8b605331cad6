"""Replay and history on a real server: kills, lost replies, items of any size, ids of any type."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bson import Decimal128, ObjectId
from pymongo import MongoClient

import mongoq
from tests.proxy import Proxy

ROOT = Path(__file__).parents[2]


def fill_history(queue: mongoq.Queue[Any], number: int) -> None:
    """Push and commit so many items, in order."""
    for start in range(0, number, 100):
        queue.push_many(range(start, min(start + 100, number)))
        queue.commit_many(queue.reserve_many(100))


def test_history_is_whole_while_others_work(uri: str, database: str) -> None:
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders", history=3600)
        ids = queue.push_many(range(120))
        for _ in range(40):
            queue.pop()
        threads = [threading.Thread(target=lambda: [queue.pop() for _ in range(40)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        in_history = [item.id for item in queue.history(page=7)]
        for thread in threads:
            thread.join()
    assert max(Counter(in_history).values()) == 1
    assert set(ids[:40]) <= set(in_history) <= set(ids)


def test_pages_of_large_items_are_whole(broker: mongoq.Broker) -> None:
    """A reply holds 16 MB, so a page is shorter than asked for, and the next goes on from there."""
    queue = broker.queue("orders", history=3600)
    for n in range(5):
        queue.push({"n": n, "text": "x" * 5_000_000})
        queue.pop()
    assert [item.payload["n"] for item in queue.history()] == list(range(5))
    assert queue.replay(to="next").pushed == 5
    assert [item.payload["n"] for item in broker.queue("next").history(state="ready")] == list(range(5))


def test_a_rate_is_kept(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=3600)
    fill_history(queue, 20)
    started = time.monotonic()
    assert queue.replay(to="next", rate=40).pushed == 20
    assert time.monotonic() - started >= 0.25
    # At this rate twenty would take 2,000 seconds: what is there already, or not pushed at all, costs no time.
    assert queue.replay(to="next", rate=0.01).already == 20
    assert queue.replay(to="other", rate=0.01, dry_run=True).pushed == 20


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_lost_insert_is_sent_again_and_pushes_each_once(lossy: tuple[Proxy, Any], raw: Any, kind: Any) -> None:
    """Where the driver sends nothing a second time, and so nothing has a number."""
    proxy, collection = lossy
    queue = mongoq.Broker(collection).queue("orders", history=3600)
    fill_history(queue, 10)
    proxy.lose(kind, "insert")
    result = queue.replay(to="next")
    assert proxy.lost
    assert (result.pushed, result.already) == ((10, 0) if kind == "request" else (0, 10))
    assert sorted(copy["payload"] for copy in raw.find({"q": "next"})) == list(range(10))


@pytest.mark.usefixtures("impatient")
def test_what_was_pushed_is_counted_exactly_although_a_reply_was_lost(proxy: Proxy, database: str) -> None:
    """The driver's retry tells what the first command did, which no second one of ours could know."""
    with MongoClient[Any](proxy.uri_with(serverMonitoringMode="poll"), tz_aware=True) as client:
        queue = mongoq.Broker(client[database]["mongoq"]).queue("orders", history=3600)
        fill_history(queue, 1)
        proxy.lose("reply", "insert")
        result = queue.replay(to="next")
        assert (result.pushed, result.already) == (1, 0)
        assert proxy.lost


@pytest.mark.parametrize(("kind", "skip"), [("request", 1), ("reply", 2)])
def test_a_lost_page_is_read_again(lossy: tuple[Proxy, Any], raw: Any, kind: Any, skip: int) -> None:
    proxy, collection = lossy
    queue = mongoq.Broker(collection).queue("orders", history=3600)
    fill_history(queue, 10)
    proxy.lose(kind, "find", skip=skip)
    result = queue.replay(to="next", page=4)
    assert proxy.lost
    assert (result.found, result.pushed + result.already) == (10, 10)
    assert sorted(copy["payload"] for copy in raw.find({"q": "next"})) == list(range(10))


REPLAY = """
import sys, time, mongoq
uri, database = sys.argv[1:]
with mongoq.connect(uri, database=database) as broker:
    def report(result):
        print(result.pushed, flush=True)
        if result.pushed >= 40:
            time.sleep(3600)  # it is killed before it has copied all
    broker.queue("orders").replay(to="next", page=5, progress=report)
"""


def test_killed_in_between_and_sent_again_it_pushes_each_once(uri: str, database: str, broker: mongoq.Broker) -> None:
    """The first copies are done before the last ones come, and only their ids are left."""
    queue, following = broker.queue("orders", history=3600), broker.queue("next")
    fill_history(queue, 100)
    process = subprocess.Popen(
        [sys.executable, "-c", REPLAY, uri, database],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 20:
        pass
    process.kill()
    process.communicate()
    payloads: list[int] = []
    while (item := following.pop()) is not None:
        payloads.append(item.payload)
    assert 20 <= len(payloads) < 100
    result = queue.replay(to="next")
    assert result.found == 100
    assert result.already >= len(payloads)
    while (item := following.pop()) is not None:
        payloads.append(item.payload)
    assert payloads == list(range(100))


async def test_a_cancelled_replay_leaves_nothing_behind_and_the_next_one_completes_it(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders", history=3600)
        await queue.push_many(range(100))
        await queue.commit_many(await queue.reserve_many(100))
        for step in range(1, 20, 3):
            replaying = asyncio.ensure_future(queue.replay(to="next", page=10))
            await asyncio.sleep(step / 1000)
            replaying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await replaying
        result = await queue.replay(to="next", page=10)
        assert result.found == result.pushed + result.already == 100
        assert [item.payload for item in await broker.queue("next").reserve_many(300)] == list(range(100))


def test_no_page_ends_before_ids_of_another_type(broker: mongoq.Broker, raw: Any) -> None:
    """Other programs may use any; those of one moment stand in the order of their types."""
    ids: list[Any] = [None, float("nan"), Decimal128("1.5"), 2.5, 7, "s", {"a": 1}, b"x", uuid4(), ObjectId()]
    then = datetime.now(UTC) - timedelta(minutes=1)
    raw.insert_many([{"_id": id, "q": "orders", "processed": then, "payload": n} for n, id in enumerate(ids)])
    queue = broker.queue("orders", history=timedelta(days=1))
    for page in (1, 2, 3):
        assert [item.payload for item in queue.history(page=page)] == list(range(len(ids)))
        result = queue.replay(to=f"copies {page}", page=page)
        assert (result.found, result.pushed) == (len(ids), len(ids))
