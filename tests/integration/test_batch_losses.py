"""Batches whose requests or replies the network loses, on a real server behind a proxy that loses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect

import mongoq
from mongoq import Move
from tests.proxy import Kind, Proxy

IDS = [ObjectId() for _ in range(5)]


@dataclass(frozen=True)
class Case:
    """An operation on five items, the command that is lost, and how many docs of a kind it leaves."""

    name: str
    act: Callable[[Any, Any], Any]
    command: str
    remaining: dict[str, int]
    history: float | None = None


CASES = [
    Case("push", lambda q, _: q.push_many(range(5)), "insert", {"live": 10}),
    Case("push with ids", lambda q, _: q.push_many(range(5), ids=IDS), "insert", {"live": 10}),
    Case("commit with history", lambda q, items: q.commit_many(items), "update", {"settled": 5}, 60),
    Case("rollback", lambda q, items: q.rollback_many(items), "update", {"live": 5}),
    Case("release", lambda q, items: q.release_many(items), "update", {"live": 5, "unused": 5}),
    Case("extend", lambda q, items: q.extend_many(items, lease=300), "update", {"live": 5, "reserved": 5}),
    Case("move", lambda q, items: q.move_many([(item, Move("next")) for item in items]), "update", {"moved": 5}),
]
FOUND = {
    "live": {"q": "orders", "when": {"$exists": True}},
    "settled": {"q": "orders", "settled": {"$exists": True}},
    "unused": {"q": "orders", "attempts": 0, "reserved": False},
    "reserved": {"q": "orders", "reserved": True},
    "moved": {"q": "next"},
}


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_survives_a_loss(lossy: tuple[Proxy, Any], raw: Any, case: Case, kind: Kind) -> None:
    proxy, collection = lossy
    clock = mongoq.VirtualClock(datetime(2100, 1, 1, tzinfo=UTC))
    with mongoq.Broker(collection, clock=clock) as broker:
        queue = broker.queue("orders", history=case.history)
        queue.push_many(range(5))
        items = queue.reserve_many(5) if "push" not in case.name else []
        proxy.lose(kind, case.command, times=1)
        if (case.name, kind) == ("push", "request"):
            # sent again it could double what has come and gone, so what is not there is reported
            with pytest.raises(mongoq.BatchIncomplete) as caught:
                case.act(queue, items)
            assert (len(caught.value.failed), caught.value.done) == (5, [])
            assert isinstance(caught.value.__cause__, AutoReconnect)
            return
        case.act(queue, items)
        assert proxy.lost == 1
    assert {name: raw.count_documents(FOUND[name]) for name in case.remaining} == case.remaining


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_lost_reservation_counts_once(lossy: tuple[Proxy, Any], raw: Any, kind: Kind) -> None:
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(5))
        proxy.lose(kind, "update", times=1)
        items = queue.reserve_many(5)
    assert [(item.payload, item.attempts) for item in items] == [(n, 1) for n in range(5)]
    assert {document["attempts"] for document in raw.find({"q": "orders"})} == {1}


@pytest.mark.parametrize("key", [None, "key"])
def test_what_a_delete_whose_reply_is_lost_has_left_is_uncertain(
    lossy: tuple[Proxy, Any], raw: Any, key: str | None
) -> None:
    """It may have been settled by another process, whatever the clock of this one says of the lease."""
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        queue = broker.queue("orders")
        for n in range(5):
            queue.push(n, key=key and f"{key}{n}")
        items = queue.reserve_many(5)
        proxy.lose("reply", "delete", times=1)
        with pytest.raises(mongoq.BatchIncomplete) as caught:
            queue.commit_many(items)
    assert caught.value.failed.keys() == {item.id for item in items}
    assert [error.certain for error in caught.value.failed.values()] == [False] * 5  # type: ignore[attr-defined]
    assert raw.count_documents({"q": "orders"}) == 0


def test_a_delete_that_did_not_arrive_is_sent_again(lossy: tuple[Proxy, Any], raw: Any) -> None:
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(5))
        items = queue.reserve_many(5)
        proxy.lose("request", "delete", times=2)
        queue.commit_many(items)
        assert proxy.lost == 2
    assert raw.count_documents({"q": "orders"}) == 0
