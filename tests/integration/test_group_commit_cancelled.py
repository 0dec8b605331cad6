"""Callers who share commands and are cancelled: what was taken for them goes to others, or back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.drivers.group_commit_aio import AioGroupCommit


async def test_a_caller_that_is_cancelled_leaves_its_item_to_the_next_one(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        for n in range(3):
            await queue.push(n)
        await queue.reserve()
        first = [asyncio.create_task(queue.reserve()) for _ in range(2)]
        await asyncio.sleep(0)  # they wait in the batcher
        await asyncio.sleep(0)  # and their batch is under way
        heirs = [asyncio.create_task(queue.reserve()) for _ in range(2)]
        await asyncio.sleep(0)
        for task in first:
            task.cancel()
        items = await asyncio.gather(*heirs)
        assert sorted(item.payload for item in items) == [1, 2]
        assert raw.count_documents({"attempts": 1}) == 3


async def test_a_caller_cancelled_in_the_moment_its_item_comes_keeps_nothing(
    uri: str, database: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is there, and the task that waits for it has not run yet."""
    send_batch = AioGroupCommit._send_batch

    async def before_it_goes_on(batchers: AioGroupCommit, batcher: Any, batch: Any) -> list[Any]:
        results = await send_batch(batchers, batcher, batch)
        if isinstance(results[0], mongoq.Item):
            asyncio.get_running_loop().call_soon(task.cancel)
        return results

    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push(1)
        monkeypatch.setattr(AioGroupCommit, "_send_batch", before_it_goes_on)
        task = asyncio.create_task(queue.reserve())
        with pytest.raises(asyncio.CancelledError):
            await task
    assert raw.count_documents({"attempts": 0, "reserved": False}) == 1


CANCELLATIONS = 2_000


async def test_thousands_of_cancelled_calls_leave_nothing_reserved_and_lose_nothing(
    uri: str, database: str, raw: Any
) -> None:
    chance = random.Random(20261121)
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders", max_retries=None)
        pushed = set(await asyncio.gather(*(queue.push(n) for n in range(60))))
        committed: set[ObjectId] = set()
        committing: set[ObjectId] = set()  # a commit that was cancelled may still have happened

        async def work() -> None:
            item = await queue.reserve()
            if item is None:
                return
            if chance.random() < 0.3:
                await queue.rollback(item)
            elif chance.random() < 0.5:
                await queue.extend(item)
                await queue.release(item)
            else:
                committing.add(item.id)
                await queue.commit(item)
                committed.add(item.id)
                pushed.add(await queue.push(0))

        async def cancelled() -> None:
            task = asyncio.create_task(work())
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            await asyncio.wait([task])

        for _ in range(CANCELLATIONS // 50):
            await asyncio.gather(*(cancelled() for _ in range(50)))
    remaining = {document["_id"] for document in raw.find({"q": "orders"})}
    assert not committed & remaining
    assert pushed - committing <= remaining
    # what a cancelled task had in its hands stays reserved to the end of its lease; nothing else does
    assert all(document["attempts"] > 0 for document in raw.find({"reserved": True}))


async def test_cancelled_reservations_alone_leave_nothing_reserved(uri: str, database: str, raw: Any) -> None:
    chance = random.Random(7)
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders", max_retries=None)
        await asyncio.gather(*(queue.push(n) for n in range(60)))
        got: list[Any] = []

        async def cancelled() -> None:
            task = asyncio.create_task(queue.reserve())
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.result() is not None:
                got.append(task.result())

        for _ in range(10_000 // 50):
            await asyncio.gather(*(cancelled() for _ in range(50)))
            items, got = got, []
            await asyncio.gather(*(queue.release(item) for item in items))
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == 60
