"""Tests of the shop as a user of mongoq writes them, with the fixtures of its pytest plugin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from bson import ObjectId
from pymongo.errors import OperationFailure

import mongoq
from examples.shop.app import create_app
from examples.shop.orders import QUEUE, Orders
from examples.shop.settings import Settings
from examples.shop.worker import register
from mongoq.testing import VirtualBroker


class FakeOrders:
    """Orders in memory."""

    def __init__(self, **states: str) -> None:
        self.states = states

    async def find(self, id: str) -> dict[str, Any] | None:
        return {"_id": id, "state": self.states[id]} if id in self.states else None

    async def mark_shipped(self, id: str) -> None:
        self.states[id] = "shipped"


class FakeCarrier:
    """Carrier that answers the first calls with an error."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[tuple[str, str]] = []

    async def send(self, order: str, key: str) -> None:
        self.calls.append((order, key))
        if len(self.calls) <= self.failures:
            raise httpx.ConnectError("no answer")


# --- the handler, without a server ---------------------------------------------------------------


def make_worker(broker: VirtualBroker, orders: Any, carrier: Any) -> Any:
    worker = broker.worker()
    register(worker, orders, carrier)
    return worker


def test_an_order_is_shipped(virtual_broker: VirtualBroker) -> None:
    orders, carrier = FakeOrders(a="ordered"), FakeCarrier()
    virtual_broker.queue(QUEUE).push({"order": "a"})
    assert make_worker(virtual_broker, orders, carrier).run_one(QUEUE).outcome == "done"
    assert orders.states == {"a": "shipped"}


def test_a_repeated_call_of_the_carrier_has_the_same_key(virtual_broker: VirtualBroker) -> None:
    orders, carrier = FakeOrders(a="ordered"), FakeCarrier(failures=1)
    virtual_broker.queue(QUEUE).push({"order": "a"})
    worker = make_worker(virtual_broker, orders, carrier)
    failed = worker.run_one(QUEUE)
    assert failed.outcome == "retry"
    virtual_broker.force_retry(failed.item)
    assert worker.run_one(QUEUE).outcome == "done"
    assert len(carrier.calls) == 2
    assert len(set(carrier.calls)) == 1


def test_a_job_that_runs_twice_ships_once(virtual_broker: VirtualBroker) -> None:
    orders, carrier = FakeOrders(a="ordered"), FakeCarrier()
    virtual_broker.queue(QUEUE).push_many([{"order": "a"}, {"order": "a"}])
    results = make_worker(virtual_broker, orders, carrier).run_until_idle()
    assert [result.outcome for result in results] == ["done", "done"]
    assert len(carrier.calls) == 1


def test_a_job_without_an_order_is_a_dead_letter(virtual_broker: VirtualBroker) -> None:
    virtual_broker.queue(QUEUE).push({"order": "gone"})
    assert make_worker(virtual_broker, FakeOrders(), FakeCarrier()).run_one(QUEUE).outcome == "dead"


# --- the transaction, on a real server -----------------------------------------------------------


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def collection(mongoq_async_client: Any) -> AsyncIterator[Any]:
    """A collection of orders; its client is the broker's, so both can be in one transaction."""
    made = mongoq_async_client["shop_tests"][uuid4().hex]
    yield made
    await made.drop()


async def test_order_and_job_are_stored_together(mongoq_async_broker: mongoq.AsyncBroker, collection: Any) -> None:
    id = await Orders(collection, mongoq_async_broker).place("Ada", 2)
    [job] = await mongoq_async_broker.queue(QUEUE).peek(10)
    assert job.payload == {"order": id}
    assert await collection.find_one() == {"_id": id, "customer": "Ada", "quantity": 2, "state": "ordered"}


async def test_an_order_that_is_sent_several_times_is_one_order(
    mongoq_async_broker: mongoq.AsyncBroker, collection: Any
) -> None:
    orders, id = Orders(collection, mongoq_async_broker), ObjectId()
    assert await asyncio.gather(*(orders.place("Ada", 2, id=id) for _ in range(5))) == [id] * 5
    assert await collection.count_documents({}) == await mongoq_async_broker.queue(QUEUE).size() == 1


async def test_an_order_that_the_server_refuses_has_no_job(
    mongoq_async_broker: mongoq.AsyncBroker, collection: Any
) -> None:
    await collection.database.create_collection(collection.name, validator={"quantity": {"$lt": 100}})
    with pytest.raises(OperationFailure):
        await Orders(collection, mongoq_async_broker).place("Mallory", 999)
    assert await collection.count_documents({}) == 0
    assert await mongoq_async_broker.queue(QUEUE).size() == 0


async def test_an_order_whose_job_cannot_be_pushed_is_not_stored(
    mongoq_async_broker: mongoq.AsyncBroker, collection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no push")

    monkeypatch.setattr(mongoq.AsyncQueue, "push", fail)
    with pytest.raises(ConnectionError):
        await Orders(collection, mongoq_async_broker).place("Ada", 2)
    assert await collection.count_documents({}) == 0


# --- the app -------------------------------------------------------------------------------------


@pytest.fixture
def settings(mongoq_uri: str, mongoq_client: Any) -> Iterator[Settings]:
    """Settings with a database of the test's own."""
    name = f"shop_{uuid4().hex[:12]}"
    yield Settings(uri=urlsplit(mongoq_uri)._replace(path=f"/{name}").geturl())
    mongoq_client.drop_database(name)


async def test_an_order_is_taken_by_http(settings: Settings) -> None:
    app = create_app(settings)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        answer = await client.post("/orders", json={"customer": "Ada", "quantity": 2})
        assert answer.status_code == 201
        assert (await client.get(f"/orders/{answer.json()['id']}")).json() == answer.json()
        assert (await client.get(f"/orders/{ObjectId()}")).status_code == 404
        again = await client.post("/orders", json={"customer": "Ada", "quantity": 2, "id": answer.json()["id"]})
        assert again.json() == answer.json()
        for wrong in ({"customer": "", "quantity": 2}, {"customer": "Ada", "quantity": 2, "id": "x"}):
            assert (await client.post("/orders", json=wrong)).status_code == 422
        assert (await client.get("/readyz")).json()["healthy"]
