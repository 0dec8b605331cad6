"""Items that were not started in time, with several claims at once: each is settled once, and hides no other."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo.errors
import pytest

import mongoq
from tests.integration.concurrent_callers import ConcurrentCallers, calls, failures
from tests.proxy import Proxy

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


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("command", ["findAndModify", "find", "delete", "update", "commitTransaction"])
@pytest.mark.parametrize(
    ("claim", "on_expired"), list(itertools.product(["reserve", "reserve_many", "pop"], ["history", "dead"]))
)
def test_a_claim_that_loses_a_message_settles_each_expired_item_once(
    lossy: tuple[Proxy, Any], claim: str, command: str, what: Any, on_expired: Any
) -> None:
    proxy, raw = lossy
    clock = mongoq.VirtualClock()
    broker = mongoq.Broker(raw, clock=clock)
    queue = broker.queue("orders", on_expired=on_expired, history=None if command == "delete" else 3600)
    queue.push_many(range(12), sequences=["a", "b", None] * 4, expires=[1] * 6 + [None] * 6)
    clock.advance(1)
    proxy.lose(what, command)
    seen: list[int] = []
    while len(seen) < 6:
        try:
            items = queue.reserve_many(9) if claim == "reserve_many" else [getattr(queue, claim)()]
        except pymongo.errors.AutoReconnect:
            continue  # the caller does not know what became of its claim
        held = [item for item in items if item is not None]
        seen += [item.payload for item in held]
        if claim != "pop":
            with suppress(mongoq.BatchIncomplete):  # the message was one of the commit, which cannot tell
                queue.commit_many(held)
        if not held:
            clock.advance(30)  # a claim whose answer was lost holds an item to the end of its lease
    assert sorted(seen) == list(range(6, 12))
    assert [number for number in seen if number % 3 == 0] == [6, 9]
    assert queue.reserve() is None
    assert raw.count_documents({"place": {"$exists": True}}) == 0
    assert raw.count_documents({"_id": {"$regex": "^sequence:"}}) == 0
    letters = [letter.payload for letter in queue.dead.peek(20)]
    if on_expired == "dead":
        # The burial of what a pop has taken is a command of its own. Without it, the item stays in the history.
        kept = [document["payload"] for document in raw.find({"q": "orders", "payload": {"$lt": 6}})]
        assert len(kept) == int((claim, command, what) == ("pop", "update", "request"))
        assert sorted(letters + kept) == list(range(6))
    else:
        assert letters == []
    broker.close()
