"""Ids of items: each once, in the order of the pushes, and stable where they are stored for good."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
from bson import ObjectId

import mongoq
from mongoq.testing import VirtualBroker


def test_they_are_those_of_the_driver_and_sort_as_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectId, "_inc", 1)  # far from the end of the driver's counter, wherever that happens to be
    with VirtualBroker() as broker:
        orders = broker.queue("orders")
        made = [*orders.push_many(range(500)), ObjectId(), orders.push(1), *orders.push_many([1])]
        made += [ObjectId(), *orders.push_many(range(500)), orders.push(1)]
    assert made == sorted(set(made))
    assert len({id.binary[4:9] for id in made}) == 1
    assert all(abs(id.generation_time - datetime.now(UTC)) < timedelta(minutes=1) for id in made)


def test_they_are_in_order_when_the_driver_begins_to_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has three bytes, and nobody can wait until it has come to its end."""
    for left in (0, 1, 2, 5):
        with VirtualBroker() as broker:
            orders = broker.queue("orders")
            monkeypatch.setattr(ObjectId, "_inc", 2**24 - left)
            many = orders.push_many(range(5))
            assert many == sorted(many)
            assert len({*many, *orders.push_many(range(2)), orders.push(1), ObjectId()}) == 9


def test_threads_share_none() -> None:
    def push(_: int) -> list[ObjectId]:
        with VirtualBroker() as broker:
            return [id for _ in range(50) for id in broker.queue("orders").push_many(range(7))]

    with ThreadPoolExecutor(4) as threads:
        ids = [*chain.from_iterable(threads.map(push, range(8)))]
    assert len(set(ids)) == 8 * 50 * 7


def test_a_forked_child_makes_others() -> None:
    with VirtualBroker() as broker:
        orders = broker.queue("orders")
        ours = orders.push(0).binary
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"".join(id.binary for id in [*orders.push_many(range(3)), orders.push(1)]))
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read, "rb") as reader:
            raw = reader.read()
    theirs = {raw[start : start + 12] for start in range(0, 48, 12)}
    assert len(theirs) == 4
    assert len({id[4:9] for id in theirs}) == 1
    assert ours[4:9] not in {id[4:9] for id in theirs}


def test_the_ids_of_copies_are_always_the_same(broker: mongoq.Broker) -> None:
    """They are stored: another id for the same copy would push it again."""
    id = ObjectId("65e06e6ec0ffee0102030405")
    with VirtualBroker() as virtual:
        source, copies = virtual.queue("source", history=3600), virtual.queue("orders")
        source.push(1, id=id)
        source.pop()
        source.replay(to=copies)
        source.replay(to=copies, label="again")
        assert [str(item.id) for item in copies.peek(5)] == [
            "c251f4000405ad2d656aa4e0",
            "c251f4000405d5cc09a84844",
        ]
    broker.bind("topic", "billing", "shipping")
    broker.queue("topic").push(1, id=id)
    ids = [str(broker.queue(name).peek()[0].id) for name in ("billing", "shipping")]
    assert ids == ["65e06e6ec24bd7f39e030405", "65e06e6e4bb4076c57030405"]
