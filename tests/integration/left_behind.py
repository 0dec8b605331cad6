"""Uses a broker whose event loop has ended with calls under way.

``left_behind.py URI DATABASE motor|pymongo closed|stopped`` prints what pushes raise on another loop. A process of its
own, since whatever else was under way on the first one, the driver's own tasks too, complains at the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient

import mongoq

CALLERS = 5
PATIENCE = 60


async def begin(uri: str, database: str, driver: str) -> tuple[mongoq.AsyncBroker, list[asyncio.Task[Any]]]:
    """Return a broker, and calls of it that are under way."""
    client: Any = AsyncIOMotorClient(uri) if driver == "motor" else AsyncMongoClient(uri)
    broker = mongoq.AsyncBroker(client[database]["mongoq"])
    queue = broker.queue("orders")
    await queue.push("first")
    calls = [asyncio.create_task(queue.push("lost")) for _ in range(CALLERS)]
    calls.append(asyncio.create_task(queue.reserve()))
    for _ in range(3):
        await asyncio.sleep(0)
    return broker, calls


async def go_on(broker: mongoq.AsyncBroker) -> None:
    queue = broker.queue("orders")
    pushes = asyncio.gather(*(queue.push("late") for _ in range(CALLERS)), return_exceptions=True)
    print(*{str(result) for result in await asyncio.wait_for(pushes, PATIENCE)}, sep="\n")
    await asyncio.wait_for(broker.close(), PATIENCE)
    print("closed")


def main(uri: str, database: str, driver: str, way: str) -> None:
    loop = asyncio.new_event_loop()
    broker, calls = loop.run_until_complete(begin(uri, database, driver))
    if way == "closed":
        loop.close()
    asyncio.run(go_on(broker))
    if way == "stopped":  # nothing is left to be seen but what becomes of tasks in the midst of PyMongo
        sys.stdout.flush()
        os._exit(0)
    del calls


if __name__ == "__main__":
    main(*sys.argv[1:])
