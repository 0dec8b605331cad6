"""The strict stable API: a client that lets no command pass which later servers may not have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure
from pymongo.server_api import ServerApi

import mongoq
from tests.integration.commands import Commands

STRICT: dict[str, Any] = {"server_api": ServerApi("1", strict=True, deprecation_errors=True)}


@pytest.fixture
def strict(uri: str, database: str) -> Iterator[tuple[mongoq.Broker, Commands]]:
    """A broker on a strict client, and what it sends."""
    commands = Commands()
    with (
        MongoClient[Any](uri, event_listeners=[commands], **STRICT) as client,
        mongoq.Broker(client[database]["mongoq"], group_commit=True) as broker,
    ):
        with pytest.raises(OperationFailure, match="apiStrict"):
            client[database]["mongoq"].distinct("q")
        yield broker, commands


def test_every_kind_of_call_works_under_the_strict_api(strict: tuple[mongoq.Broker, Commands]) -> None:
    broker, commands = strict
    queue = broker.queue("orders", history=60)
    assert broker.ping()
    broker.ensure_indexes()
    id = queue.push({"n": 1}, key="k")
    with pytest.raises(mongoq.DuplicateItem):
        queue.push({"n": 1}, key="k", on_duplicate="raise")
    queue.push({"n": 2}, key="k", on_duplicate="replace")
    queue.push_many([{"n": n} for n in range(150)])
    assert queue.get(id) is not None
    assert (queue.size(), queue.counts().ready, len(queue.peek(200))) == (151, 151, 151)
    assert queue.next_when() is not None
    item = queue.pop()
    assert item is not None
    items = queue.reserve_many(40)
    queue.extend_many(items)
    queue.rollback_many(items[:10])
    queue.release_many(items[10:20])
    queue.move_many([(item, mongoq.Move("next", patch={"$inc": {"n": 1}})) for item in items[20:30]])
    queue.commit_many(items[30:])
    single = queue.reserve()
    assert single is not None
    queue.extend(single)
    queue.bury(single, reason="tests")
    another = queue.reserve()
    assert another is not None
    queue.move(another, "next", patch={"$inc": {"n": 1}})
    assert broker.bind("news", "orders", "next") == ("orders", "next")
    broker.queue("news").push({"n": 7})
    assert broker.bindings() == {"news": ("orders", "next")}
    assert queue.dead.replay().pushed == 1
    replayed = queue.replay(to="again")
    assert replayed.pushed > 0
    assert len(list(queue.history(where={"n": {"$gte": 0}}, page=7))) > 0
    assert set(broker.queues()) == {"again", "next", "orders"}
    assert broker.stats()["orders"].commit == 10
    queue.configure(history=timedelta(hours=1), existing=True)
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    with broker.transaction() as transaction:
        queue.push({"n": 8}, session=transaction.session)
    assert queue.remove(queue.push({"n": 9}))
    assert queue.purge() > 0
    assert broker.workers() == []
    names = {"aggregate", "find", "findAndModify", "insert", "update", "delete", "createIndexes", "listCollections"}
    assert names <= set(commands.names())


def test_a_waiting_caller_is_woken_under_the_strict_api(strict: tuple[mongoq.Broker, Commands], raw: Any) -> None:
    broker, commands = strict
    queue = broker.queue("orders")
    queue.push(0)
    assert queue.pop() is not None
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(queue.reserve(wait=120)))
    waiter.start()
    while waiter.is_alive() and "getMore" not in commands.names():
        waiter.join(0.01)
    raw.insert_one({"q": "orders", "payload": "for you", "when": datetime.now(UTC), "priority": 0})
    waiter.join(120)
    assert [item.payload for item in got] == ["for you"]


async def test_asyncio_works_under_the_strict_api(uri: str, database: str) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri, **STRICT)
    async with client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(5))
        async with queue.reserved() as item:
            assert item is not None
        assert await broker.queues() == ["orders"]
        assert (await broker.stats())["orders"].commit == 1


def test_a_worker_runs_under_the_strict_api(strict: tuple[mongoq.Broker, Commands]) -> None:
    broker, _ = strict
    payloads: list[Any] = []
    worker = mongoq.Worker(broker)

    @worker.consumer("orders")
    def handle(payload: Any) -> mongoq.Move | None:
        payloads.append(payload)
        if len(payloads) == 20:
            worker.stop()
        return mongoq.Move("next") if payload % 2 else None

    broker.queue("orders").push_many(range(20))
    worker.run()
    assert sorted(payloads) == list(range(20))
