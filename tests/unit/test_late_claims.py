"""A claim whose reply took long: the lease begins anew before the item is handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq


class Slow(CommandListener):
    """Does something while the reply of a claim is on its way."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], Any]] = []

    def started(self, event: Any) -> None:
        pass

    def succeeded(self, event: Any) -> None:
        if event.command_name == "findAndModify" and self.meanwhile:
            self.meanwhile.pop(0)()

    def failed(self, event: Any) -> None:
        pass


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def clock() -> mongoq.VirtualClock:
    return mongoq.VirtualClock(datetime(2100, 1, 1, tzinfo=UTC))  # the server deletes nothing before that


@pytest.fixture
def far_away(uri: str, raw: Any, slow: Slow, clock: mongoq.VirtualClock) -> Iterator[mongoq.Broker]:
    with MongoClient[Any](uri, tz_aware=True, event_listeners=[slow]) as client:
        collection = client[raw.database.name][raw.name]
        with mongoq.Broker(collection, clock=clock) as broker:
            yield broker


def test_a_late_claim_has_its_whole_lease(far_away: mongoq.Broker, slow: Slow, clock: mongoq.VirtualClock) -> None:
    orders = far_away.queue("orders", lease=30)
    orders.push(1)
    slow.meanwhile.append(lambda: clock.advance(25))
    item = orders.reserve()
    assert (item.lease_until - clock.now()).total_seconds() == 30
    assert (item.attempts, orders.get(item.id).lease_until) == (1, item.lease_until)


def test_a_late_claim_that_somebody_else_has_by_now_is_made_again(
    far_away: mongoq.Broker, slow: Slow, clock: mongoq.VirtualClock, raw: Any
) -> None:
    orders = far_away.queue("orders", lease=30)
    taken: list[Any] = []
    left: list[Any] = []
    ids = orders.push_many([1, 2])
    with mongoq.Broker(raw, clock=clock) as other:

        def take() -> None:
            clock.advance(40)
            taken.extend(other.queue("orders").reserve_many(2))
            left.append(other.queue("orders").push(3))

        slow.meanwhile.append(take)
        item = orders.reserve()
        assert [item.id] == left
        assert {each.id for each in taken} == set(ids)
