"""Callers who share commands and are cancelled: what was taken for them goes to others, or back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import mongoq
from tests.integration.commands import Commands

Listened = tuple[mongoq.AsyncBroker, Commands]


async def test_a_caller_that_is_cancelled_leaves_its_item_to_the_next_one(listened: Listened, raw: Any) -> None:
    broker, commands = listened
    queue, sent = broker.queue("orders"), asyncio.Event()
    await queue.push_many(range(3))
    await queue.reserve()
    commands.before = lambda *_: sent.set()
    first = [asyncio.create_task(queue.reserve()) for _ in range(2)]
    await sent.wait()  # a batch with one or both of them is under way
    heirs = [asyncio.create_task(queue.reserve()) for _ in range(2)]
    await asyncio.sleep(0)
    for task in first:
        task.cancel()
    items = await asyncio.gather(*heirs)
    assert sorted(item.payload for item in items if item is not None) == [1, 2]
    assert raw.count_documents({"attempts": 1}) == 3


async def test_a_caller_cancelled_about_when_its_item_comes_keeps_nothing(listened: Listened, raw: Any) -> None:
    """At each turn of the loop after the reply: the item is there, and the task that waits for it has not run yet."""
    broker, commands = listened
    queue, loop = broker.queue("orders"), asyncio.get_running_loop()
    await queue.push_many(range(2))
    for turns in range(30):

        def cancel_later(turns: int = turns) -> None:
            if turns:
                loop.call_soon(cancel_later, turns - 1)
            else:
                for task in tasks:  # noqa: B023  # those of this round
                    task.cancel()

        commands.after = lambda name, _: name in ("update", "findAndModify") and cancel_later()
        tasks = [asyncio.create_task(queue.reserve()) for _ in range(2)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        commands.after = None
        for result in results:
            if isinstance(result, mongoq.Item):
                await queue.release(result)
    await broker.close()
    assert raw.count_documents({"attempts": 0, "reserved": False, "q": "orders"}) == 2


async def test_many_cancelled_calls_leave_nothing_reserved_and_lose_nothing(listened: Listened, raw: Any) -> None:
    broker, chance = listened[0], random.Random(20261121)
    queue = broker.queue("orders", max_retries=None)
    pushed = set(await asyncio.gather(*(queue.push(n) for n in range(60))))
    committed, committing, held = set(), set(), set()

    async def work() -> None:
        item = await queue.reserve()
        if item is None:
            return
        held.add(item.id)
        if chance.random() < 0.3:
            await queue.rollback(item)
        elif chance.random() < 0.5:
            await queue.extend(item)
            await queue.release(item)
        else:
            committing.add(item.id)  # a commit that was cancelled may still have happened
            await queue.commit(item)
            committed.add(item.id)
            pushed.add(await queue.push(0))

    async def cancelled() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(chance.uniform(0, 0.02))
        task.cancel()
        await asyncio.wait([task])

    for _ in range(6):
        await asyncio.gather(*(cancelled() for _ in range(50)))
    await broker.close()
    remaining = {document["_id"] for document in raw.find({"q": "orders"})}
    assert not committed & remaining
    assert pushed - committing <= remaining
    # what a cancelled task had in its hands stays reserved to the end of its lease; nothing else does
    assert {document["_id"] for document in raw.find({"reserved": True})} <= held
