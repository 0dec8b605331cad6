"""Shared commands whose messages are lost, or that fail: each caller gets the outcome of its own part."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.integration.concurrent_callers import ConcurrentCallers, calls
from tests.proxy import Proxy
from tests.waiting import PATIENCE


@pytest.mark.parametrize("kind", ["request", "reply"])
async def test_a_shared_command_whose_message_is_lost_tells_each_caller(
    proxy: Proxy, database: str, raw: Any, kind: Any
) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders", history=60)
        await queue.push("first")
        proxy.lose(kind, "insert", times=1)
        ids = await asyncio.gather(*(queue.push(n) for n in range(30)))
        assert raw.count_documents({"_id": {"$in": ids}}) == 30
        proxy.lose(kind, "update", times=1)
        items = await asyncio.gather(*(queue.reserve() for _ in range(30)))
        assert len({item.id for item in items}) == 30
        proxy.lose(kind, "update", times=1)
        assert await asyncio.gather(*(queue.commit(item) for item in items)) == [None] * 30
        assert raw.count_documents({"processed": {"$exists": True}}) == 30


async def test_a_callers_timeout_is_not_that_of_the_others(callers: ConcurrentCallers, raw: Any) -> None:
    if callers.kind == "threads":
        pytest.skip("which thread sends is chance")
    queue = callers.queue()
    await queue.push("first")
    await asyncio.sleep(0.01)  # what sent it has ended, and the next one begins with who is in a hurry

    async def hurried() -> Any:
        with pymongo.timeout(0.000_001):
            return await queue.push("hurried")

    ids = await asyncio.gather(hurried(), *(queue.push(n) for n in range(5)))
    assert raw.count_documents({"_id": {"$in": ids}}) == 6


async def test_an_error_of_all_is_raised_by_each_for_itself(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push("first")
        item = await queue.reserve()
        fault = {"configureFailPoint": "failCommand", "mode": {"times": 1}}
        admin: Any = MongoClient(uri).admin
        admin.command({**fault, "data": {"failCommands": ["insert"], "errorCode": 13}})
        try:
            results = await asyncio.gather(*(queue.push(n) for n in range(5)), return_exceptions=True)
        finally:
            admin.command({"configureFailPoint": "failCommand", "mode": "off"})
            admin.client.close()
        assert [error.code for error in results if isinstance(error, OperationFailure)] == [13] * 5
        assert len({id(error) for error in results}) == 5
        await queue.commit(item)


async def test_callers_of_a_shared_delete_whose_reply_is_lost_raise_that_it_is_uncertain(
    proxy: Proxy, database: str, raw: Any
) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(10)))
        items = await asyncio.gather(*(queue.reserve() for _ in range(10)))
        proxy.lose("reply", "delete", times=1)
        results = await asyncio.gather(*(queue.commit(item) for item in items), return_exceptions=True)
        # who comes first goes alone, and the server keeps a record of that
        uncertain = [error for error in results if error is not None]
        assert all(isinstance(error, mongoq.ReservationLost) and not error.certain for error in uncertain), results
    assert raw.count_documents({"q": "orders"}) == 0


async def test_callers_whose_items_were_reserved_one_by_one_get_exact_outcomes(
    proxy: Proxy, database: str, raw: Any
) -> None:
    """Each has a token of its own, and so a statement of its own, of which the server keeps a record."""
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(10))
        items = [await queue.reserve() for _ in range(10)]
        proxy.lose("reply", "delete", times=1)
        assert await asyncio.gather(*(queue.commit(item) for item in items)) == [None] * 10
        assert proxy.lost == 1
    assert raw.count_documents({"q": "orders"}) == 0


async def test_a_shared_claim_survives_several_lost_messages(proxy: Proxy, database: str) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(10)))
        proxy.lose("request", "update", times=3)
        items = await asyncio.gather(*(queue.reserve() for _ in range(10)))
        assert len({item.id for item in items}) == 10


async def test_a_broker_that_closes_without_its_server_leaves_no_caller_behind() -> None:
    with EmbeddedServer() as server:
        broker = await mongoq.connect_async(server.uri)
        queue = broker.queue("orders")
        await queue.push("first")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        first = asyncio.create_task(queue.push("under way"))
        await asyncio.sleep(0.3)
        waiting = [asyncio.create_task(queue.push(n)) for n in range(5)]
        await asyncio.sleep(0)
        await broker.close()
        results = await asyncio.wait_for(asyncio.gather(first, *waiting, return_exceptions=True), PATIENCE)
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


async def test_errors_of_a_shared_settling_are_each_their_callers_own(uri: str, database: str, client: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(5)))
        items = await asyncio.gather(*(queue.reserve() for _ in range(5)))
        fault = {"failCommands": ["delete"], "errorCode": 13}
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fault})
        results = await asyncio.gather(*(queue.commit(item) for item in items), return_exceptions=True)
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        assert len({id(error) for error in results if isinstance(error, OperationFailure)}) == 5
