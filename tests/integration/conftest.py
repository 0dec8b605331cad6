"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo.common
import pytest
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from tests.integration.commands import Commands
from tests.integration.concurrent_callers import CALLERS, ConcurrentCallers, gathered, in_threads
from tests.proxy import Proxy
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _counters_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see the commands that write counters every five seconds: brokers write them when they close."""
    monkeypatch.setattr("mongoq.drivers.counter_flush.FLUSH_INTERVAL_SECONDS", 3_600.0)


@pytest.fixture
def patient_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a broker that closes write its counters, and sweep, however long a busy machine takes."""
    monkeypatch.setattr("mongoq.drivers.threads.driver.FLUSH_TIMEOUT_SECONDS", PATIENCE)


@pytest.fixture(params=["aio", "threads"])
async def callers(request: pytest.FixtureRequest, uri: str, database: str) -> AsyncIterator[ConcurrentCallers]:
    """A broker of each kind whose callers share commands; ``motor`` for a test that asks for it."""
    commands, kind = Commands(), request.param
    if kind == "threads":
        with (
            MongoClient[Any](uri, event_listeners=[commands]) as client,
            ThreadPoolExecutor(CALLERS) as pool,
            mongoq.Broker(client[database]["mongoq"], group_commit=True) as broker,
        ):
            broker.ensure_indexes()
            yield ConcurrentCallers(kind, broker, commands, in_threads(pool))
        return
    from tests.clients import opened

    async with (
        opened(kind, uri, event_listeners=[commands]) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as shared,
    ):
        await shared.ensure_indexes()
        yield ConcurrentCallers(kind, shared, commands, gathered)


@pytest.fixture
async def listened(uri: str, database: str) -> AsyncIterator[tuple[mongoq.AsyncBroker, Commands]]:
    """A broker on asyncio, with the commands of its client, which the server knows by the name of the database."""
    commands = Commands()
    async with (
        AsyncMongoClient[Any](uri, event_listeners=[commands], appname=database) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as broker,
    ):
        yield broker, commands


@pytest.fixture
def proxy(uri: str) -> Iterator[Proxy]:
    """A proxy before the server, which loses messages on demand."""
    with Proxy(uri) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error clients look for the server again at once."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
