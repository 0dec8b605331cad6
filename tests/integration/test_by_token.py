"""Items settled by id and token alone, and pushes that have each their own options: what writers of tables send."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId

import mongoq
from mongoq.errors import DuplicateItem
from mongoq.model.outcomes import Move
from mongoq.model.settings import queue_options
from mongoq.protocol.push.push_many import Push, PushOptions, push_each
from mongoq.protocol.settle import by_token as held_items
from mongoq.protocol.settle.by_token import FencedItem, SettledByToken, settle_held
from mongoq.protocol.settle.move import Destination, check_move
from mongoq.protocol.state.context import QueueContext
from tests.proxy import Kind, Proxy

WEEK = timedelta(days=7)


def context_of(broker: mongoq.Broker, name: str) -> QueueContext[Any]:
    return QueueContext(broker._context, queue_options(name), broker._context.untyped)


def settle(broker: mongoq.Broker, *items: FencedItem) -> SettledByToken:
    return broker._driver.run(settle_held(broker._context, items))


def moved_to(broker: mongoq.Broker, name: str, **options: Any) -> Any:
    context = context_of(broker, name)
    key = options.pop("key", None)
    checked, _ = check_move(context, Destination(name, context.codec), Move(name, **options), key=key)
    return checked


def wrapped(payload: Any) -> bytes:
    return bson.encode({"payload": payload})


def push(broker: mongoq.Broker, name: str, options: list[PushOptions], *pushes: Push) -> None:
    broker._driver.run(push_each(context_of(broker, name), options, pushes, remember=WEEK))


def reserved(broker: mongoq.Broker, number: int, name: str = "orders") -> list[Any]:
    queue = broker.queue(name)
    queue.push_many(range(number))
    items: list[Any] = queue.reserve_many(number)
    return items


def test_a_letter_that_holds_its_sequence_lets_it_go_on(broker: mongoq.Broker) -> None:
    orders = broker.queue("orders", on_dead="hold")
    orders.push_many(range(2), sequence="a")
    item = orders.reserve()
    assert item is not None
    orders.bury(item)
    assert orders.reserve() is None
    letter = orders.dead.reserve()
    assert letter is not None
    assert letter.token is not None
    assert settle(broker, FencedItem(letter.id, letter.token)).done == 1
    following = orders.pop()
    assert following is not None
    assert following.payload == 1


def test_items_of_several_queues_go_each_to_its_destination(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_items, "MAX_COMMAND_ITEMS", 2)
    broker.queue("kept").configure(history=60)
    items = [*reserved(broker, 2), *reserved(broker, 3, "kept")]
    later = moved_to(broker, "later", delay=3600, priority=7)
    result = settle(
        broker,
        FencedItem(items[0].id, items[0].token),
        FencedItem(items[1].id, items[1].token, later, wrapped("new")),
        *(FencedItem(item.id, item.token) for item in items[2:4]),
        FencedItem(items[4].id, items[4].token, later),
    )
    assert (result.done, result.lost, result.failed, result.queues) == (5, [], {}, {"orders", "kept"})
    assert broker.queue("orders").size() == 0
    assert broker.queue("kept").size("processed") == 2
    moved = broker.queue("later").peek(5, state="scheduled")
    assert sorted(str(item.payload) for item in moved) == ["2", "new"]
    assert {item.priority for item in moved} == {7}


def test_what_is_not_under_its_token_any_more_is_lost_and_untouched(broker: mongoq.Broker) -> None:
    first, second, third = reserved(broker, 3)
    broker.queue("orders").commit(first)
    result = settle(
        broker,
        FencedItem(first.id, first.token),
        FencedItem(second.id, ObjectId()),
        FencedItem(third.id, third.token),
        FencedItem(ObjectId(), ObjectId()),
    )
    assert (result.done, result.failed) == (1, {})
    assert result.lost[:2] == [first.id, second.id]
    assert len(result.lost) == 3
    broker.queue("orders").commit(second)


def test_an_item_whose_key_is_taken_there_stays_reserved(broker: mongoq.Broker) -> None:
    broker.queue("next").push("old", key="k")
    first, second = reserved(broker, 2)
    result = settle(
        broker,
        FencedItem(first.id, first.token, moved_to(broker, "next", key="k"), wrapped("new")),
        FencedItem(second.id, second.token, moved_to(broker, "next", key="other")),
    )
    assert (result.done, result.lost) == (1, [])
    assert isinstance(result.failed[first.id], DuplicateItem)
    broker.queue("orders").release(first)
    assert {item.key: item.payload for item in broker.queue("next").peek(5)} == {"k": "old", "other": 1}


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_lost_reply_settles_nothing_twice_and_loses_nothing(lossy: tuple[Proxy, Any], kind: Kind) -> None:
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        items = reserved(broker, 3)
        onward = moved_to(broker, "next")
        fenced = [FencedItem(item.id, item.token, onward, wrapped(item.payload)) for item in items]
        proxy.lose(kind, "update", times=1)
        result = settle(broker, *fenced)
        assert proxy.lost == 1
        assert (result.done, result.lost, result.failed) == (3, [], {})
        assert sorted(item.payload for item in broker.queue("next").peek(5)) == [0, 1, 2]


def test_pushes_have_each_their_own_options(broker: mongoq.Broker) -> None:
    when = datetime.fromisoformat("2030-01-01T00:00:00Z")
    tolds = [
        PushOptions(),
        PushOptions(when=when, priority=3),
        PushOptions(delay=timedelta(hours=1), headers={"h": 1}),
        PushOptions(key="k"),
    ]
    ids = [ObjectId().binary for _ in range(6)]
    pushes = [(id, wrapped(n), n % 4) for n, id in enumerate(ids)]
    for _ in range(2):
        push(broker, "orders", tolds, *pushes)
    items = {
        item.payload: item for state in ("ready", "scheduled") for item in broker.queue("orders").peek(9, state=state)
    }
    assert sorted(items) == [0, 1, 2, 3, 4, 5]
    assert [items[n].id.binary for n in range(6)] == ids
    assert (items[1].due, items[1].priority, items[5].due) == (when, 3, when)
    assert (items[2].headers, items[3].key) == ({"h": 1}, "k")
    assert all(items[n].once is not None for n in range(6))


def test_publications_are_cut_into_transactions(broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mongoq.protocol.push.push_many.MAX_COPIES", 4)
    broker.bind("news", "mail", "log")
    pushes = [(ObjectId().binary, wrapped(n), n % 2) for n in range(9)]
    for _ in range(2):
        push(broker, "news", [PushOptions(), PushOptions(priority=1)], *pushes)
    for name in ("mail", "log"):
        assert sorted(item.payload for item in broker.queue(name).peek(20)) == list(range(9))


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_pushes_whose_reply_is_lost_are_sent_again(lossy: tuple[Proxy, Any], kind: Kind) -> None:
    proxy, collection = lossy
    with mongoq.Broker(collection) as broker:
        broker.ensure_indexes()
        proxy.lose(kind, "insert", times=1)
        push(broker, "orders", [PushOptions()], *((ObjectId().binary, wrapped(n), 0) for n in range(5)))
        assert proxy.lost == 1
        assert sorted(item.payload for item in broker.queue("orders").peek(9)) == list(range(5))
