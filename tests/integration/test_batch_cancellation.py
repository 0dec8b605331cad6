"""Callers that go away in the middle of a batch: nothing stays reserved for them, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import MongoClient

import mongoq
from tests.clients import opened
from tests.integration.test_cancellation import Alarm

ITEMS = 60
CANCELLATIONS = 60


@pytest.fixture(params=["aio", "motor"])
async def own(request: pytest.FixtureRequest, uri: str) -> AsyncIterator[Any]:
    async with opened(request.param, uri) as client:
        yield client


@pytest.mark.parametrize("situation", ["ready", "with suspects", "and wait"])
async def test_cancelled_batches_leave_nothing_reserved_and_lose_nothing(
    own: Any, database: str, raw: Any, situation: str
) -> None:
    broker = mongoq.AsyncBroker(own[database]["mongoq"])
    queue = broker.queue("orders", max_retries=2)
    await queue.push_many(range(ITEMS))
    if situation == "with suspects":
        spent = {"attempts": 3, "batch": (marker := raw.find_one()["_id"]), "token": marker}
        raw.update_many({"q": "orders", "payload": {"$lt": 5}}, {"$set": spent})
    attempts = {document["payload"]: document["attempts"] for document in raw.find({"q": "orders"})}
    seed = random.randrange(2**32)
    chance = random.Random(seed)

    async def cancelled() -> list[Any]:
        task = asyncio.create_task(queue.reserve_many(20, wait=5 if "wait" in situation else None))
        await asyncio.sleep(chance.uniform(0, 0.008))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return []

    for _ in range(CANCELLATIONS // 3):
        for items in await asyncio.gather(*(cancelled() for _ in range(3))):
            await queue.release_many(items)
    await broker.close()
    documents = list(raw.find({"q": "orders"}))
    assert {document["payload"] for document in documents} == set(range(ITEMS)), f"seed {seed}"
    # what only was put behind the others keeps the marks of its last run
    leased = [document for document in documents if document["when"] > datetime.now(UTC)]
    assert leased == [], f"seed {seed}"
    assert {document["payload"]: document["attempts"] for document in documents} == attempts, f"seed {seed}"


def test_an_interrupted_batch_is_given_back(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(ITEMS))
    chance, interrupted = random.Random(11), 0
    for _ in range(CANCELLATIONS):
        items: list[Any] = []
        try:
            with Alarm(chance.uniform(0.0001, 0.006)):
                items = queue.reserve_many(20)
        except KeyboardInterrupt:
            interrupted += 1
        queue.release_many(items)
    assert interrupted > 5
    # an interrupt between the return of the call and the assignment cannot be seen by anybody: allow for one
    assert raw.count_documents({"q": "orders", "reserved": True}) <= 20


class Number(BaseModel):
    n: int


def test_a_batch_whose_reading_fails_is_given_back(uri: str, database: str, raw: Any) -> None:
    with MongoClient(uri) as client, mongoq.Broker(client[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(3))
        due = {document["payload"]: document["when"] for document in raw.find({"q": "orders"})}
        fail = {
            "configureFailPoint": "failCommand",
            "mode": {"skip": 1},
            "data": {"failCommands": ["find"], "errorCode": 13},
        }
        queue.size()
        client.admin.command(fail)
        try:
            with pytest.raises(Exception, match="failCommand|Failing"):
                queue.reserve_many(3)
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        documents = list(raw.find({"q": "orders"}))
        assert {(document["reserved"], document["attempts"]) for document in documents} == {(False, 0)}
        assert {document["payload"]: document["when"] for document in documents} == due


def test_of_a_batch_with_one_that_is_raised_the_others_are_given_back(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push_many([{"n": 1}, "bad", {"n": 3}])
    with pytest.raises(mongoq.PayloadInvalid) as caught:
        broker.queue("orders", model=Number).reserve_many(3, on_invalid="raise")
    (reserved,) = raw.find({"q": "orders", "reserved": True})
    assert reserved["_id"] == caught.value.item.id
    assert {document["attempts"] for document in raw.find({"q": "orders", "reserved": False})} == {0}


async def test_a_cancelled_settling_ends_by_itself(uri: str, database: str, raw: Any) -> None:
    chance = random.Random(5)
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        for _ in range(10):
            await queue.push_many(range(20))
            task = asyncio.create_task(queue.commit_many(await queue.reserve_many(20)))
            await asyncio.sleep(chance.uniform(0, 0.002))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert raw.count_documents({"q": "orders"}) % 20 == 0
