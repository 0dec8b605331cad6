"""The health of a broker: reasons instead of errors, and one call for each change."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.testing import AsyncVirtualBroker, VirtualBroker
from tests.integration.commands import failing
from tests.waiting import PATIENCE, until

COMMANDS = ["find", "update", "findAndModify", "aggregate", "getMore", "listCollections", "hello"]


@pytest.fixture
def name() -> str:
    """The name by which the server knows a client of this test's own."""
    return f"health-{uuid4().hex[:8]}"


@pytest.fixture
def away(client: MongoClient[Any], name: str) -> Iterator[Callable[[bool], None]]:
    """Lets the server close the connections of the named client, until switched off."""

    def switch(on: bool) -> None:
        data = {"failCommands": COMMANDS, "appName": name, "closeConnection": True}
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn" if on else "off", data=data)

    yield switch
    client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.fixture
def named(uri: str, name: str, database: str) -> Iterator[mongoq.Broker]:
    with mongoq.connect(f"{uri}&appName={name}", database=database) as broker:
        yield broker


def test_a_broker_is_healthy(broker: mongoq.Broker) -> None:
    assert broker.health(within=PATIENCE) == mongoq.Health(healthy=True)
    broker.queue("orders").push(1)
    assert broker.health(within=PATIENCE) == mongoq.Health(healthy=True)


