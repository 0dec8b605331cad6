"""Once: what the attempts of one delivery write is written once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import DuplicateKeyError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq

HASH = "f" * 64


@pytest.fixture
def warehouse(uri: str, database: str) -> Iterator[Any]:
    """A collection of the user's, with a write concern that is weaker than mongoq's."""
    with MongoClient[Any](uri, w=1) as client:
        yield client[database]["warehouse"]


def test_the_first_attempt_writes_and_the_others_find_it(warehouse: Any) -> None:
    assert mongoq.once(warehouse, HASH, {"n": 1, "$set": {"a.b": "$$NOW"}})
    assert not mongoq.once(warehouse, HASH, {"n": 2})
    assert list(warehouse.find()) == [{"_id": HASH, "n": 1, "$set": {"a.b": "$$NOW"}}]


async def test_the_same_with_asyncio(uri: str, database: str) -> None:
    async with AsyncMongoClient[Any](uri) as client:
        warehouse = client[database]["warehouse"]
        assert await mongoq.once_async(warehouse, HASH, {"n": 1})
        assert not await mongoq.once_async(warehouse, HASH, {"n": 2})
        assert [document async for document in warehouse.find()] == [{"_id": HASH, "n": 1}]


def test_within_a_transaction_it_ends_nothing(warehouse: Any, broker: mongoq.Broker) -> None:
    queue = broker.queue("raw")
    queue.push(1)
    item = queue.reserve()
    assert item is not None
    with broker.transaction() as transaction:
        own = transaction.session.client[warehouse.database.name]["warehouse"]
        assert mongoq.once(own, HASH, {"n": 1}, session=transaction.session)
        assert not mongoq.once(own, HASH, {"n": 2}, session=transaction.session)
        queue.commit(item, session=transaction.session)
    assert list(warehouse.find()) == [{"_id": HASH, "n": 1}]
    assert queue.size(state=None) == 0


def test_another_unique_index_is_the_callers_business(warehouse: Any) -> None:
    warehouse.create_index("n", unique=True)
    assert mongoq.once(warehouse, HASH, {"n": 1})
    with pytest.raises(DuplicateKeyError):
        mongoq.once(warehouse, "e" * 64, {"n": 1})


def test_bad_arguments_write_nothing(warehouse: Any) -> None:
    wrong: list[tuple[Any, Any]] = [("", {}), (None, {}), (HASH, None), (HASH, [1]), (HASH, {"_id": "other"})]
    for hash, document in wrong:
        with pytest.raises(mongoq.ArgumentInvalid):
            mongoq.once(warehouse, hash, document)
    with pytest.raises(mongoq.ArgumentInvalid, match="collection"):
        mongoq.once("warehouse", HASH, {})
    assert warehouse.count_documents({}) == 0


def test_a_sink_that_runs_twice_writes_once(broker: mongoq.Broker, warehouse: Any) -> None:
    broker.queue("raw").push_many([{"n": n} for n in range(5)])
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    @pipeline.sink("raw", retry=mongoq.Fixed(0.01))
    def load(payload: Any, job: Any) -> None:
        mongoq.once(warehouse, job.delivery_hash, payload)
        if job.item.attempts == 1:
            raise ConnectionError("after the write")

    pipeline.drain(broker)
    assert sorted(document["n"] for document in warehouse.find()) == [0, 1, 2, 3, 4]


def test_the_write_is_acknowledged_by_a_majority(uri: str, database: str) -> None:
    write_concerns: list[Any] = []

    class Listener(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            write_concerns.append(event.command.get("writeConcern"))

        def succeeded(self, event: CommandSucceededEvent) -> None: ...

        def failed(self, event: CommandFailedEvent) -> None: ...

    with MongoClient[Any](uri, w=1, event_listeners=[Listener()]) as client:
        mongoq.once(client[database]["warehouse"], HASH, {"n": 1})
    assert {"w": "majority"} in write_concerns


async def test_a_collection_of_the_other_kind_is_refused_before_anything_is_written(
    uri: str, database: str, warehouse: Any
) -> None:
    async with AsyncMongoClient[Any](uri) as client:
        with pytest.raises(mongoq.ArgumentInvalid, match="once_async"):
            mongoq.once(client[database]["warehouse"], HASH, {"n": 1})
    with pytest.raises(mongoq.ArgumentInvalid, match="goes with once"):
        await mongoq.once_async(warehouse, HASH, {"n": 1})
    assert warehouse.count_documents({}) == 0
