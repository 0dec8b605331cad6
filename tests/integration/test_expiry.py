"""Items that were not started in time, with several claims at once: each is settled once, and hides no other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo.errors
import pytest
from bson import ObjectId
from pymongo import MongoClient

import mongoq
from tests.integration.commands import Commands, failing
from tests.integration.concurrent_callers import ConcurrentCallers, calls, failures
from tests.proxy import Kind, Proxy

SEQUENCES = ["a", "b", "c", None]
NO_SEQUENCES: dict[str, Any] = {"$or": [{"place": {"$exists": True}}, {"_id": {"$regex": "^sequence:"}}]}


@pytest.fixture
def clock() -> mongoq.VirtualClock:
    return mongoq.VirtualClock()


@pytest.mark.usefixtures("patient_close")
@pytest.mark.parametrize("way", ["reserve_many", "pop"])
def test_each_expired_item_becomes_one_letter_however_many_claim(
    raw: Any, clock: mongoq.VirtualClock, way: str
) -> None:
    """Threads of one broker share claims; two brokers race for the same items."""
    number, ready = 60, threading.Barrier(4)
    brokers = [mongoq.Broker(raw, clock=clock) for _ in range(2)]
    queues = [broker.queue("orders", on_expired="dead") for broker in brokers]
    sequences = [SEQUENCES[place % 4] for place in range(number)]
    expires = [1 if place % 3 else None for place in range(number)]
    queues[0].push_many(range(number), sequences=sequences, expires=expires)
    wanted = [place for place in range(number) if not place % 3]
    clock.advance(1)
    started: list[int] = []

    def claim(queue: mongoq.Queue[Any]) -> None:
        ready.wait()
        while len(started) < len(wanted):
            if way == "pop":
                item = queue.pop()
                items = [] if item is None else [item]
            else:
                items = queue.reserve_many(5)
                queue.commit_many(items)
            started.extend(item.payload for item in items)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(claim, queues[place % 2]) for place in range(4)]:
            future.result()
    assert sorted(started) == wanted
    assert queues[0].reserve() is None
    letters = Counter(letter.payload for letter in queues[0].dead.peek(number))
    assert letters == Counter(place for place in range(number) if place % 3)
    assert not list(raw.find({"$or": [*NO_SEQUENCES["$or"], {"q": "orders"}]}))
    for broker in brokers:
        broker.close()
    assert mongoq.Broker(raw, clock=clock).stats()["orders"].expired == len(letters)


async def test_callers_that_share_a_claim_get_no_expired_item(callers: ConcurrentCallers, raw: Any) -> None:
    queue, over = callers.queue(history=3600), datetime.now(UTC) - timedelta(minutes=1)
    sequences, expires = [None, "a", "b"] * 8, [over, None, over] * 8
    await callers.call(lambda: queue.push_many(range(24), sequences=sequences, expires=expires))
    found: list[int] = []
    while len(found) < 8:
        items = [item for item in await callers.together([queue.reserve] * 8) if item is not None]
        assert failures(items) == []
        found += [item.payload for item in items]
        assert failures(await callers.together(calls(queue.commit, items))) == []
    assert found == list(range(1, 24, 3))
    assert await callers.call(queue.reserve) is None
    processed = {document["payload"]: document["attempts"] for document in raw.find({"processed": {"$exists": True}})}
    assert processed == {number: int(number % 3 == 1) for number in range(24)}
    assert raw.count_documents({"$or": [{"place": {"$exists": True}}, {"when": {"$exists": True}}]}) == 0


def test_a_push_in_a_transaction_has_its_time_and_its_place(raw: Any, clock: mongoq.VirtualClock) -> None:
    with mongoq.Broker(raw, clock=clock) as broker:
        queue = broker.queue("orders")
        with broker.transaction() as tx:
            queue.push("late", sequence="a", expires=1, session=tx.session)
            queue.push_many(["later", "good"], sequence="a", expires=[1, None], session=tx.session)
        clock.advance(1)
        item = queue.reserve()
        assert item is not None
        assert item.payload == "good"
        queue.commit(item)
        assert not list(raw.find({"$or": [*NO_SEQUENCES["$or"], {"q": "orders"}]}))


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize(
    ("claim", "command", "on_expired"),
    [
        ("reserve", "findAndModify", "history"),
        ("reserve", "delete", "history"),
        ("reserve_many", "update", "history"),
        ("reserve_many", "commitTransaction", "dead"),
        ("pop", "update", "dead"),
    ],
)
def test_a_claim_that_loses_a_message_settles_each_expired_item_once(  # noqa: PLR0917
    lossy: tuple[Proxy, Any], clock: mongoq.VirtualClock, claim: str, command: str, what: Kind, on_expired: Any
) -> None:
    proxy, raw = lossy
    with mongoq.Broker(raw, clock=clock) as broker:
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
        assert proxy.lost == 1
        assert sorted(seen) == list(range(6, 12))
        assert [number for number in seen if number % 3 == 0] == [6, 9]
        assert queue.reserve() is None
        assert raw.count_documents(NO_SEQUENCES) == 0
        letters = [letter.payload for letter in queue.dead.peek(20)]
        kept = [document["payload"] for document in raw.find({"q": "orders", "payload": {"$lt": 6}})]
        if on_expired == "dead":
            assert (sorted(letters), kept) == (list(range(6)), [])
        else:
            assert letters == []


# --- between the commands of a claim -------------------------------------------------------------


class Watched:
    """A queue on the test's clock whose commands are watched, and the collection as another process sees it."""

    def __init__(self, uri: str, raw: Any, clock: mongoq.VirtualClock) -> None:
        self.commands = Commands()
        self.client: MongoClient[Any] = MongoClient(uri, event_listeners=[self.commands], appname=raw.database.name)
        self.broker = mongoq.Broker(self.client[raw.database.name]["mongoq"], clock=clock)
        self.queue = self.broker.queue("orders")

    def before(self, command: str, action: Any, *, skip: int = 0) -> None:
        """Let something happen before a command of this name."""
        left = [skip]

        def act(name: str, _: Any) -> None:
            if name == command:
                left[0] -= 1
                if left[0] < 0:
                    self.commands.before = None
                    action()

        self.commands.before = act


