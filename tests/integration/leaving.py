"""Leaves calls of a broker behind in tasks that are cancelled, most of them before their first step, and closes it.

``leaving.py URI DATABASE WAY`` prints ``closed`` when the broker is closed, and ``ended`` when the loop has ended. A
process of its own: one that hangs is killed. The brokers have no group commit, so each command has a task of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from pymongo import AsyncMongoClient

import mongoq

CALLS: tuple[Callable[[Any], Coroutine[Any, Any, Any]], ...] = (
    lambda queue: queue.size(),
    lambda queue: queue.push(1),
    lambda queue: queue.push_many([1, 2]),
    lambda queue: queue.pop(),
    lambda queue: queue.reserve(),
    lambda queue: queue.reserve(wait=60),
    lambda queue: queue.reserve_many(3),
    lambda queue: queue.counts(),
    lambda queue: queue.purge(),
)
STEPS = 4


def cancel_all() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def poll(queue: Any, call: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
    while True:
        await call(queue)


async def cancelled(collection: Any) -> None:
    """Cancel calls after each number of steps: some of them, or their commands, have not begun."""
    for steps in range(STEPS):
        for call in CALLS:
            broker = mongoq.AsyncBroker(collection, group_commit=False)
            tasks = [asyncio.create_task(call(broker.queue("orders"))) for _ in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
            cancel_all()
            await asyncio.wait(tasks)
            await broker.close()
    print("closed")


async def polled(collection: Any) -> None:
    """Close the broker in the end of a main function that has pollers beside it; the loop cancels them later."""
    broker = mongoq.AsyncBroker(collection, group_commit=False)
    queue = broker.queue("orders")
    pollers = [asyncio.create_task(poll(queue, call)) for call in CALLS]
    await asyncio.sleep(0.2)
    await broker.close()
    print("closed")
    await asyncio.wait(pollers)


async def torn_down(collection: Any) -> None:
    """Leave it to a task in the background to close the brokers, when the end of the loop cancels that as well."""
    brokers: list[mongoq.AsyncBroker] = []
    tasks: list[asyncio.Task[Any]] = []

    async def close_at_the_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            for broker in brokers:
                await broker.close()
            print("closed")

    async def begin_ever_more() -> None:
        while True:  # at each moment a call, or its command, has not begun
            brokers.append(mongoq.AsyncBroker(collection, group_commit=False))
            tasks.extend(asyncio.create_task(call(brokers[-1].queue("orders"))) for call in CALLS)
            await asyncio.sleep(0)

    tasks.append(asyncio.create_task(close_at_the_end()))
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(begin_ever_more()))
    for _ in range(STEPS):
        await asyncio.sleep(0)


def another_loop(uri: str, database: str) -> None:
    """Close a broker whose own loop has ended, with pollers on it."""
    tasks: list[asyncio.Task[Any]] = []

    async def begin() -> mongoq.AsyncBroker:
        broker = await mongoq.connect_async(uri, database=database)
        tasks.extend(asyncio.create_task(poll(broker.queue("orders"), call)) for call in CALLS)
        await asyncio.sleep(0.2)
        return broker

    async def close(broker: mongoq.AsyncBroker) -> None:
        await broker._driver.close()  # PyMongo refuses to close the client on another loop than its own
        print("closed")

    asyncio.run(close(asyncio.run(begin())))


def main(uri: str, database: str, way: str) -> None:
    async def work() -> None:
        async with AsyncMongoClient(uri) as client:
            await {"cancelled": cancelled, "polled": polled, "torn down": torn_down}[way](client[database]["mongoq"])

    if way == "another loop":
        another_loop(uri, database)
    else:
        asyncio.run(work())
    print("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