async def test_so_is_one_of_asyncio(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        assert await broker.health(within=PATIENCE) == mongoq.Health(healthy=True)


def test_so_is_a_virtual_one() -> None:
    with VirtualBroker() as broker:
        broker.watch_health(print)()
        assert broker.health(within=PATIENCE) == mongoq.Health(healthy=True)


async def test_so_is_a_virtual_one_of_asyncio() -> None:
    async with AsyncVirtualBroker() as broker:
        broker.watch_health(print)()
        assert await broker.health(within=PATIENCE) == mongoq.Health(healthy=True)


def test_an_outage_is_a_reason_and_afterwards_a_note(named: mongoq.Broker, away: Any) -> None:
    away(True)
    sick = named.health(within=0.5)
    assert not sick.healthy
    assert "no server that takes writes answered within 0.5 s" in sick.reasons[0]
    away(False)
    until(lambda: named.health().healthy)
    (note,) = named.health().notes
    assert "ago no server answered a call" in note


async def test_so_it_is_with_asyncio(uri: str, name: str, database: str, away: Any) -> None:
    async with mongoq.connect_async(f"{uri}&appName={name}", database=database) as broker:
        away(True)
        sick = await broker.health(within=0.5)
        assert not sick.healthy
        away(False)
        assert "no server" in sick.reasons[0]


def test_a_read_that_the_driver_retries_too_often_is_an_outage(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a timeout PyMongo 4.20 computes a pause before each retry; before the 1,024th it is too large."""

    def retry_too_often(*_: Any, **__: Any) -> Any:
        return 0.1 * 2**1024

    with monkeypatch.context() as patch:
        patch.setattr(MongoClient, "_retry_internal", retry_too_often)
        (reason,) = broker.health(within=5).reasons
    assert "answered within 5 s" in reason


def test_a_closed_broker_is_not_healthy(raw: Any) -> None:
    broker = mongoq.Broker(raw)
    broker.close()
    assert broker.health().reasons == ("the broker is closed",)


def test_a_collection_of_a_later_version_is_a_reason(broker: mongoq.Broker, raw: Any) -> None:
    raw.insert_one({"_id": "schema:mongoq", "version": 99, "oldest_reader": 99})
    (reason,) = broker.health(within=PATIENCE).reasons
    assert "99" in reason


def test_a_capped_collection_is_a_reason(raw: Any) -> None:
    raw.database.create_collection("capped", capped=True, size=4096)
    with mongoq.Broker(raw.database["capped"]) as broker:
        (reason,) = broker.health(within=PATIENCE).reasons
    assert "capped" in reason


def test_a_server_that_is_no_primary_is_a_reason() -> None:
    with EmbeddedServer() as server, mongoq.connect(f"{server.uri}&directConnection=true", database="app") as broker:
        assert broker.health(within=PATIENCE).healthy
        with MongoClient[Any](server.uri) as client, suppress(AutoReconnect):
            client.admin.command("replSetStepDown", 60, force=True)
        until(lambda: "not the primary" in "".join(broker.health().reasons))


@pytest.mark.parametrize("code, words", [(13, "log in"), (18, "refused the user"), (4711, "code 4711")])
def test_the_text_of_a_server_stays_out_of_reasons(
    named: mongoq.Broker, client: MongoClient[Any], name: str, code: int, words: str
) -> None:
    assert named.health(within=PATIENCE).healthy
    with failing(client, "listCollections", "find", times=None, errorCode=code, appName=name):
        (reason,) = named.health(within=PATIENCE).reasons
    assert words in reason
    assert "failCommand" not in reason  # which the server says


@pytest.mark.parametrize("within", [0, -1, "soon"])
def test_a_time_limit_is_a_duration(broker: mongoq.Broker, within: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="within"):
        broker.health(within=within)


# --- changes -------------------------------------------------------------------------------------


def test_each_change_is_one_call(named: mongoq.Broker, away: Any) -> None:
    changes: list[mongoq.Health] = []
    away(True)  # before it watches: a slow look would be a change as well
    named.watch_health(changes.append, every=0.05, within=0.5)
    until(lambda: changes)
    checks = threading.Event()
    check = named.health

    def count(**options: Any) -> mongoq.Health:
        result = check(**options)
        checks.set()
        return result

    named.health = count  # type: ignore[method-assign]
    until(checks.is_set)  # another check of the same trouble
    assert [change.healthy for change in changes] == [False]
    away(False)
    until(lambda: len(changes) > 1)
    assert [change.healthy for change in changes] == [False, True]


async def test_a_callback_of_asyncio_may_be_a_coroutine_function(uri: str, name: str, database: str, away: Any) -> None:
    changes: list[bool] = []
    changed = asyncio.Event()

    async def callback(health: mongoq.Health) -> None:
        await asyncio.sleep(0)
        changes.append(health.healthy)
        changed.set()

    async with mongoq.connect_async(f"{uri}&appName={name}", database=database) as broker:
        broker.watch_health(callback, every=0.05, within=0.5)
        for on in (True, False):
            away(on)
            await asyncio.wait_for(changed.wait(), 30)
            changed.clear()
    assert changes == [False, True]


def test_a_callback_that_fails_is_logged_and_called_at_the_next_change(
    named: mongoq.Broker, away: Any, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[bool] = []

    def callback(health: mongoq.Health) -> None:
        changes.append(health.healthy)
        raise ValueError("a callback's")

    with caplog.at_level(logging.ERROR, "mongoq.health"):
        away(True)
        named.watch_health(callback, every=0.05, within=0.5)
        until(lambda: "a callback's" in caplog.text)
        away(False)
        until(lambda: changes == [False, True])


def test_a_watch_that_was_ended_calls_nothing_more(named: mongoq.Broker, away: Any) -> None:
    changes: list[Any] = []
    others: list[Any] = []
    stop = named.watch_health(changes.append, every=0.05, within=0.5)
    named.watch_health(others.append, every=0.05, within=0.5)
    stop()
    stop()
    away(True)
    until(lambda: others)
    assert changes == []


async def test_a_watch_outlasts_the_deadline_of_its_caller(
    uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[bool] = []
    check = mongoq.AsyncBroker.health

    async def record(broker: mongoq.AsyncBroker, **options: Any) -> mongoq.Health:
        result = await check(broker, **options)
        results.append(result.healthy)
        return result

    monkeypatch.setattr(mongoq.AsyncBroker, "health", record)
    async with mongoq.connect_async(uri, database=database) as broker:
        with pymongo.timeout(0.001):
            broker.watch_health(print, every=0.01, within=60)
        while len(results) < 3:
            await asyncio.sleep(0.01)
    assert results[:3] == [True] * 3


def test_a_closed_broker_checks_no_more(raw: Any) -> None:
    before = set(threading.enumerate())
    changes: list[Any] = []
    broker = mongoq.Broker(raw)
    broker.watch_health(changes.append, every=0.01)
    broker.close()
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if "Timer" in thread.name])
    assert changes == []


def test_a_callback_may_close_the_broker(uri: str, name: str, database: str, away: Any) -> None:
    closed = threading.Event()
    broker = mongoq.connect(f"{uri}&appName={name}", database=database)

    def callback(health: mongoq.Health) -> None:
        broker.close()
        closed.set()

    broker.watch_health(callback, every=0.05, within=0.5)
    away(True)
    assert closed.wait(30)
    assert broker.health().reasons == ("the broker is closed",)


@pytest.mark.parametrize("options", [{"every": 0}, {"within": "soon"}])
def test_bad_options_of_a_watch_are_refused(broker: mongoq.Broker, options: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=next(iter(options))):
        broker.watch_health(print, **options)
    with pytest.raises(mongoq.ArgumentInvalid, match="callback"):
        broker.watch_health(None)  # type: ignore[arg-type]
