"""Fixtures: each dump in a collection of its own, and brokers that go on with it on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.shells import Awaited, Shell
from tests.stored.dump import HERE, Dump, loaded
from tests.waiting import PATIENCE

DUMPS = sorted(HERE.glob("*.jsonl"))
LATEST = DUMPS[-1]

read = cache(Dump.read)


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def dump(request: pytest.FixtureRequest) -> Dump:
    """Each dump in the folder."""
    path: Path = request.param
    return read(path)


@pytest.fixture
def latest() -> Dump:
    """The latest dump."""
    return read(LATEST)


@pytest.fixture
def store(dump: Dump, raw: Any) -> Any:
    """The collection of the test, loaded with the dump."""
    loaded(dump, raw)
    return raw


@pytest.fixture
def clock(dump: Dump) -> mongoq.VirtualClock:
    """A clock that starts where the clock of the writer stopped."""
    return mongoq.VirtualClock(dump.now)


@pytest.fixture
def broker(store: Any, clock: mongoq.VirtualClock) -> Iterator[mongoq.Broker]:
    """A synchronous broker of the collection."""
    with mongoq.Broker(store, clock=clock) as broker:
        yield broker


@pytest.fixture
async def shell(dump: Dump, store: Any, clock: mongoq.VirtualClock, uri: str, database: str) -> AsyncIterator[Shell]:
    """A broker of the collection: of asyncio for the latest dump, a synchronous one for those before it."""
    if dump is not read(LATEST):
        with mongoq.Broker(store, clock=clock) as broker:
            yield Shell("sync", Awaited(broker), store, clock, lambda: Awaited(mongoq.Broker(store, clock=clock)))
        return
    from tests.clients import opened

    async with opened("aio", uri) as client:
        collection = client[database]["mongoq"]
        async with mongoq.AsyncBroker(collection, clock=clock) as own:
            yield Shell("aio", own, store, clock, lambda: mongoq.AsyncBroker(collection, clock=clock))


@pytest.fixture
def drain(
    dump: Dump, broker: mongoq.Broker, clock: mongoq.VirtualClock, uri: str, database: str
) -> Callable[[mongoq.Pipeline], None]:
    """A function that drains a pipeline: on an event loop for the latest dump, in threads for those before it."""

    def drain(pipeline: mongoq.Pipeline) -> None:
        if dump is not read(LATEST):
            pipeline.drain(broker, signals=False)
        else:
            asyncio.run(asyncio.wait_for(drained(pipeline), PATIENCE))

    async def drained(pipeline: mongoq.Pipeline) -> None:
        from tests.clients import opened

        async with opened("aio", uri) as client, mongoq.AsyncBroker(client[database]["mongoq"], clock=clock) as own:
            await pipeline.drain_async(own, signals=False)

    return drain
