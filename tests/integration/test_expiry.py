"""Items that were not started in time, with several claims at once: each is settled once, and hides no other."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.integration.concurrent_callers import ConcurrentCallers, calls, failures

SEQUENCES = ["a", "b", "c", None]


def check_empty(raw: Any) -> None:
    left = {"$or": [{"place": {"$exists": True}}, {"_id": {"$regex": "^sequence:"}}, {"q": "orders"}]}
    assert not list(raw.find(left))


@pytest.fixture
def clock() -> mongoq.VirtualClock:
    return mongoq.VirtualClock()


@pytest.mark.parametrize("way", ["reserve", "reserve_many", "pop"])
def test_each_expired_item_becomes_one_letter_however_many_claim(
    raw: Any, clock: mongoq.VirtualClock, way: str
) -> None:
    """Threads of one broker share claims; two brokers race for the same items."""
    number, ready = 240, threading.Barrier(6)
    brokers = [mongoq.Broker(raw, clock=clock) for _ in range(2)]
    queues = [broker.queue("orders", on_expired="dead") for broker in brokers]
    sequences = [SEQUENCES[place % 4] for place in range(number)]
    expires = [1 if place % 3 else None for place in range(number)]
    queues[0].push_many(range(number), sequences=sequences, expires=expires)
    wanted = [place for place in range(number) if not place % 3]
    clock.advance(1)
    started: list[int] = []

    def claim(queue: mongoq.Queue[Any]) -> None:
        ready.wait(30)
        while len(started) < len(wanted):
            if way == "reserve_many":
                items = queue.reserve_many(5)
                queue.commit_many(items)
            else:
                item = queue.pop() if way == "pop" else queue.reserve()
                items = [] if item is None else [item]
                if item is not None and way == "reserve":
                    queue.commit(item)
            started.extend(item.payload for item in items)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(claim, queues[place % 2]) for place in range(6)]:
            future.result()
    assert sorted(started) == wanted
    assert queues[0].reserve() is None
    letters = Counter(letter.payload for letter in queues[0].dead.peek(number))
    assert letters == Counter(place for place in range(number) if place % 3)
    check_empty(raw)
    for broker in brokers:
        broker.close()
    stats = mongoq.Broker(raw, clock=clock).stats()["orders"]
    assert stats.expired == len(letters)


async def test_callers_that_share_a_claim_get_no_expired_item(callers: ConcurrentCallers, raw: Any) -> None:
    queue, over = callers.queue(history=3600), datetime.now(UTC) - timedelta(minutes=1)
    sequences, expires = [None, "a", "b"] * 20, [over, None, over] * 20

    def push() -> Any:
        return queue.push_many(range(60), sequences=sequences, expires=expires)

    await callers.call(push)
    found: list[int] = []
    while len(found) < 20:
        items = [item for item in await callers.together([queue.reserve] * 8) if item is not None]
        assert failures(items) == []
        found += [item.payload for item in items]
        assert failures(await callers.together(calls(queue.commit, items))) == []
    assert found == list(range(1, 60, 3))
    assert await callers.call(queue.reserve) is None
    processed = {document["payload"]: document["attempts"] for document in raw.find({"processed": {"$exists": True}})}
    assert processed == {number: int(number % 3 == 1) for number in range(60)}
    assert raw.count_documents({"$or": [{"place": {"$exists": True}}, {"when": {"$exists": True}}]}) == 0


def test_a_push_in_a_transaction_has_its_time_and_its_place(raw: Any, clock: mongoq.VirtualClock) -> None:
    broker = mongoq.Broker(raw, clock=clock)
    queue = broker.queue("orders")
    with broker.transaction() as tx:
        queue.push("late", sequence="a", expires=1, session=tx.session)
        queue.push_many(["later", "good"], sequence="a", expires=[1, None], session=tx.session)
    clock.advance(1)
    item = queue.reserve()
    assert item is not None
    assert item.payload == "good"
    queue.commit(item)
    check_empty(raw)
    broker.close()
