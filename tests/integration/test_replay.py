"""Replay and history on a real server: plans beside a lot of items, kills, lost replies, items of any size."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bson import Decimal128, ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandListener, CommandStartedEvent, CommandSucceededEvent
from pymongo.write_concern import WriteConcern

import mongoq
from tests.integration.test_plans import Watched
from tests.proxy import Proxy
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEPTH = 20_000
PAGE = 50


@pytest.fixture(scope="module")
def deep(uri: str, client: MongoClient[Any]) -> Iterator[Watched]:
    """A queue with 20,000 ready and 20,000 processed items of ten priorities, five of them processed in one moment."""
    watched = Watched(uri, "test_replay_plans")
    watched.broker.ensure_indexes()
    fast = watched.collection.with_options(write_concern=WriteConcern(w=1))
    now = datetime.now(UTC)
    for state in ("ready", "processed"):
        fast.insert_many([_envelope(state, n, now) for n in range(DEPTH)], ordered=False)
    yield watched
    watched.client.drop_database("test_replay_plans")
    watched.client.close()


def _envelope(state: str, n: int, now: datetime) -> dict[str, Any]:
    document = {"_id": ObjectId(), "q": "orders", "payload": {"n": n}, "priority": n % 10 - 5, "attempts": 0}
    document["reserved"] = False
    then = now - timedelta(milliseconds=n // 5)
    return document | ({"when": then} if state == "ready" else {"processed": then, "expires": now + timedelta(days=1)})


def _far_into(pages: Iterator[Any], items: int) -> None:
    for _ in range(items):
        next(pages)


@pytest.mark.parametrize("where", [None, {"n": {"$gte": 0}}, {"$or": [{"n": {"$lt": 5}}, {"n": {"$gt": 4}}]}], ids=str)
def test_a_page_of_history_costs_a_page(deep: Watched, where: Any) -> None:
    _far_into(deep.queue.history(where=where, page=PAGE), 1000)
    plan = deep.plan("find")
    assert "SORT" not in plan.stages
    assert "COLLSCAN" not in plan.stages
    assert "IXSCAN" in plan.stages
    assert plan.keys <= PAGE + 7
    assert plan.documents <= PAGE + 7


@pytest.mark.parametrize("where", [None, {"n": {"$gte": 0}}, {"$or": [{"n": {"$lt": 5}}, {"n": {"$gt": 4}}]}], ids=str)
@pytest.mark.parametrize("state", ["ready", None])
def test_a_page_of_live_items_costs_a_page(deep: Watched, state: Any, where: Any) -> None:
    _far_into(deep.queue.history(state=state, where=where, page=PAGE), 9000)
    plan = deep.plan("find")
    assert "SORT" not in plan.stages
    assert "COLLSCAN" not in plan.stages
    assert plan.keys <= 2 * PAGE + 40
    assert plan.documents <= 2 * PAGE + 40


def test_a_replay_costs_what_it_copies(deep: Watched) -> None:
    result = deep.queue.replay(to="copies", since=datetime.now(UTC) - timedelta(seconds=30), limit=200, page=PAGE)
    assert result.pushed == 200
    plan = deep.plan("find")
    assert plan.stages == ["LIMIT", "PROJECTION_SIMPLE", "FETCH", "IXSCAN"]
    assert plan.keys <= PAGE + 7


def test_a_replay_by_ids_reads_those(deep: Watched) -> None:
    ids = [item.id for item in deep.queue.peek(20, state="processed")]
    assert deep.queue.replay(to="chosen", ids=ids).pushed == 20
    plan = deep.plan("find")
    assert "IXSCAN" in plan.stages
    assert plan.documents <= 20
    assert plan.keys <= 41


def test_history_is_whole_while_others_work(uri: str, database: str) -> None:
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders", history=3600)
        ids = [queue.push(n) for n in range(300)]
        for _ in range(100):
            queue.pop()
        threads = [threading.Thread(target=lambda: [queue.pop() for _ in range(100)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        in_history = [item.id for item in queue.history(page=7)]
        for thread in threads:
            thread.join()
    assert max(Counter(in_history).values()) == 1
    assert set(ids[:100]) <= set(in_history) <= set(ids)


@pytest.mark.parametrize("state", ["processed", "ready"])
def test_pages_of_large_items_are_whole(broker: mongoq.Broker, state: Any) -> None:
    """A reply holds 16 MB, so a page is shorter than asked for, and the next goes on from there."""
    queue = broker.queue("orders", history=3600)
    for n in range(7):
        queue.push({"n": n, "text": "x" * 5_000_000})
        if state == "processed":
            queue.pop()
    assert [item.payload["n"] for item in queue.history(state=state)] == list(range(7))
    if state == "processed":
        assert queue.replay(to="next").pushed == 7
        assert [item.payload["n"] for item in broker.queue("next").history(state="ready")] == list(range(7))


def test_a_rate_is_kept(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=3600)
    for n in range(20):
        queue.push(n)
        queue.pop()
    started = time.monotonic()
    assert queue.replay(to="next", rate=40).pushed == 20
    assert time.monotonic() - started >= 0.25
    started = time.monotonic()  # at this rate, twenty would take 2,000 seconds
    assert queue.replay(to="next", rate=0.01).already == 20
    assert queue.replay(to="other", rate=0.01, dry_run=True).pushed == 20
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_lost_insert_is_sent_again_and_pushes_each_once(lossy: tuple[Proxy, Any], raw: Any, kind: Any) -> None:
    """Where the driver sends nothing a second time, and so nothing has a number."""
    proxy, collection = lossy
    queue = mongoq.Broker(collection).queue("orders", history=3600)
    for n in range(10):
        queue.push(n)
        queue.pop()
    proxy.lose(kind, "insert")
    result = queue.replay(to="next")
    assert proxy.lost
    assert (result.pushed, result.already) == ((10, 0) if kind == "request" else (0, 10))
    assert sorted(copy["payload"] for copy in raw.find({"q": "next"})) == list(range(10))


def test_what_was_pushed_is_counted_exactly_although_a_reply_was_lost(uri: str, database: str) -> None:
    """The driver's retry tells what the first command did, which no second one of ours could know."""
    with Proxy(uri) as proxy, MongoClient[Any](proxy.uri, tz_aware=True) as client:
        queue = mongoq.Broker(client[database]["mongoq"]).queue("orders", history=3600)
        queue.push("done")
        queue.pop()
        proxy.lose("reply", "insert")
        result = queue.replay(to="next")
        assert (result.pushed, result.already) == (1, 0)
        assert proxy.lost


