"""Callers that go away in the middle of a call: nothing stays reserved for them, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from tests.clients import opened
from tests.waiting import PATIENCE

EARLY = datetime(2020, 1, 1, tzinfo=UTC)
ITEMS = 40
CANCELLATIONS = 400


@pytest.fixture(params=["aio", "motor"])
async def own(request: pytest.FixtureRequest, uri: str) -> AsyncIterator[Any]:
    async with opened(request.param, uri) as client:
        yield client


@pytest.mark.parametrize("operation", ["reserve", "reserve alone", "reserve and wait", "pop", "pop with history"])
async def test_cancelled_claims_leave_nothing_reserved_and_lose_nothing(
    own: Any, database: str, raw: Any, operation: str
) -> None:
    broker = mongoq.AsyncBroker(own[database]["mongoq"], group_commit="alone" not in operation)
    queue = broker.queue("orders", history=3600 if "history" in operation else None, max_retries=None)
    for n in range(ITEMS):
        await queue.push(n)
    seed = random.randrange(2**32)
    chance = random.Random(seed)

    async def claim() -> Any:
        if operation.startswith("pop"):
            return await queue.pop()
        return await queue.reserve(wait=5 if "wait" in operation else None)

    async def cancelled() -> Any:
        task = asyncio.create_task(claim())
        await asyncio.sleep(chance.uniform(0, 0.004))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    items = []
    for _ in range(CANCELLATIONS // 8):
        got = [item for item in await asyncio.gather(*(cancelled() for _ in range(8))) if item is not None]
        if operation.startswith("pop"):
            items += got
            continue
        for item in got:
            await queue.release(item)
    await broker.close()
    payloads = {item.payload for item in items}
    assert raw.count_documents({"q": "orders", "reserved": True}) == 0, f"seed {seed}"
    remaining = {document["payload"] for document in raw.find({"q": "orders", "when": {"$exists": True}})}
    assert payloads | remaining == set(range(ITEMS)), f"seed {seed}"
    assert not payloads & remaining, f"seed {seed}"
    assert {document["attempts"] for document in raw.find({"q": "orders", "when": {"$exists": True}})} <= {0}


async def test_a_cancelled_wait_takes_nothing_that_comes_later(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        waiting = [asyncio.create_task(queue.reserve(wait=30)) for _ in range(20)]
        await asyncio.sleep(0.1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await queue.push("late")
        item = await queue.reserve()
        assert item is not None
        assert item.attempts == 1


async def test_a_timeout_around_a_wait_leaves_nothing_reserved(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        for _ in range(60):
            try:
                async with asyncio.timeout(0.003):
                    await queue.push("x")
                    item = await queue.reserve(wait=1)
                    assert item is not None
                    await queue.release(item)
            except TimeoutError:
                pass
    # a timeout after reserve() has returned cancels the release, which still runs to its end
    assert raw.count_documents({"reserved": True}) == 0


async def test_a_cancelled_block_releases_its_item(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push("a")

        async def work() -> None:
            async with queue.reserved():
                await asyncio.sleep(30)

        for _ in range(5):
            task = asyncio.create_task(work())
            while raw.count_documents({"reserved": True}) == 0:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    document = raw.find_one({"q": "orders"})
    assert (document["reserved"], document["attempts"]) == (False, 0)


async def test_a_closed_broker_hands_nothing_to_those_who_wait(uri: str, database: str, raw: Any) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    broker = mongoq.AsyncBroker(client[database]["mongoq"])
    waiting = asyncio.create_task(broker.queue("orders").reserve(wait=30))
    await asyncio.sleep(0.05)
    await broker.close()
    raw.insert_one({"q": "orders", "payload": 1, "when": EARLY, "priority": 0, "attempts": 0, "reserved": False})
    with pytest.raises(mongoq.BrokerClosed):
        await waiting
    assert raw.count_documents({"reserved": True}) == 0
    await client.close()


def test_a_closed_broker_hands_nothing_to_threads_that_wait(client: MongoClient[Any], database: str, raw: Any) -> None:
    broker = mongoq.Broker(client[database]["mongoq"])
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            broker.queue("orders").reserve(wait=30)
        except mongoq.BrokerClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    broker.close()
    raw.insert_one({"q": "orders", "payload": 1, "when": EARLY, "priority": 0, "attempts": 0, "reserved": False})
    thread.join(PATIENCE)
    assert len(errors) == 1
    assert raw.count_documents({"reserved": True}) == 0


@pytest.mark.parametrize("operation", ["pop", "reserve"])
def test_a_broker_that_is_closed_at_the_end_of_the_loop_gives_back_what_was_under_way(
    uri: str, database: str, raw: Any, operation: str
) -> None:
    """The main function ends, or is interrupted, in the middle of somebody's claim."""
    chance, claims = random.Random(3), []

    async def main() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            queue = broker.queue("orders")
            await queue.push("a")
            await queue.pop()
            await queue.push("b")
            claims.append(asyncio.create_task(getattr(queue, operation)()))
            await asyncio.sleep(chance.uniform(0, 0.002))
            claims[-1].cancel()

    for _ in range(25):
        asyncio.run(main())
        remaining = raw.count_documents({"q": "orders", "reserved": False})
        assert remaining == (1 if claims[-1].cancelled() else 0)
        raw.delete_many({"q": "orders"})
    assert any(claim.cancelled() for claim in claims)


class Alarm:
    """Raises ``KeyboardInterrupt`` in the main thread after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *error: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _ring(self, number: int, frame: Any) -> None:
        raise KeyboardInterrupt


# an interrupt that comes within a __del__ of somebody's is swallowed by Python, which warns
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("operation", ["reserve", "pop"])
def test_an_interrupted_claim_gives_back_what_it_took(broker: mongoq.Broker, raw: Any, operation: str) -> None:
    assert threading.current_thread() is threading.main_thread()
    queue = broker.queue("orders", max_retries=None)
    for n in range(ITEMS):
        queue.push(n)
    chance, interrupted, got = random.Random(7), 0, []
    for _ in range(200):
        item = None
        try:
            with Alarm(chance.uniform(0.0001, 0.002)):
                item = queue.reserve() if operation == "reserve" else queue.pop()
        except KeyboardInterrupt:
            interrupted += 1
        if item is not None and operation == "reserve":
            queue.release(item)
        elif item is not None:
            got.append(item.payload)
            queue.push(item.payload)
    assert interrupted > 20
    # an interrupt between the return of the call and the assignment cannot be seen by anybody: allow for it
    missing = ITEMS - raw.count_documents({"q": "orders", "reserved": False})
    assert missing <= 2, (missing, interrupted)
