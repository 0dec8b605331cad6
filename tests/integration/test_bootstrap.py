"""What comes before an operation, when the network loses a reply of it: it is asked again, and no caller notices."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pymongo.common
import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from mongoq.model import clock as clocks
from mongoq.spark.scan import Scan
from tests.clients import opened
from tests.proxy import Kind, Proxy

PATIENCE = 60.0
POLL = {"serverMonitoringMode": "poll"}
LOST = 3
"""Losses of one command in a row, its first send and two more; what looks for the server sends ``hello`` as well."""

Act = Callable[[Any], Awaitable[Any]]


class Threads:
    """A synchronous broker in a thread, so that all acts are written with ``await``."""

    def __init__(self, broker: mongoq.Broker) -> None:
        self.broker = broker

    async def do(self, name: str) -> Any:
        return await asyncio.to_thread(getattr(self, name))

    def push(self) -> Any:
        return self.broker.queue("orders").push(1)

    def push_with_settings(self) -> Any:
        return self.broker.queue("orders", history=60, lease=20).push(1)

    def reserve(self) -> Any:
        return self.broker.queue("orders").reserve()

    def ping(self) -> Any:
        return self.broker.ping()

    def pause(self) -> Any:
        return self.broker.queue("orders").pause()

    def configure(self) -> Any:
        return self.broker.queue("orders").configure(history=60)

    def bind(self) -> Any:
        return self.broker.bind("news", "mail")

    def work(self) -> Any:
        worker = mongoq.Worker(self.broker)
        worker.consumer("orders")(lambda _: None)
        worker.run(drain=True)

    def flow(self) -> Any:
        return pipeline().drain(self.broker)


class Tasks:
    """A broker on asyncio."""

    def __init__(self, broker: mongoq.AsyncBroker) -> None:
        self.broker = broker

    async def do(self, name: str) -> Any:
        return await getattr(self, name)()

    async def push(self) -> Any:
        return await self.broker.queue("orders").push(1)

    async def push_with_settings(self) -> Any:
        return await self.broker.queue("orders", history=60, lease=20).push(1)

    async def reserve(self) -> Any:
        return await self.broker.queue("orders").reserve()

    async def ping(self) -> Any:
        return await self.broker.ping()

    async def pause(self) -> Any:
        return await self.broker.queue("orders").pause()

    async def configure(self) -> Any:
        return await self.broker.queue("orders").configure(history=60)

    async def bind(self) -> Any:
        return await self.broker.bind("news", "mail")

    async def work(self) -> Any:
        worker = mongoq.AsyncWorker(self.broker)
        worker.consumer("orders")(lambda _: None)
        await worker.run(drain=True)

    async def flow(self) -> Any:
        return await pipeline().drain_async(self.broker)


def pipeline() -> mongoq.Pipeline:
    line = mongoq.Pipeline("line", outputs="done")

    @line.stage("orders", to="done", where={"cancelled": False}, otherwise=mongoq.Drop())
    def pass_on(payload: Any) -> Any:
        return payload

    return line


def address(proxy: Proxy) -> str:
    # the driver sends no write again, and looks for the server only when it has to
    return proxy.uri_with(**POLL, retryWrites="false")


@pytest.fixture(params=["threads", "tasks"])
async def shell(
    request: pytest.FixtureRequest, proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
    if request.param == "threads":
        with MongoClient[Any](address(proxy)) as client, mongoq.Broker(client[database]["mongoq"]) as broker:
            yield Threads(broker)
    else:
        async with (
            AsyncMongoClient[Any](address(proxy)) as own,
            mongoq.AsyncBroker(own[database]["mongoq"]) as aio,
        ):
            yield Tasks(aio)


READY = ["hello", "listCollections", "createIndexes"]
CASES = [
    *((act, command) for act in ("push", "reserve", "work", "flow") for command in READY),
    *(("ping", "hello"), ("push", "find"), ("push_with_settings", "update"), ("pause", "update")),
    *(("configure", "update"), ("bind", "findAndModify"), ("work", "update"), ("flow", "find")),
]


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize(("act", "command"), CASES, ids=lambda value: value)
async def test_an_operation_survives_lost_messages_of_what_comes_before_it(
    shell: Any, proxy: Proxy, kind: Kind, act: str, command: str
) -> None:
    proxy.lose(kind, command, times=1 if command == "find" else LOST)
    await shell.do(act)
    assert proxy.lost > 0


@pytest.mark.parametrize("kind", ["threads", "aio"])
async def test_connecting_survives_them(proxy: Proxy, database: str, kind: str) -> None:
    proxy.lose("reply", "hello", times=LOST)
    if kind == "threads":
        with await asyncio.to_thread(mongoq.connect, proxy.uri_with(**POLL), database=database) as broker:
            assert await asyncio.to_thread(broker.queue("orders").push, 1)
    else:
        async with mongoq.connect_async(proxy.uri_with(**POLL), database=database) as aio:
            assert await aio.queue("orders").push(1)
    assert proxy.lost > 0


async def test_a_clock_that_cannot_be_read_again_goes_on_as_it_did(
    shell: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clocks, "REMEASURE_SECONDS", 0.05)
    await shell.do("push")
    clock = shell.broker._context.clock
    before = clock._reckoning
    clock.disturb()
    with caplog.at_level(logging.INFO, "mongoq.clock"):
        proxy.lose("reply", "hello", times=1_000)
        deadline = time.monotonic() + PATIENCE
        while "reckoned as before" not in caplog.text:
            assert time.monotonic() < deadline
            await shell.do("push")
    assert clock._reckoning is before
    proxy.calm()
    while clock._reckoning is before:
        assert time.monotonic() < deadline
        await shell.do("push")
    assert not clock.due()


async def test_a_first_measurement_that_fails_is_an_error(shell: Any, proxy: Proxy) -> None:
    """Without it nobody knows what is eligible."""
    proxy.lose("reply", "hello", times=1_000)
    with pytest.raises(PyMongoError):
        await shell.do("push")
    proxy.calm()
    await shell.do("push")


def test_a_scan_asks_again_for_the_time(proxy: Proxy, database: str) -> None:
    with Scan(proxy.uri_with(**POLL), database, "mongoq") as scan:
        scan.has({})
        proxy.lose("reply", "hello")
        assert scan.now()
        assert proxy.lost == 1


async def test_a_cursor_that_cannot_be_closed_is_left_to_the_server(proxy: Proxy, database: str) -> None:
    async with opened("aio", proxy.uri_with(**POLL)) as client:
        broker = mongoq.AsyncBroker(client[database]["mongoq"])
        queue = broker.queue("orders")
        await queue.push_many(["x" * 6_000_000] * 4)
        proxy.lose("reply", "killCursors")
        assert len(await queue.peek(4)) == 4
        assert proxy.lost == 1
        await broker.close()


@pytest.mark.parametrize("kind", ["threads", "tasks"])
async def test_a_pipeline_that_starts_while_the_server_is_away_waits_for_it(
    uri: str, database: str, client: MongoClient[Any], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    named = f"{uri}{'&' if '?' in uri else '/?'}appName={database}&serverSelectionTimeoutMS=500"
    away = {"failCommands": ["hello", "find", "ping"], "appName": database, "closeConnection": True}
    async with mongoq.connect_async(named, database=database) as aio:
        with mongoq.connect(named, database=database) as broker:
            broker.queue("orders").push({"cancelled": False})
            client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=away)
            try:
                shell: Any = Threads(broker) if kind == "threads" else Tasks(aio)
                flow = asyncio.create_task(shell.do("flow"))
                deadline = time.monotonic() + PATIENCE
                while "the worker tries again" not in caplog.text:
                    assert time.monotonic() < deadline
                    assert not flow.done()
                    await asyncio.sleep(0.01)
            finally:
                client.admin.command("configureFailPoint", "failCommand", mode="off")
            assert (await asyncio.wait_for(flow, PATIENCE)).stages["pass_on"].settled == 1
            assert broker.queue("done").size() == 1
