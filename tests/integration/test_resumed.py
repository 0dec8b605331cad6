"""A queue that is resumed at the worst moment: when a consumer has read that it is paused, and hears of nothing yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient, monitoring

import mongoq
from mongoq.protocol.base import queue_settings
from mongoq.protocol.state import wait_queue
from tests.integration.waiters import Waiter
from tests.waiting import PATIENCE


class BeforeStream(monitoring.CommandListener):
    """Does something once, just before the change stream is opened."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.done = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        pipeline = event.command.get("pipeline") or [{}]
        if event.command_name == "aggregate" and "$changeStream" in pipeline[0] and not self.done:
            self.done += 1
            self._act()

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


def test_a_queue_that_is_resumed_before_the_stream_opens_wakes(
    uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_queue, "LIVE_POLL_SECONDS", 10 * PATIENCE)  # no look may find it
    with mongoq.connect(uri, database=database) as other_broker:
        queue = other_broker.queue("orders")
        queue.push(1)
        queue.pause()
        listener = BeforeStream(queue.resume)
        with (
            MongoClient[Any](uri, event_listeners=[listener]) as client,
            mongoq.Broker(client[database]["mongoq"]) as broker,
        ):
            waiter = Waiter(broker, rest=False)
            assert waiter.result().payload == 1
            assert listener.done == 1


def test_a_change_that_is_delivered_during_a_check_is_not_overlooked(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    context = broker._context
    context.state("orders").read_at = float("inf")  # nothing is due to be read again
    is_ready = queue_settings.is_broker_ready
    waiting = iter([True])

    def deliver_meanwhile(*arguments: Any, **options: Any) -> bool:
        if next(waiting, False):  # as the reader of the stream does, in another thread
            context.state("orders").changed_at = float("inf")
            context.state("orders").calm_until = float("-inf")
        return is_ready(*arguments, **options)

    context.state("orders").calm_until = float("-inf")
    monkeypatch.setattr(queue_settings, "is_broker_ready", deliver_meanwhile)
    claimed = queue.reserve()
    assert claimed is not None
    assert next(waiting, None) is None
    assert context.state("orders").calm_until == float("-inf")
