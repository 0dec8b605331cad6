"""A pipeline at work by an engine: threads in most tests, asyncio and the virtual broker where they may differ."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.proxy import Proxy
from tests.waiting import PATIENCE

ENGINES = ("threads", "asyncio", "virtual")
QUICK = mongoq.Fixed(0.02)

every_engine = pytest.mark.parametrize("site", ENGINES, indirect=True)
"""For the few stories that each engine has to tell; all others are told by threads."""
each_server_engine = pytest.mark.parametrize("site", ENGINES[:2], indirect=True)
"""For what the threads and tasks of a worker do in ways of their own."""
with_asyncio = pytest.mark.parametrize("site", ["asyncio"], indirect=True)
"""For coroutine functions and async generators."""


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


class Site:
    """Where a pipeline works: one engine, and a broker to push with and to look behind it."""

    def __init__(self, engine: str, broker: mongoq.Broker, uri: str, database: str, raw: Any = None) -> None:
        self.engine = engine
        self.broker = broker
        self.raw = raw
        self._uri = uri
        self._database = database

    def queue(self, name: str, **options: Any) -> mongoq.Queue[Any]:
        return self.broker.queue(name, **options)

    def drain(self, pipeline: mongoq.Pipeline) -> None:
        """Let the pipeline work until nothing is left that it could work on."""
        if self.engine == "threads":
            pipeline.drain(self.broker)
        elif self.engine == "asyncio":
            asyncio.run(self._drained(pipeline))
        else:
            self._idle(pipeline)

    async def _drained(self, pipeline: mongoq.Pipeline) -> None:
        async with mongoq.connect_async(self._uri, database=self._database) as broker:
            await asyncio.wait_for(pipeline.drain_async(broker), 2 * PATIENCE)

    def _idle(self, pipeline: mongoq.Pipeline) -> None:
        assert isinstance(self.broker, VirtualBroker)
        worker = self.broker.worker(pipeline)
        while True:
            worker.run_until_idle(limit=10_000)
            queues = [self.queue(name) for name in self.broker.queues() if not name.endswith(".waiting")]
            now = self.broker.clock.now()
            dates = [when for queue in queues if (when := queue.next_when()) and when > now]
            if not dates:
                return
            self.broker.advance(min(dates) - now)

    def connect(self) -> mongoq.Broker:
        """Return another broker of the same items, such as another process has."""
        return mongoq.connect(self._uri, database=self._database)

    def let_waiting_times_end(self, pipeline: mongoq.Pipeline, waiting: str) -> None:
        """Let the time of those who wait for partners be over, and the pipeline see to it."""
        if isinstance(self.broker, VirtualBroker):
            self.broker.advance(1_000)
        else:
            self.raw.update_many({"q": waiting}, {"$set": {"when": datetime.now(UTC)}})
        self.drain(pipeline)

    def payloads(self, name: str) -> list[Any]:
        """Return what is in a queue, in its order."""
        return [item.payload for item in self.queue(name).peek(1_000)]

    def letters(self, name: str) -> list[tuple[Any, str]]:
        """Return what is in an error queue: payload and reason."""
        return [(item.payload, item.origin.reason) for item in self.queue(name).peek(1_000) if item.origin]


@pytest.fixture(params=ENGINES[:1])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """An engine at work, which is threads unless the test asks for others."""
    if request.param == "virtual":
        with VirtualBroker() as virtual:
            yield Site("virtual", virtual, "", "")
    else:
        uri, database = request.getfixturevalue("uri"), request.getfixturevalue("database")
        raw = request.getfixturevalue("raw")
        yield Site(request.param, request.getfixturevalue("broker"), uri, database, raw)


@pytest.fixture
def proxied(lossy: tuple[Proxy, Any]) -> Iterator[tuple[Proxy, mongoq.Broker]]:
    """A proxy that loses what it is told to, and a broker behind it."""
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        yield proxy, broker


def counted(values: Sequence[Any]) -> Counter[str]:
    """Return a multiset of payloads."""
    return Counter(map(repr, values))
