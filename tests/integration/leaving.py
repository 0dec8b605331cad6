"""Leaves calls of brokers behind in tasks that are cancelled, most of them before their first step, and closes them.

``leaving.py URI DATABASE`` prints the name of each way when its brokers are closed and its loop has ended. A process of
its own: one that hangs is killed. The brokers have no group commit, so each command has a task of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pymongo import AsyncMongoClient

import mongoq

CALLS: tuple[Callable[[Any], Awaitable[Any]], ...] = (
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


async def poll(queue: Any, call: Callable[[Any], Awaitable[Any]], begun: asyncio.Event) -> None:
    while True:
        await call(queue)
        begun.set()


async def start_pollers(broker: mongoq.AsyncBroker) -> list[asyncio.Task[Any]]:
    begun = asyncio.Event()
    pollers = [asyncio.create_task(poll(broker.queue("orders"), call, begun)) for call in CALLS]
    await begun.wait()
    return pollers


async def polled(collection: Any) -> None:
    """Close the broker in the end of a main function that has pollers beside it; the loop cancels them later."""
    broker = mongoq.AsyncBroker(collection, group_commit=False)
    pollers = await start_pollers(broker)
    await broker.close()
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

    async def begin_ever_more() -> None:
        while True:  # at each moment a call, or its command, has not begun
            brokers.append(mongoq.AsyncBroker(collection, group_commit=False))
            tasks.extend(asyncio.ensure_future(call(brokers[-1].queue("orders"))) for call in CALLS)
            await asyncio.sleep(0)

    tasks.append(asyncio.create_task(close_at_the_end()))
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(begin_ever_more()))
    for _ in range(STEPS):
        await asyncio.sleep(0)


def another_loop(uri: str, database: str) -> None:
    """Close a broker whose own loop has ended, with pollers on it."""
    left: list[Any] = []

    async def begin() -> mongoq.AsyncBroker:
        client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        await client.admin.command("ping")
        broker = mongoq.AsyncBroker(client[database]["mongoq"])
        left.extend([client, await start_pollers(broker)])
        return broker

    broker = asyncio.run(begin())
    asyncio.run(broker.close())


def main(uri: str, database: str) -> None:
    async def work(way: Callable[[Any], Awaitable[None]]) -> None:
        async with AsyncMongoClient[Any](uri) as client:
            # On Python 3.11, PyMongo may keep a lock for ever when a task is cancelled that waits for a first server.
            await client.admin.command("ping")
            await way(client[database]["mongoq"])

    asyncio.run(work(polled))
    print("polled", flush=True)
    asyncio.run(work(torn_down))
    print("torn down", flush=True)
    another_loop(uri, database)
    print("another loop", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
