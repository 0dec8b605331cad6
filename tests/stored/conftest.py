"""Fixtures: each dump in a collection of its own, and brokers that go on with it on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.clients import opened
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


@pytest.fixture(params=("sync", "aio"))
async def shell(
    request: pytest.FixtureRequest, store: Any, clock: mongoq.VirtualClock, uri: str, database: str
) -> AsyncIterator[Shell]:
    """A broker of the collection, of each kind."""
    if request.param == "sync":
        with mongoq.Broker(store, clock=clock) as broker:
            yield Shell("sync", Awaited(broker), store, clock, lambda: Awaited(mongoq.Broker(store, clock=clock)))
        return
    async with opened("aio", uri) as client:
        collection = client[database]["mongoq"]
        async with mongoq.AsyncBroker(collection, clock=clock) as own:
            yield Shell("aio", own, store, clock, lambda: mongoq.AsyncBroker(collection, clock=clock))


@pytest.fixture(params=("threads", "asyncio"))
def drain(
    request: pytest.FixtureRequest, broker: mongoq.Broker, clock: mongoq.VirtualClock, uri: str, database: str
) -> Callable[[mongoq.Pipeline], None]:
    """A function that drains a pipeline: in threads, or on an event loop."""

    def drain(pipeline: mongoq.Pipeline) -> None:
        if request.param == "threads":
            pipeline.drain(broker, signals=False)
        else:
            asyncio.run(asyncio.wait_for(drained(pipeline), PATIENCE))

    async def drained(pipeline: mongoq.Pipeline) -> None:
        async with opened("aio", uri) as client, mongoq.AsyncBroker(client[database]["mongoq"], clock=clock) as own:
            await pipeline.drain_async(own, signals=False)

    return drain
