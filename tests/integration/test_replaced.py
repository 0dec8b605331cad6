"""Items whose keys are pushed again while they are held, with the very date that their settling would leave.

What is stored looks as if they had been settled. And their neighbours in the batch are somebody else's by the time it
is looked at, so that nothing tells by itself what became of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from tests.integration.commands import Commands
from tests.proxy import Proxy

LATER = timedelta(seconds=5)


class Case:
    """A queue with plain items and one with a key, all of them held by one consumer; and another consumer."""

    def __init__(self, uri: str, database: str, *, plain: int, runs: int) -> None:
        self.clock, self.commands = mongoq.VirtualClock(), Commands()
        self.clients: list[MongoClient[Any]] = [MongoClient(uri, event_listeners=[self.commands]), MongoClient(uri)]
        self.brokers = [mongoq.Broker(client[database]["mongoq"], clock=self.clock) for client in self.clients]
        self.queue, self.other_queue = [broker.queue("orders", max_retries=None, lease=60) for broker in self.brokers]
        self.at = self.clock.now() - LATER
        self.plain = [self.queue.push(number, when=self.at - timedelta(days=1)) for number in range(plain)]
        self.keyed = self.queue.push("old", key="x", when=self.at)
        for _ in range(runs - 1):
            self.queue.rollback_many(self.queue.reserve_many(plain + 1))
        self.items = self.queue.reserve_many(plain + 1)
        assert len(self.items) == plain + 1

    def take_plain_after_update(self) -> None:
        """Let the other consumer take the plain items after the next update, before its caller gets the reply."""

        def take(name: str, _: Any) -> None:
            if name == "update":
                self.commands.after = None
                self.clock.advance(LATER)
                self.other_queue.reserve_many(len(self.plain))

        self.commands.after = take

    def outcomes_of(self, settle: Callable[[Sequence[mongoq.Item[Any]]], Any]) -> dict[Any, bool | None]:
        """Return for each item: ``True`` if reported as settled, ``False`` as lost, ``None`` as uncertain."""
        try:
            settle(self.items)
        except mongoq.BatchIncomplete as incomplete:
            failed = {id: not error.certain and None for id, error in incomplete.failed.items()}
            return dict.fromkeys(incomplete.done, True) | failed
        return dict.fromkeys((item.id for item in self.items), True)

    def close(self) -> None:
        for broker, client in zip(self.brokers, self.clients, strict=True):
            broker.close()
            client.close()


@pytest.fixture
def case(uri: str, database: str) -> Iterator[Case]:
    opened = Case(uri, database, plain=2, runs=1)
    yield opened
    opened.close()


@pytest.mark.parametrize("way", ["rollback", "release"])
def test_what_was_replaced_is_not_reported_as_settled(case: Case, way: str) -> None:
    case.take_plain_after_update()
    if way == "rollback":
        case.queue.push("new", key="x", on_duplicate="replace", delay=LATER)
        outcomes = case.outcomes_of(lambda items: case.queue.rollback_many(items, delay=LATER))
    else:
        due = next(item.due for item in case.items if item.id == case.keyed)
        case.queue.push("new", key="x", on_duplicate="replace", when=due)
        outcomes = case.outcomes_of(case.queue.release_many)
    assert outcomes[case.keyed] is not True, "the new payload was never held"
    assert False not in [outcomes[id] for id in case.plain], "theirs were settled"
    assert [item.payload for item in case.queue.peek(9) if item.id == case.keyed] == ["new"]


def test_what_was_replaced_is_reported_where_nobody_else_has_the_others(case: Case) -> None:
    case.queue.push("new", key="x", on_duplicate="replace", delay=LATER)
    outcomes = case.outcomes_of(lambda items: case.queue.rollback_many(items, delay=LATER))
    assert outcomes[case.keyed] is not True
    assert [outcomes[id] for id in case.plain] == [True] * 2


# --- one item, whose settling the network loses --------------------------------------------------


def lost(proxy: Proxy, settle: Callable[[], Any]) -> bool:
    """Settle an item, which does not arrive at first; tell whether the caller learns that it may be somebody else's."""
    proxy.lose("request", "update")
    try:
        settle()
    except mongoq.ReservationLost as error:
        return not error.certain
    except mongoq.BatchIncomplete as incomplete:
        return [error.certain for error in incomplete.failed.values()] == [False]  # type: ignore[attr-defined]
    return False


OTHERS: dict[str, tuple[str, dict[str, Any], Callable[[Any, Any, Any], Any]]] = {
    "rolled back": ("rollback", {"delay": 66}, lambda queue, item, _: queue.rollback(item, delay=5)),
    "released": ("rollback", {"delay": 60}, lambda queue, item, _: queue.release(item)),
    "moved elsewhere": ("release", {}, lambda queue, item, late: queue.move(item, "next", when=late.due)),
    "put under a key": ("release", {}, lambda queue, item, late: queue.move(item, "orders", key="x", when=late.due)),
}
"""How the late holder settles an item that another one has settled by then, to the same date."""


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("others", OTHERS)
def test_what_another_holder_has_done_is_not_reported_as_settled(
    lossy: tuple[Proxy, Any], raw: Any, others: str, many: bool
) -> None:
    proxy, collection = lossy
    clock = mongoq.VirtualClock()
    later = mongoq.VirtualClock(clock.now() + timedelta(seconds=61))  # the late process stood still
    way, options, act = OTHERS[others]
    with mongoq.Broker(collection, clock=clock) as late, mongoq.Broker(raw, clock=later) as broker:
        queue, other_queue = late.queue("orders", lease=60), broker.queue("orders", lease=60)
        queue.push(1)
        item = queue.reserve() or pytest.fail("nothing")
        act(other_queue, other_queue.reserve() or pytest.fail("its lease is over"), item)
        if many:
            assert lost(proxy, lambda: getattr(queue, f"{way}_many")([item], **options))
        else:
            assert lost(proxy, lambda: getattr(queue, way)(item, **options))


@pytest.mark.parametrize("way", ["release", "move"])
def test_what_replaced_an_item_is_not_reported_as_settled(lossy: tuple[Proxy, Any], raw: Any, way: str) -> None:
    proxy, collection = lossy
    clock = mongoq.VirtualClock()
    with mongoq.Broker(collection, clock=clock) as late, mongoq.Broker(raw, clock=clock) as broker:
        queue = late.queue("orders")
        queue.push("old", key="x")
        item = queue.reserve() or pytest.fail("nothing")
        when = item.due if way == "release" else clock.now()
        broker.queue("orders").push("new", key="x", on_duplicate="replace", when=when)
        if way == "release":
            assert lost(proxy, lambda: queue.release(item))
        else:
            assert lost(proxy, lambda: queue.move(item, "orders", key="x"))
        assert [each.payload for each in queue.peek(9)] == ["new"]
