"""Retryable writes of the driver: the server performs each once, also when its reply is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect

import mongoq
from tests.proxy import Proxy
from tests.waiting import PATIENCE

SENDS = 2
"""Times that the driver sends a write, the first one included."""
POLL = {"serverMonitoringMode": "poll"}


@pytest.fixture
def lossy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """A proxy whose clients look for the server again at once, and not in half a second, after an error."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
    return proxy


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
async def test_what_was_taken_before_its_push_was_confirmed_is_not_pushed_again(
    lossy: Proxy, uri: str, database: str, together: bool
) -> None:
    counts: Counter[int] = Counter()
    async with mongoq.connect_async(lossy.uri_with(**POLL), database=database) as broker, taking(uri, database, counts):
        queue = broker.queue("orders")
        await queue.push(-1)
        for number in range(60):
            lossy.lose("reply", "insert", times=number % SENDS)
            if together:
                await asyncio.gather(*(queue.push(10 * number + place) for place in range(10)))
            else:
                await queue.push(number)
        assert lossy.lost >= 30
        while await queue.size():
            await asyncio.sleep(0.01)
    assert counts == dict.fromkeys(range(-1, 600 if together else 60), 1)


@asynccontextmanager
async def taking(uri: str, database: str, counts: Counter[int]) -> AsyncIterator[None]:
    """A thread that counts what it pops, until the end of the block."""
    over = threading.Event()

    def take() -> None:
        with mongoq.connect(uri, database=database) as broker:
            while not over.is_set():
                if (item := broker.queue("orders").pop()) is not None:
                    counts[item.payload] += 1

    taker = asyncio.create_task(asyncio.to_thread(take))
    try:
        yield
    finally:
        over.set()
        await taker


def test_a_pop_whose_reply_is_lost_takes_one_item(lossy: Proxy, database: str) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(20))
        payloads = []
        for number in range(20):
            lossy.lose("reply", "findAndModify", times=number % SENDS)
            item = queue.pop()
            assert item is not None
            payloads.append(item.payload)
    assert payloads == [*range(20)]


def test_an_item_refused_after_a_lost_reply_is_refused(lossy: Proxy, database: str) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue, id = broker.queue("orders"), ObjectId()
        queue.push("first", id=id)
        lossy.lose("reply", "insert", times=1)
        assert queue.push("second", id=id) == id
        assert [item.payload for item in queue.peek(5)] == ["first"]


def test_a_reply_lost_too_often_is_looked_into(lossy: Proxy, database: str) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push("first")
        lossy.lose("reply", "insert", times=SENDS)
        queue.push("second")
        lossy.lose("request", "insert", times=SENDS)
        with pytest.raises(AutoReconnect):
            queue.push("third")
        queue.push("fourth")
        assert [item.payload for item in queue.peek(5)] == ["first", "second", "fourth"]


def test_what_is_labelled_to_be_sent_again_is(broker: mongoq.Broker, client: Any) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    fault = {"failCommands": ["insert", "findAndModify"], "errorCode": 8000, "errorLabels": ["RetryableWriteError"]}
    try:
        for call in (partial(queue.push, 2), queue.pop, queue.reserve):
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=fault)
            assert call() is not None
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


async def test_a_lone_caller_may_be_cancelled(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        pushed = 0

        async def produce() -> None:
            nonlocal pushed
            while True:
                await queue.push(pushed)
                pushed += 1

        for pause in range(40):
            producer = asyncio.create_task(produce())
            await asyncio.sleep(pause / 1000)
            producer.cancel()
            beside = asyncio.create_task(queue.push("beside"))
            await asyncio.wait([producer])
            await asyncio.wait_for(beside, PATIENCE)
        for _ in range(200):  # a push that was cancelled may still happen
            there = raw.count_documents({"q": "orders", "payload": {"$ne": "beside"}})
            await asyncio.sleep(0.001)
    assert pushed <= there <= pushed + 40
    assert raw.count_documents({"payload": "beside"}) == 40


async def test_a_broker_that_closes_waits_for_a_lone_caller(uri: str, database: str, client: Any, raw: Any) -> None:
    slow = {"failCommands": ["insert"], "appName": database, "blockConnection": True, "blockTimeMS": 700}
    broker = await mongoq.connect_async(f"{uri}{'&' if '?' in uri else '/?'}appName={database}", database=database)
    queue = broker.queue("orders")
    sending = asyncio.Event()

    async def produce() -> None:
        await queue.push(1)
        await queue.push(2)
        sending.set()
        await queue.push(3)

    client.admin.command("configureFailPoint", "failCommand", mode={"skip": 2}, data=slow)
    try:
        producer = asyncio.create_task(produce())
        await sending.wait()
        await asyncio.sleep(0.2)
        await broker.close()
        payloads = [document["payload"] for document in raw.find({"q": "orders"}).sort("_id")]
        await producer
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert payloads == [1, 2, 3], "close() waits for what is under way"