@pytest.mark.parametrize("skip", range(3))
@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_lost_page_is_read_again(lossy: tuple[Proxy, Any], raw: Any, kind: Any, skip: int) -> None:
    proxy, collection = lossy
    queue = mongoq.Broker(collection).queue("orders", history=3600)
    queue.push_many(range(10))
    queue.commit_many(queue.reserve_many(10))
    proxy.lose(kind, "find", skip=skip)
    result = queue.replay(to="next", page=4)
    assert proxy.lost
    assert (result.found, result.pushed + result.already) == (10, 10)
    assert sorted(copy["payload"] for copy in raw.find({"q": "next"})) == list(range(10))


class Reads(CommandListener):
    """Tells how many reads of history had begun by the time that each insert of copies was done."""

    def __init__(self) -> None:
        self.reads = 0
        self.by_the_end: list[int] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.reads += "sort" in event.command and "processed" in event.command["sort"]

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if event.command_name == "insert":
            self.by_the_end.append(self.reads)

    def failed(self, event: Any) -> None:
        pass


@pytest.mark.parametrize(("limit", "reads"), [(None, [3, 4, 4]), (10, [3, 3, 3]), (8, [2, 2]), (3, [1])])
def test_while_copies_are_pushed_the_next_are_made_and_the_page_after_them_is_read_unless_there_is_none(
    uri: str, client: Any, database: str, limit: int | None, reads: list[int]
) -> None:
    listener = Reads()
    slow = {"failCommands": ["insert"], "appName": database, "blockConnection": True, "blockTimeMS": 300}
    with MongoClient[Any](uri, event_listeners=[listener], appname=database) as own:
        queue = mongoq.Broker(own[database]["mongoq"]).queue("orders", history=3600)
        queue.push_many(range(12))
        queue.commit_many(queue.reserve_many(12))
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)
        try:
            listener.reads, listener.by_the_end = 0, []
            queue.replay(to="next", page=4, limit=limit)
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert listener.by_the_end == reads