@pytest.fixture
def watched(uri: str, raw: Any, clock: mongoq.VirtualClock) -> Iterator[Watched]:
    instance = Watched(uri, raw, clock)
    yield instance
    instance.broker.close()
    instance.client.close()


def test_what_another_caller_has_taken_before_it_starts_is_not_handed_out(watched: Watched, raw: Any) -> None:
    """The claim took so long that its lease was over."""
    id = watched.queue.push("mine", expires=3600)
    theirs = {"token": ObjectId(), "by": "another"}
    watched.before("update", lambda: raw.update_one({"_id": id}, {"$set": theirs}))
    assert watched.queue.reserve() is None
    assert raw.find_one({"_id": id})["by"] == "another"


def test_what_somebody_has_started_meanwhile_does_not_expire(
    watched: Watched, raw: Any, clock: mongoq.VirtualClock
) -> None:
    watched.queue.push(0, expires=5)
    started = watched.queue.push(1, expires=5)
    clock.advance(10)
    # Another process had claimed it in time, and has handed it back.
    watched.before("delete", lambda: raw.update_one({"_id": started}, {"$unset": {"start_by": ""}}), skip=1)
    item = watched.queue.reserve()
    assert item is not None
    assert item.id == started


@pytest.mark.parametrize("sequence", [None, "a"])
def test_a_queue_full_of_expired_items_is_emptied_in_few_commands(
    watched: Watched, clock: mongoq.VirtualClock, sequence: str | None
) -> None:
    watched.queue.push_many(range(60), expires=5, sequence=sequence)
    clock.advance(10)
    watched.commands.sent.clear()
    assert watched.queue.reserve() is None
    assert len(watched.commands.sent) < 30
    assert watched.broker.stats()["orders"].expired == 60


def test_items_beside_expired_ones_are_given_back_when_the_claim_fails(
    watched: Watched, client: MongoClient[Any], clock: mongoq.VirtualClock, raw: Any
) -> None:
    watched.queue.push_many(range(4), expires=[5, None, 5, None])
    clock.advance(10)
    with (
        failing(client, "delete", times=None, errorCode=4711, appName=raw.database.name),
        pytest.raises(pymongo.errors.OperationFailure, match="4711|failpoint"),
    ):
        watched.queue.reserve_many(4)
    assert [item.payload for item in watched.queue.reserve_many(4)] == [1, 3]
