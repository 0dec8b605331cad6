"""Shared commands whose messages are lost, or that fail: each caller gets the outcome of its own part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect, OperationFailure

import mongoq
from tests.integration.commands import Commands, failing
from tests.integration.concurrent_callers import ConcurrentCallers, calls
from tests.proxy import Proxy
from tests.waiting import PATIENCE

Listened = tuple[mongoq.AsyncBroker, Commands]


@pytest.fixture
async def behind(proxy: Proxy, database: str, impatient: None) -> AsyncIterator[mongoq.AsyncBroker]:
    """A broker behind the proxy."""
    uri = proxy.uri_with(serverMonitoringMode="poll")
    async with mongoq.connect_async(uri, database=database) as broker:
        yield broker


@pytest.mark.parametrize("kind", ["request", "reply"])
async def test_a_shared_command_whose_message_is_lost_tells_each_caller(
    behind: mongoq.AsyncBroker, proxy: Proxy, raw: Any, kind: Any
) -> None:
    queue = behind.queue("orders", history=60)
    await queue.push("first")
    proxy.lose(kind, "insert", times=1)
    ids = await asyncio.gather(*(queue.push(n) for n in range(30)))
    assert raw.count_documents({"_id": {"$in": ids}}) == 30
    proxy.lose(kind, "update", times=2)
    items = await asyncio.gather(*(queue.reserve() for _ in range(30)))
    assert len({item.id for item in items if item is not None}) == 30
    proxy.lose(kind, "update", times=1)
    assert await asyncio.gather(*(queue.commit(item) for item in items if item is not None)) == [None] * 30
    assert raw.count_documents({"processed": {"$exists": True}}) == 30
    assert proxy.lost == 4


@pytest.mark.parametrize("callers", ["aio"], indirect=True)  # among threads it is chance which one sends
async def test_a_callers_timeout_is_not_that_of_the_others(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue()
    await queue.push("first")
    await asyncio.sleep(0.01)  # what sent it has ended, and the next one begins with who is in a hurry

    async def hurried() -> Any:
        with pymongo.timeout(0.000_001):
            return await queue.push("hurried")

    ids = await asyncio.gather(hurried(), *(queue.push(n) for n in range(5)))
    assert raw.count_documents({"_id": {"$in": ids}}) == 6


@pytest.mark.parametrize("command", ["insert", "delete"])
async def test_an_error_of_all_is_raised_by_each_for_itself(
    listened: Listened, client: Any, database: str, command: str
) -> None:
    queue = listened[0].queue("orders")
    await asyncio.gather(*(queue.push(n) for n in range(5)))
    items: list[Any] = await asyncio.gather(*(queue.reserve() for _ in range(5)))
    calls = [queue.push(item.payload) if command == "insert" else queue.commit(item) for item in items]
    with failing(client, command, errorCode=13, appName=database):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [error.code for error in results if isinstance(error, OperationFailure)] == [13] * 5
    assert len({id(error) for error in results}) == 5


async def test_callers_of_a_shared_delete_whose_reply_is_lost_raise_that_it_is_uncertain(
    behind: mongoq.AsyncBroker, proxy: Proxy, raw: Any
) -> None:
    queue = behind.queue("orders")
    await asyncio.gather(*(queue.push(n) for n in range(10)))
    items: list[Any] = await asyncio.gather(*(queue.reserve() for _ in range(10)))
    proxy.lose("reply", "delete", times=1)
    results = await asyncio.gather(*(queue.commit(item) for item in items), return_exceptions=True)
    # who comes first goes alone, and the server keeps a record of that
    uncertain = [error for error in results if error is not None]
    assert all(isinstance(error, mongoq.ReservationLost) and not error.certain for error in uncertain), results
    assert raw.count_documents({"q": "orders"}) == 0


async def test_callers_whose_items_were_reserved_one_by_one_get_exact_outcomes(
    behind: mongoq.AsyncBroker, proxy: Proxy, raw: Any
) -> None:
    """Each has a token of its own, and so a statement of its own, of which the server keeps a record."""
    queue = behind.queue("orders")
    await queue.push_many(range(10))
    items: list[Any] = [await queue.reserve() for _ in range(10)]
    proxy.lose("reply", "delete", times=1)
    assert await asyncio.gather(*(queue.commit(item) for item in items)) == [None] * 10
    assert proxy.lost == 1
    assert raw.count_documents({"q": "orders"}) == 0


# PyMongo leaves the sockets of a client whose server has gone to the collector
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_broker_that_closes_without_its_server_leaves_no_caller_behind(uri: str, database: str) -> None:
    with Proxy(uri) as proxy:
        broker = await mongoq.connect_async(proxy.uri, database=database)
        queue = broker.queue("orders")
        await queue.push("first")
        proxy.stop()
        calls = [asyncio.create_task(queue.push(n)) for n in range(6)]
        await asyncio.sleep(0)  # one of them is under way, and the others wait
        await broker.close()
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
        assert all(isinstance(result, mongoq.BrokerClosed | AutoReconnect) for result in results), results


async def test_an_id_of_another_program_disturbs_no_caller(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue()
    await callers.together(calls(queue.push, range(3)))
    odd = {"_id": {"a": 1}, "q": "orders", "payload": "odd", "when": datetime.now(UTC), "priority": 5, "attempts": 0}
    raw.insert_one(odd)
    items = [await callers.call(queue.reserve) for _ in range(4)]
    assert await callers.together(calls(queue.commit, items)) == [None] * 4
    results = await callers.together(calls(queue.commit, items))
    assert [type(result) for result in results] == [mongoq.ReservationLost] * 4
