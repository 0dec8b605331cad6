"""Batches whose requests or replies the network loses, on a real server behind a proxy that loses them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect

import mongoq
from tests.proxy import Kind, Proxy

Act = Callable[[Any, Any], Any]
DUE: dict[str, Any] = {"q": "orders", "when": {"$exists": True}}
ACTS: dict[str, tuple[str, Act, dict[str, Any], int]] = {
    "push": ("insert", lambda q, _: q.push_many(range(5)), DUE, 10),
    "push with ids": ("insert", lambda q, _: q.push_many(range(5), ids=[ObjectId() for _ in range(5)]), DUE, 10),
    "commit": ("update", lambda q, items: q.commit_many(items), {"settled": {"$exists": True}}, 5),
    "rollback": ("update", lambda q, items: q.rollback_many(items), {**DUE, "attempts": 1, "reserved": False}, 5),
    "release": ("update", lambda q, items: q.release_many(items), {**DUE, "attempts": 0, "reserved": False}, 5),
    "extend": ("update", lambda q, items: q.extend_many(items, lease=300), {**DUE, "reserved": True}, 5),
    "move": ("update", lambda q, items: q.move_many([(i, mongoq.Move("next")) for i in items]), {"q": "next"}, 5),
}
"""What becomes of five items: the command that is lost, the call, and how many documents match afterwards."""


@pytest.mark.parametrize(
    ("act", "kind"), [*((act, "reply") for act in ACTS), ("push with ids", "request"), ("commit", "request")]
)
def test_a_batch_survives_a_loss(lossy: tuple[Proxy, Any], raw: Any, act: str, kind: Kind) -> None:
    proxy, collection = lossy
    command, call, found, number = ACTS[act]
    clock = mongoq.VirtualClock(datetime(2100, 1, 1, tzinfo=UTC))
    with mongoq.Broker(collection, clock=clock) as broker:
        queue = broker.queue("orders", history=60)
        queue.push_many(range(5))
        items = [] if "push" in act else queue.reserve_many(5)
        proxy.lose(kind, command, times=1)
        call(queue, items)
        assert proxy.lost == 1
        assert raw.count_documents(found) == number


def test_pushes_without_ids_that_did_not_arrive_are_reported(lossy: tuple[Proxy, Any]) -> None:
    """Sent again they could double what has come and gone."""
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        broker.ensure_indexes()
        proxy.lose("request", "insert", times=1)
        with pytest.raises(mongoq.BatchIncomplete) as caught:
            broker.queue("orders").push_many(range(5))
    assert (len(caught.value.failed), caught.value.done) == (5, [])
    assert isinstance(caught.value.__cause__, AutoReconnect)


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
