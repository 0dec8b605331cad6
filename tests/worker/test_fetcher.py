"""Claims of what has lapsed, one by one, whose replies take longer than half a lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq
from tests.waiting import until
from tests.worker.conftest import Running
from tests.worker.test_leases import stolen

LEASE = timedelta(seconds=2)
LATE = 1.2


class Late(CommandListener):
    """Hands over the replies of claims late, and takes away items whose leases are about to be extended.

    Attributes:
        stealing: how many more.
        raw: where they are.
        asked: when the first claim was sent.
    """

    def __init__(self, raw: Any) -> None:
        self.stealing, self.raw = 0, raw
        self.asked: datetime | None = None

    def started(self, event: Any) -> None:
        if event.command_name == "update" and self.stealing:
            statement = event.command["updates"][0]
            if statement["u"].get("$set", {}).keys() == {"when"}:
                self.stealing -= 1
                stolen(self.raw, statement["q"]["_id"])

    def succeeded(self, event: Any) -> None:
        if event.command_name == "findAndModify" and "orders" in str(event.reply.get("value")):
            self.asked = self.asked or datetime.now(UTC)
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
        past = datetime.now(UTC) - timedelta(seconds=1)
        dead = {"when": past, "reserved": True, "token": None, "by": "gone:1:0", "attempts": 1}
        raw.update_many({"q": "orders"}, {"$set": dead})
        yield listener, broker


def test_what_was_claimed_late_is_held_for_a_whole_lease(late: tuple[Late, mongoq.Broker]) -> None:
    listener, broker = late
    ends: list[datetime] = []
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", lease=LEASE)
    def handle(_: Any, job: mongoq.Job) -> None:
        assert job.item.lease_until is not None
        ends.append(job.item.lease_until)

    worker.run(drain=True)
    assert len(ends) == 2
    assert listener.asked is not None
    assert ends[0] >= listener.asked + timedelta(seconds=LATE) + LEASE - timedelta(seconds=0.1)


def test_what_was_lost_meanwhile_is_not_handed_out(late: tuple[Late, mongoq.Broker], raw: Any) -> None:
    listener, broker = late
    listener.stealing = 1
    payloads: list[Any] = []
    worker = mongoq.Worker(broker)
    worker.consumer("orders", lease=LEASE)(payloads.append)
    running = Running(worker.run, worker.stop)
    until(lambda: payloads)
    running.stop()
    assert payloads == ["second"]
    assert raw.find_one({"payload": "first"})["by"] == "thief"
