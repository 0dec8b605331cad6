"""A server that goes away, refuses, or steps down: said once, got over, nothing lost."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import mongoq
from tests.proxy import Proxy
from tests.waiting import until
from tests.worker.conftest import KINDS, Desk

COMMANDS = ["find", "update", "findAndModify", "aggregate", "getMore", "delete", "insert", "hello", "ping"]


@pytest.fixture
def away(client: MongoClient[Any]) -> Iterator[Callable[..., None]]:
    """Lets the server close the connections of a client, by its name, or answer with an error, until switched off."""

    def switch(name: str, *, on: bool, **how: Any) -> None:
        data = {"failCommands": COMMANDS, "appName": name, **(how or {"closeConnection": True})}
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn" if on else "off", data=data)

    yield switch
    client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.fixture
def named(desk: Desk) -> str:
    """The name by which the server knows the desk's client."""
    name = f"worker-{desk.database}"
    desk.uri += f"&appName={name}&serverSelectionTimeoutMS=500"
    return name


WRITES = ["update", "findAndModify", "delete", "insert"]
HOW = [
    {},
    pytest.param({"errorCode": 189}, marks=pytest.mark.prove),
    # what has never succeeded, such as a read of schedules, would rightly end the worker
    {"errorCode": 13, "failCommands": WRITES},
]


@pytest.mark.parametrize("how", HOW, ids=["gone", "stepping down", "refusing"])
def test_a_worker_goes_on_when_the_server_is_back(  # noqa: PLR0917
    desk: Desk, named: str, queue: mongoq.Queue[Any], away: Any, caplog: pytest.LogCaptureFixture, how: Any
) -> None:
    queue.configure(history=3600)
    queue.push_many(range(4))
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        if payload == 3:
            until(lambda: queue.size() == 1)  # else the worker would have settled nothing with the rights of its user
            first = until(lambda: desk.broker.workers())[0].seen
            until(lambda: desk.broker.workers()[0].seen > first)
            away(named, on=True, **how)
        payloads.append(payload)

    desk.consume("orders", handle, prefetch=0)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        running = desk.start(heartbeat=0.2)
        until(lambda: len(payloads) >= 4)
        queue.push_many(range(4, 8))
        until(lambda: "tries again" in caplog.text)
        away(named, on=False)
        until(lambda: queue.size() == 0)
        until(lambda: " again, after " in caplog.text)
        running.stop()
    assert sorted(payloads) == list(range(8)), "what was done while it was away was settled, and not run again"
    assert [item.attempts for item in queue.history()] == [1] * 8
    args: list[Any] = [record.args for record in caplog.records if "tries again" in record.getMessage()]
    reports = [(what, re.split(r"\W", error)[0]) for what, error in args]
    assert len(reports) == len(set(reports)), "once for each thing that was tried, and each kind of error"


def test_a_worker_that_is_asked_to_stop_meanwhile_stops(
    desk: Desk, named: str, queue: mongoq.Queue[Any], away: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(1)
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        payloads.append(payload)
        away(named, on=True)

    desk.consume("orders", handle)
    running = desk.start(grace=0.5)
    until(lambda: payloads)
    until(lambda: "tries again" in caplog.text)
    running.stop()
    away(named, on=False)


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_a_worker_that_starts_while_the_server_is_away_waits_for_it(
    desk: Desk, named: str, queue: mongoq.Queue[Any], away: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(range(3))
    payloads: list[int] = []

    async def handle(payload: int) -> None:
        payloads.append(payload)

    desk.consume("orders", handle)
    desk.before = lambda: away(named, on=True)
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        running = desk.start()
        until(lambda: "tries again" in caplog.text)
        assert not running.ended
        away(named, on=False)
        until(lambda: len(payloads) == 3)
        assert "the server does answer again, after" in caplog.text
        running.stop()
    assert queue.size() == 0


def test_one_that_is_asked_to_stop_before_the_server_is_there_stops(
    desk: Desk, named: str, away: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(_: int) -> None: ...

    desk.consume("orders", handle)
    desk.before = lambda: away(named, on=True)
    running = desk.start()
    until(lambda: "tries again" in caplog.text)
    running.stop()


def test_a_server_that_refuses_the_user_at_the_start_is_an_error(desk: Desk, named: str, away: Any) -> None:
    async def handle(_: int) -> None: ...

    desk.consume("orders", handle)
    desk.before = lambda: away(named, on=True, errorCode=13, failCommands=["createIndexes"])
    with pytest.raises(OperationFailure, match="failCommand"):
        desk.start().join()


def test_a_worker_that_cannot_tell_what_it_has_settled_says_so_once_and_goes_on(
    desk: Desk, uri: str, queue: mongoq.Queue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """None is lost, and none runs twice: each was settled here."""
    queue.push_many(range(20))
    payloads: list[int] = []

    with Proxy(uri) as proxy:

        async def handle(payload: int) -> None:
            if not payloads:
                proxy.lose("reply", "delete", times=2)
            payloads.append(payload)

        desk.uri = proxy.uri_with(serverMonitoringMode="poll", retryWrites="false")
        desk.consume("orders", handle, concurrency=1)
        with caplog.at_level(logging.WARNING):
            desk.run()
        assert proxy.lost == 2
    assert sorted(payloads) == list(range(20))
    assert queue.size() == 0
    # On a busy machine a heartbeat may meet the lost connection as well, and says so.
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("mongoq")]
    [text] = [text for text in texts if "heartbeats" not in text]
    assert "cannot be told; none is lost" in text
