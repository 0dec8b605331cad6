"""Clients that go in the middle of a request: nothing is left open, and no change is done by half."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
import uvicorn
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from mongoq.web import create_app
from tests.waiting import until

LETTERS = 30


class Served:
    """An app on a real server.

    Attributes:
        server: the server.
        loop: its event loop.
    """

    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop

    def __init__(self, app: Any) -> None:
        async def keep_loop(scope: Any, receive: Any, send: Any) -> None:
            self.loop = asyncio.get_running_loop()
            await app(scope, receive, send)

        config = uvicorn.Config(keep_loop, host="127.0.0.1", port=0, log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        until(lambda: self.server.started)
        self.address = self.server.servers[0].sockets[0].getsockname()

    def send(self, head: str, body: bytes, *, length: int | None = None) -> socket.socket:
        """Send a request, and return its connection without waiting for the answer."""
        connection = socket.create_connection(self.address)
        lines = f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{lines}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)
        return connection

    def is_idle(self) -> bool:
        """Return whether no connection and no request is left."""
        return not self.server.server_state.connections and not self.server.server_state.tasks

    def tasks(self) -> set[str]:
        """Return the names of the tasks of the loop, without those of the server."""
        found = {task.get_name() for task in asyncio.all_tasks(self.loop)}
        return {name for name in found if name.startswith("mongoq")}

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Served]]:
    running: list[Served] = []

    def start(app: Any) -> Served:
        running.append(Served(app))
        return running[-1]

    yield start
    for served in running:
        served.stop()


@pytest.fixture
def letters(broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> mongoq.DeadQueue:
    queue.push_many(range(LETTERS))
    for item in queue.reserve_many(LETTERS):
        queue.bury(item, reason="no such city")
    return broker.dead_queue("orders.dead")


@pytest.fixture
def named(uri: str) -> tuple[str, str]:
    """A connection string of its own, and the name by which the server knows it."""
    name = f"web-{uuid4().hex[:8]}"
    return f"{uri}&appName={name}", name


@contextmanager
def slowed(client: MongoClient[Any], name: str, *commands: str) -> Iterator[Callable[[], int]]:
    """Delay the commands of a client of this name by half a second, and yield how many were delayed."""
    data = {"failCommands": list(commands), "appName": name, "blockConnection": True, "blockTimeMS": 500}
    entered: int = client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)["count"]

    def count() -> int:
        point = {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data}
        return int(client.admin.command(point)["count"]) - entered

    try:
        yield count
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


def is_unused(client: Any) -> bool:
    """Return whether no call holds a connection to the server."""
    return all(server.pool.active_sockets == 0 for server in client._topology._servers.values())


def test_a_change_goes_on_when_its_client_has_gone(
    *,
    serve: Callable[[Any], Served],
    client: MongoClient[Any],
    database: str,
    named: tuple[str, str],
    letters: mongoq.DeadQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mongoq.audit")
    with MongoClient(named[0]) as own, mongoq.Broker(own[database]["mongoq"]) as other:
        served = serve(create_app(other, access="act"))
        with slowed(client, named[1], "update", "aggregate", "findAndModify", "insert"):
            body = json.dumps({"queue": "orders"}).encode()
            connection = served.send("POST /api/letters/replay", body)
            until(lambda: served.server.server_state.tasks)
            connection.close()
            until(lambda: letters.size() < LETTERS)
        until(served.is_idle)
        assert (other.queue("orders").size(), letters.size()) == (LETTERS, 0)
        [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
        assert record.mongoq_number == LETTERS  # type: ignore[attr-defined]
        assert is_unused(own)


@pytest.mark.parametrize("sent", [b"", b'{"queue": "mails", "payload": 1}'], ids=["nothing", "a part"])
def test_a_body_that_ends_early_changes_nothing(
    serve: Callable[[Any], Served],
    broker: mongoq.Broker,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
) -> None:
    served = serve(create_app(broker, access="act"))
    connection = served.send("POST /api/items/push", sent, length=1_000)
    until(lambda: served.server.server_state.tasks)
    connection.close()
    until(served.is_idle)
    assert broker.queues() == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_stream_of_events_ends_with_its_client(
    serve: Callable[[Any], Served], broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    queue.push(1)
    app = create_app(broker)
    served = serve(app)
    connection = served.send("GET /events", b"")
    assert b"200 OK" in connection.recv(4_096)
    until(lambda: served.tasks() == {"mongoq-feed"})
    connection.close()
    until(served.is_idle)
    until(lambda: not served.tasks())
    assert not app.state.feed._listeners


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_request_that_is_cancelled_leaves_whole_letters(
    *,
    client: MongoClient[Any],
    database: str,
    named: tuple[str, str],
    kind: str,
    letters: mongoq.DeadQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that must end cancels requests; each letter is then in one queue, as a whole."""

    async def cancel(other: Any) -> set[asyncio.Task[Any]]:
        transport = httpx.ASGITransport(app=create_app(other, access="act"), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            await api.get("/api/queues")
            before = asyncio.all_tasks()
            with slowed(client, named[1], "update", "findAndModify", "insert") as delayed:
                task = asyncio.create_task(api.post("/api/letters/replay", json={"queue": "orders"}))
                while delayed() == 0:
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
            return {left for left in asyncio.all_tasks() - before if left.get_name().startswith("mongoq")}

    async def cancel_async() -> set[asyncio.Task[Any]]:
        async with AsyncMongoClient(named[0]) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as other:
            left = await cancel(other)
            while not is_unused(own):  # a command that was sent goes on
                await asyncio.sleep(0.01)
        return left

    if kind == "asyncio":
        assert asyncio.run(cancel_async()) == set()
    else:
        with MongoClient(named[0]) as own, mongoq.Broker(own[database]["mongoq"]) as other:
            assert asyncio.run(cancel(other)) == set()
            until(lambda: is_unused(own))
    documents = client[database]["mongoq"].find({"q": {"$in": ["orders", "orders.dead"]}})
    assert sorted(document["payload"] for document in documents) == list(range(LETTERS))
    [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert (record.mongoq_user, "in part" in record.message) == ("127.0.0.1", True)  # type: ignore[attr-defined]
    if kind == "threads":  # a call in a thread goes on to its end
        assert letters.size() == 0
