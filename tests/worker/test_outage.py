"""A worker whose server goes away: its health says so at once, and its end takes no longer than its grace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import mongoq
from tests.proxy import Proxy
from tests.waiting import until
from tests.worker.conftest import Desk


@pytest.fixture
def proxy(desk: Desk) -> Iterator[Proxy]:
    """A proxy between the desk's worker and the server; a command waits for a server as long as it does by default."""
    with Proxy(desk.uri) as opened:
        desk.uri = opened.uri
        yield opened


async def ignore(payload: Any) -> None:
    pass


def test_the_health_notices_a_server_that_is_gone_before_the_driver_gives_a_command_up(
    desk: Desk, queue: mongoq.Queue[Any], proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    desk.consume("orders", ignore)
    running = desk.start(heartbeat=3600, grace=0)
    worker = desk.worker
    until(lambda: worker.health().healthy)
    proxy.stop()
    until(lambda: worker.health().reasons == ("the client knows no server that takes writes",))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    running.stop()


@pytest.mark.prove
def test_the_health_notices_a_server_that_answers_nothing(desk: Desk, queue: mongoq.Queue[Any], proxy: Proxy) -> None:
    desk.consume("orders", ignore)
    running = desk.start(heartbeat=0.1, grace=0)
    worker = desk.worker
    until(lambda: worker.health().healthy)
    proxy.hold()
    until(lambda: not worker.health().healthy)
    assert worker.health().reasons[0].startswith("no heartbeat of this worker has reached the server for ")
    proxy.pass_on()
    until(lambda: worker.health().healthy)
    running.stop()


def test_the_end_of_a_worker_waits_for_no_server_beyond_its_grace(
    desk: Desk,
    queue: mongoq.Queue[Any],
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk.uri += "&serverSelectionTimeoutMS=3600000"
    begun = []

    async def handle(payload: Any) -> None:
        begun.append(payload)
        while desk.worker.health().healthy:
            await asyncio.sleep(0.01)

    desk.consume("orders", handle, concurrency=2)
    queue.push_many(range(6))
    running = desk.start(grace=0.5)
    until(lambda: len(begun) == 2)
    proxy.stop()
    until(lambda: not desk.worker.health().healthy)
    running.stop()
    assert "some items could not be given back; they come back when their leases end" in caplog.messages
    assert not [text for text in caplog.messages if "tries again" in text]
    assert queue.size() == 6
    assert queue.counts().reserved >= 2
