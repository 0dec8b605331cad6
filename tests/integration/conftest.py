"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo.common
import pytest
from pymongo import MongoClient

import mongoq
from tests.clients import opened
from tests.integration.concurrent_callers import CALLERS, ConcurrentCallers, Listener, gathered, in_threads
from tests.proxy import Proxy


@pytest.fixture(params=["aio", "motor", "threads"])
async def callers(request: pytest.FixtureRequest, uri: str, database: str) -> AsyncIterator[ConcurrentCallers]:
    """A broker of each kind whose callers share commands."""
    listener = Listener()
    if request.param == "threads":
        client: MongoClient[Any] = MongoClient(uri, event_listeners=[listener])
        with ThreadPoolExecutor(CALLERS) as pool:
            broker = mongoq.Broker(client[database]["mongoq"], group_commit=True)
            broker.ensure_indexes()
            yield ConcurrentCallers("threads", broker, listener.counts, in_threads(pool))
            broker.close()
        client.close()
        return
    async with (
        opened(request.param, uri, event_listeners=[listener]) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as shared,
    ):
        await shared.ensure_indexes()
        yield ConcurrentCallers(request.param, shared, listener.counts, gathered)


@pytest.fixture
def proxy(uri: str) -> Iterator[Proxy]:
    """A proxy before the server, which loses messages on demand."""
    with Proxy(uri) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error clients look for the server again at once."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
