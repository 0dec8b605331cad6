"""Claims of what has lapsed, one by one, whose replies take longer than half a lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq
from mongoq.protocol.claim.reserve_many import claim_exclusive
from tests.worker.test_leases import stolen

LEASE = timedelta(seconds=0.6)
LATE = 0.4


class Late(CommandListener):
    """Hands over the replies of claims late, and takes away items whose leases are about to be extended.

    Attributes:
        stealing: how many more.
        raw: where they are.
    """

    def __init__(self, raw: Any) -> None:
        self.stealing, self.raw = 0, raw

    def started(self, event: Any) -> None:
        if event.command_name == "update" and self.stealing:
            self.stealing -= 1
            stolen(self.raw, event.command["updates"][0]["q"]["_id"])

    def succeeded(self, event: Any) -> None:
        if event.command_name == "findAndModify":
            time.sleep(LATE)

    def failed(self, event: Any) -> None:
        pass


@pytest.fixture
def late(uri: str, database: str, raw: Any) -> Iterator[tuple[Late, mongoq.Broker]]:
    """A broker that gets its replies late, with two items whose leases have run out."""
    listener = Late(raw)
    with (
        MongoClient[Any](uri, event_listeners=[listener]) as client,
        mongoq.Broker(client[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        queue.push_many(["first", "second"])
        assert len(queue.reserve_many(2, lease=0.05)) == 2
        time.sleep(0.1)
        yield listener, broker


def taken(broker: mongoq.Broker) -> Any:
    return broker._driver.run(claim_exclusive(broker.queue("orders")._context, LEASE))


def test_what_was_claimed_late_is_held_for_a_whole_lease(late: tuple[Late, mongoq.Broker], raw: Any) -> None:
    _, broker = late
    began = broker._context.clock.now()
    item, lapsed = taken(broker)
    assert (item.payload, lapsed) == ("first", True)
    assert item.lease_until >= began + timedelta(seconds=LATE) + LEASE
    assert raw.find_one({"_id": item.id})["when"] == item.lease_until
    broker.queue("orders").commit(item)


def test_what_was_lost_meanwhile_is_not_handed_out(late: tuple[Late, mongoq.Broker], raw: Any) -> None:
    listener, broker = late
    listener.stealing = 1
    item, _ = taken(broker)
    assert item.payload == "second"
    assert raw.find_one({"payload": "first"})["by"] == "thief"
    listener.stealing = 0
    broker.queue("orders").commit(item)
    assert taken(broker) is None
