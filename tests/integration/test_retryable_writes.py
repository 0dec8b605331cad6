"""Retryable writes of the driver: the server performs each once, also when its reply is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect, NotPrimaryError

import mongoq
from tests.integration.commands import Commands, failing
from tests.proxy import Proxy
from tests.waiting import PATIENCE

SENDS = 2
"""Times that the driver sends a write, the first one included."""
POLL = {"serverMonitoringMode": "poll"}

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
async def test_what_was_taken_before_its_push_was_confirmed_is_not_pushed_again(
    proxy: Proxy, uri: str, database: str, together: bool
) -> None:
    counts: Counter[int] = Counter()
    async with mongoq.connect_async(proxy.uri_with(**POLL), database=database) as broker, taking(uri, database, counts):
        queue = broker.queue("orders")
        await queue.push(-1)
        for number in range(20):
            proxy.lose("reply", "insert", times=number % SENDS)
            if together:
                await asyncio.gather(*(queue.push(10 * number + place) for place in range(10)))
            else:
                await queue.push(number)
        assert proxy.lost >= 10
        while await queue.size():
            await asyncio.sleep(0.01)
    assert counts == dict.fromkeys(range(-1, 200 if together else 20), 1)


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


def test_a_pop_whose_reply_is_lost_takes_one_item(proxy: Proxy, database: str) -> None:
    with mongoq.connect(proxy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(6))
        payloads = []
        for number in range(6):
            proxy.lose("reply", "findAndModify", times=number % SENDS)
            item = queue.pop()
            assert item is not None
            payloads.append(item.payload)
    assert payloads == [*range(6)]
    assert proxy.lost == 3


def test_a_reply_lost_too_often_is_looked_into(proxy: Proxy, database: str) -> None:
    with mongoq.connect(proxy.uri_with(**POLL), database=database) as broker:
        queue, id = broker.queue("orders"), ObjectId()
        queue.push("first", id=id)
        proxy.lose("reply", "insert", times=1)
        assert queue.push("refused", id=id) == id
        proxy.calm()
        proxy.lose("reply", "insert", times=SENDS)
        queue.push("second")
        proxy.lose("request", "insert", times=SENDS)
        with pytest.raises(AutoReconnect):
            queue.push("third")
        queue.push("fourth")
        assert [item.payload for item in queue.peek(5)] == ["first", "second", "fourth"]


def test_what_is_labelled_to_be_sent_again_is(broker: mongoq.Broker, client: Any) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    for call in (partial(queue.push, 2), queue.pop, queue.reserve):
        with failing(client, "insert", "findAndModify", errorCode=8000, errorLabels=["RetryableWriteError"]):
            assert call() is not None


async def test_a_lone_caller_may_be_cancelled(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        pushed = 0

        async def produce() -> None:
            nonlocal pushed
            while True:
                await queue.push(pushed)
                pushed += 1

        for pause in range(10):
            producer = asyncio.create_task(produce())
            await asyncio.sleep(pause / 1000)
            producer.cancel()
            beside = asyncio.create_task(queue.push("beside"))
            await asyncio.wait([producer])
            await asyncio.wait_for(beside, PATIENCE)
    there = raw.count_documents({"q": "orders", "payload": {"$ne": "beside"}})
    assert pushed <= there <= pushed + 10  # a push that was cancelled may still have happened
    assert raw.count_documents({"payload": "beside"}) == 10


async def test_a_broker_that_closes_waits_for_a_lone_caller(uri: str, database: str, client: Any, raw: Any) -> None:
    commands, sending = Commands(), asyncio.Event()
    commands.before = lambda name, body: sending.set() if name == "insert" and "late" in str(body) else None
    own: AsyncMongoClient[Any] = AsyncMongoClient(uri, appname=database, event_listeners=[commands])
    async with own:
        broker = mongoq.AsyncBroker(own[database]["mongoq"])
        queue = broker.queue("orders")
        await queue.push("early")
        with failing(client, "insert", appName=database, blockConnection=True, blockTimeMS=300):
            producer = asyncio.create_task(queue.push("late"))
            await asyncio.wait_for(sending.wait(), PATIENCE)
            await broker.close()
            payloads = [document["payload"] for document in raw.find({"q": "orders"}).sort("_id")]
            await producer
    assert payloads == ["early", "late"], "close() waits for what is under way"


STEPPING_DOWN = {
    "writeConcernError": {"code": 11602, "errmsg": "operation was interrupted"},
    "errorLabels": ["RetryableWriteError"],
}
"""What a primary adds to its reply when it steps down before the write was confirmed."""


@pytest.mark.parametrize("history", [None, 60])
def test_a_pop_that_a_primary_does_not_confirm_as_it_steps_down_takes_one_item(
    proxy: Proxy, database: str, client: Any, history: int | None
) -> None:
    with mongoq.connect(proxy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders", history=history)
        queue.push_many(range(3))
        payloads = []
        for _ in range(3):
            with failing(client, "findAndModify", **STEPPING_DOWN):
                item = queue.pop()
            assert item is not None
            payloads.append(item.payload)
    assert payloads == [0, 1, 2]


async def test_so_does_one_from_asyncio(proxy: Proxy, database: str, client: Any) -> None:
    async with mongoq.connect_async(proxy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(2))
        with failing(client, "findAndModify", **STEPPING_DOWN):
            items = [await queue.pop(), await queue.pop()]
    assert [item and item.payload for item in items] == [0, 1]


def test_the_error_of_a_pop_quotes_a_readable_reply(proxy: Proxy, database: str, client: Any) -> None:
    with mongoq.connect(proxy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many([1, 2])
        assert queue.pop() is not None
        refusal = {"errorCode": 10107, "errorLabels": ["RetryableWriteError"]}
        with (
            failing(client, "findAndModify", times=SENDS, **refusal),
            pytest.raises(NotPrimaryError, match="failCommand") as caught,
        ):
            queue.pop()
        assert "RawReply" not in str(caught.value)
        assert queue.pop() is not None
