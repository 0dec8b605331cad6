"""Which commands are sent without the driver's retry: those whose flows find out by themselves what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq

WRITES = {"insert", "update", "delete", "findAndModify"}


class Listener(CommandListener):
    def __init__(self) -> None:
        self.retried: dict[str, bool] = {}

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in WRITES:
            self.retried[event.command_name] = "txnNumber" in event.command

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@pytest.fixture
def listened(uri: str, database: str) -> Iterator[tuple[Listener, Any]]:
    listener = Listener()
    client: MongoClient[Any] = MongoClient(uri, event_listeners=[listener])
    with mongoq.Broker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        queue.push_many([0, 1, 2, 3, 4])
        yield listener, queue
    client.close()


def retried_commands(listener: Listener, call: Any) -> dict[str, bool]:
    listener.retried.clear()
    call()
    return dict(listener.retried)


def test_claims_and_batches_do_without_the_drivers_retry(listened: tuple[Listener, Any]) -> None:
    listener, queue = listened
    assert retried_commands(listener, queue.reserve) == {"findAndModify": False}
    assert retried_commands(listener, lambda: queue.commit_many(queue.reserve_many(2))) == {
        "update": False,
        "delete": False,
    }


def test_pushes_pops_and_single_settlements_keep_it(listened: tuple[Listener, Any]) -> None:
    """However long the lease is: of what they did the server alone can tell, and not a clock."""
    listener, queue = listened
    assert retried_commands(listener, lambda: queue.push(4)) == {"insert": True}
    assert retried_commands(listener, queue.pop) == {"findAndModify": True}
    item = queue.reserve(lease=3600)
    assert retried_commands(listener, lambda: queue.extend(item, lease=3600)) == {"update": True}
    assert retried_commands(listener, lambda: queue.rollback(item)) == {"update": True}
    for settle in (queue.release, lambda item: queue.move(item, "next"), queue.bury):
        item = queue.reserve(lease=3600)
        assert retried_commands(listener, lambda: settle(item)) == {"update": True}  # noqa: B023
    item = queue.reserve(lease=3600)
    assert retried_commands(listener, lambda: queue.commit(item)) == {"delete": True}


def test_pushes_under_given_ids_do_without_it(listened: tuple[Listener, Any]) -> None:
    listener, queue = listened
    ids = [ObjectId(), ObjectId()]
    assert retried_commands(listener, lambda: queue.push_many([5, 6], ids=ids)) == {"insert": False}
    assert retried_commands(listener, lambda: queue.push_many([5, 6], ids=ids)) == {"insert": False}
    assert retried_commands(listener, lambda: queue.push_many([7])) == {"insert": True}
    assert queue.size() == 8
