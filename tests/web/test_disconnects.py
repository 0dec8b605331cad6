"""Clients that go in the middle of a request: nothing is left open, and no change is done by half."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from tests.waiting import until
from tests.web.conftest import Api, Served, bury

LETTERS = 30


@pytest.fixture
def letters(queue: mongoq.Queue[Any]) -> mongoq.DeadQueue:
    bury(queue, *range(LETTERS))
    return queue.dead


@pytest.fixture
def named(uri: str) -> tuple[str, str]:
    """A connection string of its own, and the name by which the server knows it."""
    name = f"web-{uuid4().hex[:8]}"
    return f"{uri}&appName={name}", name


@contextmanager
def slowed(client: MongoClient[Any], name: str, *commands: str, milliseconds: int = 500) -> Iterator[Callable[[], int]]:
    """Delay the commands of a client of this name, and yield how many were delayed."""
    data = {"failCommands": list(commands), "appName": name, "blockConnection": True, "blockTimeMS": milliseconds}
    point = {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data}
    entered = int(client.admin.command(point)["count"])
    try:
        yield lambda: int(client.admin.command(point)["count"]) - entered
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


def test_a_change_goes_on_when_its_client_has_gone(
    *,
    serve_it: Callable[[Any], Served],
    make_app: Callable[..., Any],
    client: MongoClient[Any],
    database: str,
    named: tuple[str, str],
    letters: mongoq.DeadQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mongoq.audit")
    with MongoClient(named[0]) as own, mongoq.Broker(own[database]["mongoq"]) as other:
        served = serve_it(make_app(other, access="act"))
        with slowed(client, named[1], "update", "aggregate", "findAndModify", "insert"):
            served.send("POST /api/letters/replay", json.dumps({"queue": "orders"}).encode()).close()
            until(lambda: letters.size() < LETTERS)
        until(served.is_idle)
        assert (other.queue("orders").size(), letters.size()) == (LETTERS, 0)
        [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
        assert record.mongoq_number == LETTERS  # type: ignore[attr-defined]


def test_a_body_that_ends_early_changes_nothing_and_a_stream_ends_with_its_client(
    *,
    serve_it: Callable[[Any], Served],
    make_app: Callable[..., Any],
    broker: mongoq.Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = serve_it(make_app(access="act"))
    for sent in (b"", b'{"queue": "mails", "payload": 1}'):
        served.send("POST /api/items/push", sent, length=1_000).close()
        until(served.is_idle)
    assert broker.queues() == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    stream = served.send("GET /events", b"")
    head = stream.recv(4_096).lower()
    assert (b"200 ok" in head, b"x-accel-buffering: no" in head) == (True, True)  # a proxy keeps nothing back
    stream.close()
    until(served.is_idle)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_request_that_is_cancelled_leaves_whole_letters(
    *,
    make_app: Callable[..., Any],
    client: MongoClient[Any],
    database: str,
    named: tuple[str, str],
    kind: str,
    letters: mongoq.DeadQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that must end cancels requests; each letter is then in one queue, as a whole."""
    import httpx

    def are_whole() -> bool:
        documents = client[database]["mongoq"].find({"q": {"$in": ["orders", "orders.dead"]}})
        return sorted(document["payload"] for document in documents) == list(range(LETTERS))

    async def cancel(other: Any) -> None:
        transport = httpx.ASGITransport(app=make_app(other, access="act"), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            await api.get("/api/queues")
            with slowed(client, named[1], "update", "findAndModify", "insert", milliseconds=5_000) as delayed:
                task = asyncio.create_task(api.post("/api/letters/replay", json={"queue": "orders"}))
                while delayed() == 0:
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])

    async def cancel_async() -> None:
        async with AsyncMongoClient(named[0]) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as other:
            await cancel(other)

    if kind == "asyncio":
        asyncio.run(cancel_async())
    else:
        with MongoClient(named[0]) as own, mongoq.Broker(own[database]["mongoq"]) as other:
            asyncio.run(cancel(other))
            until(lambda: letters.size() == 0)  # a call in a thread goes on to its end
    until(are_whole)
    [record] = [record for record in caplog.records if record.name == "mongoq.audit"]
    assert (record.mongoq_user, "in part" in record.message) == ("127.0.0.1", True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_what_takes_too_long_says_so_and_is_ended(
    *,
    open_app: Callable[..., Api],
    client: MongoClient[Any],
    database: str,
    named: tuple[str, str],
    kind: str,
    letters: mongoq.DeadQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mongoq.web import client as calls

    def check(api: Api) -> None:
        search, html = {"queue": "orders", "where": '{"$gt": 0}'}, {"accept": "text/html"}
        assert api.get("/api/letters", **search).status_code == 200
        monkeypatch.setitem(calls.BrokerClient.read.__kwdefaults__, "within", 0.2)
        with slowed(client, named[1], "find"):
            for path, headers in (("/api/letters", {}), ("/letters", html)):
                answer = api.request("GET", path, params=search, headers=headers)
                assert (answer.status_code, "took too long" in answer.text) == (504, True)
                assert ("no server" in answer.text.lower(), "refresh" in answer.headers) == (False, False)
        monkeypatch.setitem(calls.BrokerClient.read.__kwdefaults__, "within", 10)
        monkeypatch.setattr(calls, "CHANGE_SECONDS", 0.2)
        with slowed(client, named[1], "update"):
            answer = api.post("/api/letters/replay", queue="orders")
            assert (answer.status_code, "took too long" in answer.text, "may have happened" in answer.text) == (
                504, True, True,
            )  # fmt: skip
        monkeypatch.undo()

    if kind == "threads":
        with MongoClient(named[0]) as own, mongoq.Broker(own[database]["mongoq"]) as other:
            check(open_app(other, access="act"))
        return
    runner = asyncio.Runner()
    other = runner.run(mongoq.connect_async(named[0], database=database).__aenter__())
    check(open_app(other, access="act", runner=runner))
    runner.run(other.close())
