"""What comes before an operation, when the network loses a message of it: it is asked again, and no caller notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.integration.commands import failing
from tests.proxy import Kind, Proxy

POLL = {"serverMonitoringMode": "poll"}
LOST = 3
"""Losses of one command in a row, its first send and two more; what looks for the server sends ``hello`` as well."""
NO_RETRIES = {**POLL, "retryWrites": "false"}
"""The driver sends no write again, and looks for the server only when it has to."""


def pipeline() -> mongoq.Pipeline:
    line = mongoq.Pipeline("line", outputs="done")

    @line.stage("orders", to="done", where={"cancelled": False}, otherwise=mongoq.Drop())
    def pass_on(payload: Any) -> Any:
        return payload

    return line


class Threads:
    """A synchronous broker in a thread, so that all acts are written with ``await``."""

    def __init__(self, broker: mongoq.Broker) -> None:
        self._broker = broker

    async def do(self, act: str) -> Any:
        return await asyncio.to_thread(self._do, act)

    def _do(self, act: str) -> Any:
        if act == "work":
            worker = mongoq.Worker(self._broker)
            worker.consumer("orders")(lambda _: None)
            return worker.run(drain=True)
        return pipeline().drain(self._broker) if act == "flow" else call(self._broker, act)


class Tasks:
    """A broker on asyncio."""

    def __init__(self, broker: mongoq.AsyncBroker) -> None:
        self._broker = broker

    async def do(self, act: str) -> Any:
        if act == "work":
            worker = mongoq.AsyncWorker(self._broker)
            worker.consumer("orders")(lambda _: None)
            return await worker.run(drain=True)
        return await (pipeline().drain_async(self._broker) if act == "flow" else call(self._broker, act))


def call(broker: Any, act: str) -> Any:
    acts = {
        "ping": broker.ping,
        "push": lambda: broker.queue("orders").push(1),
        "push with settings": lambda: broker.queue("orders", history=60, lease=20).push(1),
        "reserve": lambda: broker.queue("orders").reserve(),
        "pause": lambda: broker.queue("orders").pause(),
        "bind": lambda: broker.bind("news", "mail"),
    }
    return acts[act]()


@pytest.fixture(params=["threads", "tasks"])
async def shell(request: pytest.FixtureRequest, proxy: Proxy, database: str, impatient: None) -> AsyncIterator[Any]:
    uri = proxy.uri_with(**NO_RETRIES)
    if request.param == "threads":
        with MongoClient[Any](uri) as client, mongoq.Broker(client[database]["mongoq"]) as broker:
            yield Threads(broker)
    else:
        async with AsyncMongoClient[Any](uri) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as aio:
            yield Tasks(aio)


@pytest.mark.parametrize(
    ("act", "kind", "command"),
    [
        ("push", "reply", "hello"),
        ("push", "reply", "listCollections"),
        ("push", "request", "createIndexes"),
        ("push", "reply", "find"),
        ("push with settings", "reply", "update"),
        ("reserve", "reply", "createIndexes"),
        ("ping", "reply", "hello"),
        ("pause", "reply", "update"),
        ("bind", "reply", "findAndModify"),
        ("work", "reply", "update"),
        ("flow", "reply", "find"),
    ],
)
async def test_an_operation_survives_lost_messages_of_what_comes_before_it(
    shell: Any, proxy: Proxy, kind: Kind, act: str, command: str
) -> None:
    proxy.lose(kind, command, times=1 if command == "find" else LOST)
    await shell.do(act)
    assert proxy.lost > 0


@pytest.mark.usefixtures("impatient")
async def test_connecting_survives_them(proxy: Proxy, database: str) -> None:
    proxy.lose("reply", "hello", times=LOST)
    with await asyncio.to_thread(mongoq.connect, proxy.uri_with(**POLL), database=database) as broker:
        assert await asyncio.to_thread(broker.queue("orders").push, 1)
    lost = proxy.lost
    proxy.lose("reply", "hello", times=LOST)
    async with mongoq.connect_async(proxy.uri_with(**POLL), database=database) as aio:
        assert await aio.queue("orders").push(1)
    assert proxy.lost > lost > 0


async def test_a_first_measurement_that_fails_is_an_error(shell: Any, proxy: Proxy) -> None:
    """Without it nobody knows what is eligible."""
    proxy.lose("reply", "hello", times=1_000)
    with pytest.raises(PyMongoError):
        await shell.do("push")
    proxy.calm()
    await shell.do("push")


@pytest.mark.usefixtures("impatient")
async def test_a_cursor_that_cannot_be_closed_is_left_to_the_server(proxy: Proxy, database: str) -> None:
    async with (
        AsyncMongoClient[Any](proxy.uri_with(**POLL)) as client,
        mongoq.AsyncBroker(client[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        await queue.push_many(["x" * 6_000_000] * 4)
        proxy.lose("reply", "killCursors")
        assert len(await queue.peek(4)) == 4
        assert proxy.lost == 1


@pytest.mark.usefixtures("impatient")
def test_a_pipeline_that_starts_while_the_server_is_away_waits_for_it(
    uri: str, database: str, client: MongoClient[Any]
) -> None:
    """The server fails more often than the driver and mongoq send a command again."""
    with mongoq.connect(f"{uri}&appName={database}", database=database) as broker:
        broker.queue("orders").push({"cancelled": False})
        with failing(client, "find", times=12, closeConnection=True, appName=database):
            assert pipeline().drain(broker).stages["pass_on"].settled == 1
        assert broker.queue("done").size() == 1
