"""A pipeline at work by each engine: threads, asyncio, and the virtual broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.proxy import Proxy
from tests.waiting import PATIENCE

ENGINES = ("threads", "asyncio", "virtual")
QUICK = mongoq.Fixed(0.02)


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


class Site:
    """Where a pipeline works: one engine, and a broker to push with and to look behind it."""

    def __init__(self, engine: str, broker: mongoq.Broker, uri: str, database: str) -> None:
        self.engine = engine
        self.broker = broker
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
        sources = [source for stage in pipeline.graph.stages for source in stage.sources]
        sources += [pipeline.graph.pairs_queue(stage) for stage in pipeline.graph.joins]
        while True:
            worker.run_until_idle(limit=10_000)
            dates = [when for source in sources if (when := self.queue(source).next_when())]
            if not dates:
                return
            self.broker.advance(max(min(dates) - self.broker.clock.now(), min(dates) - min(dates)))

    def payloads(self, name: str) -> list[Any]:
        """Return what is in a queue, in its order."""
        return [item.payload for item in self.queue(name).peek(1_000)]

    def letters(self, name: str) -> list[tuple[Any, str]]:
        """Return what is in an error queue: payload and reason."""
        return [(item.payload, item.origin.reason) for item in self.queue(name).peek(1_000) if item.origin]


@pytest.fixture(params=ENGINES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Each engine."""
    if request.param == "virtual":
        with VirtualBroker() as virtual:
            yield Site("virtual", virtual, "", "")
    else:
        yield real(request, request.param)


@pytest.fixture(params=ENGINES[:2])
def server_site(request: pytest.FixtureRequest) -> Site:
    """Each engine that works on a server."""
    return real(request, request.param)


def real(request: pytest.FixtureRequest, engine: str) -> Site:
    uri, database = request.getfixturevalue("uri"), request.getfixturevalue("database")
    return Site(engine, request.getfixturevalue("broker"), uri, database)


@pytest.fixture
def proxied(lossy: tuple[Proxy, Any]) -> Iterator[tuple[Proxy, mongoq.Broker]]:
    """A proxy that loses what it is told to, and a broker behind it."""
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        yield proxy, broker


def counted(values: Sequence[Any]) -> Counter[str]:
    """Return a multiset of payloads."""
    return Counter(map(repr, values))


def is_busy(run: mongoq.Run) -> bool:
    """Return whether a run holds items that it has not settled yet."""
    return any(station.backlog.outcomes or station.backlog.held for station in run._engine.loops)


Handler = Callable[..., Any]
