"""The health of a worker: it runs, is connected, consumes and does not stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from tests.waiting import until
from tests.worker.conftest import Desk, every_kind

COMMANDS = ["find", "update", "findAndModify", "aggregate", "getMore", "delete", "insert", "hello", "ping"]


@pytest.fixture
def away(client: MongoClient[Any], desk: Desk) -> Iterator[Callable[[bool], None]]:
    """Lets the server close the connections of the desk's client, until switched off."""
    name = f"worker-{desk.database}"
    desk.uri += f"&appName={name}&serverSelectionTimeoutMS=500"

    def switch(on: bool) -> None:
        data = {"failCommands": COMMANDS, "appName": name, "closeConnection": True}
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn" if on else "off", data=data)

    yield switch
    client.admin.command("configureFailPoint", "failCommand", mode="off")


@every_kind
def test_a_worker_is_healthy_while_it_consumes(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    found: list[mongoq.Health] = []
    queue.push(1)

    async def handle(payload: Any) -> None:
        worker = desk.worker
        found.append(worker.health())
        worker.stop()
        found.append(worker.health())

    desk.consume("orders", handle)
    desk.start().join()
    found.append(desk.worker.health())
    assert [one.reasons for one in found] == [(), ("the worker stops",), ("the worker does not run",)]


def test_an_outage_is_a_reason_until_the_server_is_back(desk: Desk, queue: mongoq.Queue[Any], away: Any) -> None:
    async def handle(payload: Any) -> None:
        pass

    desk.consume("orders", handle)
    running = desk.start(heartbeat=0.1)
    worker = desk.worker
    until(lambda: worker.health().healthy)
    away(True)
    until(lambda: any("as it should" in reason for reason in worker.health().reasons))
    away(False)
    until(lambda: worker.health().healthy)
    running.stop()


def test_a_worker_that_finds_no_server_starts(desk: Desk, queue: mongoq.Queue[Any], away: Any) -> None:
    async def handle(payload: Any) -> None:
        pass

    desk.consume("orders", handle)
    desk.before = lambda: away(True)
    running = desk.start()
    worker = desk.worker
    until(lambda: len(worker.health().reasons) == 2)
    assert worker.health().reasons[0] == "the worker starts, and does not consume yet"
    away(False)
    until(lambda: worker.health().healthy)
    running.stop()


@pytest.mark.parametrize(
    ("desk", "on_timeout"), [("threads", "log"), ("threads", "release"), ("tasks", "cancel")], indirect=["desk"]
)
def test_a_consumer_whose_runs_do_not_end_is_a_reason(desk: Desk, queue: mongoq.Queue[Any], on_timeout: Any) -> None:
    go = threading.Event()
    queue.push(1)

    async def handle(payload: Any) -> None:
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    desk.consume("orders", handle, max_time=0.05, on_timeout=on_timeout, lease=30)
    running = desk.start()
    worker = desk.worker
    until(lambda: any("take too long" in reason for reason in worker.health().reasons))
    go.set()
    until(lambda: worker.health().healthy)
    running.stop()


def test_a_stage_that_has_stopped_is_a_reason(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", errors=None)

    @pipeline.sink("in", max_retries=0)
    def load(payload: Any) -> None:
        raise ValueError("secret")

    @pipeline.sink("other")
    def idle(payload: Any) -> None:
        pass

    with pytest.raises(mongoq.StageStopped), pipeline.start(broker) as run:
        until(lambda: run.health().healthy)
        broker.queue("in").push(1)
        until(lambda: not run.health().healthy)
        (reason,) = run.health().reasons
        assert reason.startswith("stage 'load' has stopped: item ")
        assert "secret" not in reason
    assert "the worker has ended" in run.health().reasons


async def test_a_run_of_asyncio_has_a_health(uri: str, database: str) -> None:
    pipeline = mongoq.Pipeline("line", errors="errors")
    pipeline.sink("in")(print)
    async with mongoq.connect_async(uri, database=database) as broker, pipeline.start_async(broker) as run:
        while not run.health().healthy:
            await asyncio.sleep(0.01)
        run.stop()
        assert run.health().reasons == ("the worker stops",)
        await run.wait()
        assert run.health().reasons == ("the worker has ended",)