REPLAY = """
import sys, time, mongoq
uri, database = sys.argv[1:]
with mongoq.connect(uri, database=database) as broker:
    def report(result):
        print(result.pushed, flush=True)
        if result.pushed >= 90:
            time.sleep(3600)  # so that a kill that comes late comes in between as well
    broker.queue("orders").replay(to="next", page=5, rate=100, progress=report)
"""


def test_killed_in_between_and_sent_again_it_pushes_each_once(uri: str, database: str, broker: mongoq.Broker) -> None:
    """Three kills; the first copies are done long before the last ones come, and only their ids are left."""
    queue = broker.queue("orders", history=3600)
    for n in range(300):
        queue.push(n)
        queue.pop()
    payloads: list[int] = []
    following = broker.queue("next")
    for _ in range(3):
        process = _replaying(uri, database, chunks=8)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        while len(payloads) < 10_000 and (item := following.pop()) is not None:
            payloads.append(item.payload)
    assert 100 <= len(payloads) < 300
    result = queue.replay(to="next")
    assert result.found == 300
    assert result.already >= len(payloads)
    while (item := following.pop()) is not None:
        payloads.append(item.payload)
    assert payloads == list(range(300))


def _replaying(uri: str, database: str, *, chunks: int) -> subprocess.Popen[str]:
    """A process in the middle of a replay that has added something."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", REPLAY, uri, database], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    added = set()
    while len(added) < chunks:
        added.add(process.stdout.readline())
    return process


async def test_a_cancelled_replay_leaves_nothing_behind_and_the_next_one_completes_it(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders", history=3600)
        for number in range(3):
            await queue.push_many(range(number * 100, (number + 1) * 100))
            await queue.commit_many(await queue.reserve_many(100))
        for step in range(1, 30):
            replaying = asyncio.ensure_future(queue.replay(to="next", page=10))
            await asyncio.sleep(step / 1000)
            replaying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await replaying
        result = await queue.replay(to="next", page=10)
        assert result.found == result.pushed + result.already == 300
        assert [item.payload for item in await broker.queue("next").reserve_many(300)] == list(range(300))


@pytest.mark.parametrize("page", [1, 2, 3])
def test_no_page_ends_before_ids_of_another_type(uri: str, database: str, client: MongoClient[Any], page: int) -> None:
    """Other programs may use any; those of one moment stand in the order of their types."""
    ids: list[Any] = [None, float("nan"), Decimal128("1.5"), 2.5, 7, "s", {"a": 1}, b"x", uuid4(), ObjectId()]
    then = datetime.now(UTC) - timedelta(minutes=1)
    documents = [{"_id": id, "q": "orders", "processed": then, "payload": n} for n, id in enumerate(ids)]
    with mongoq.connect(uri, database=database) as broker:
        client[database]["mongoq"].insert_many(documents)
        queue = broker.queue("orders", history=timedelta(days=1))
        assert [item.payload for item in queue.history(page=page)] == list(range(len(ids)))
        result = queue.replay(to="copies", page=page)
        assert (result.found, result.pushed) == (len(ids), len(ids))
