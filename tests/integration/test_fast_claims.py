"""Claims that go by hints: what other clients put before the place where they begin is found all the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson.max_key import MaxKey
from pymongo import MongoClient

import mongoq
from mongoq.protocol.coordination import streams
from mongoq.protocol.flow import Command
from mongoq.protocol.state.claim_hints import BOUND_MARGIN, ClaimHints, LowerBound
from tests.integration.test_plans import Watched
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
CONSUMER = Path(__file__).with_name("consumer.py")
SOON = PATIENCE
"""Seconds: looks come each second; the rest is patience with the machine."""


def hurry(queue: Any, *, priorities: tuple[int, ...] = (0,), floor: datetime | None = None) -> ClaimHints:
    """Let the claims of a queue go by hints, as if it had just been looked at."""
    claim_hints: ClaimHints = queue._context.state.claim_hints
    when = floor or datetime.now(UTC) - BOUND_MARGIN
    claim_hints.fast, claim_hints.floors = True, dict.fromkeys(priorities, LowerBound(when))
    claim_hints.looked_at = time.monotonic()
    return claim_hints


@pytest.fixture(autouse=True)
def _claims_begin_at_the_beginning() -> None:
    """They may begin at hints here."""


@pytest.fixture(autouse=True)
def _slow_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once claims are fast they stay so."""
    monkeypatch.setattr(ClaimHints, "is_slow", lambda *_: True)


@pytest.fixture
def other_queue(uri: str, database: str) -> Iterator[Any]:
    """The queue, as another client has it."""
    with mongoq.connect(uri, database=database) as opened:
        yield opened.queue("orders")


@pytest.fixture
def queue(broker: mongoq.Broker) -> Any:
    orders = broker.queue("orders")
    orders.push("first")
    orders.commit(orders.reserve())
    return orders


TAKE: dict[str, Callable[[Any], Any]] = {
    "reserve": lambda queue: queue.reserve(),
    "pop": lambda queue: queue.pop(),
    "reserve_many": lambda queue: next(iter(queue.reserve_many(5)), None),
}
BEFORE: dict[str, Callable[[Any], Any]] = {
    "back-dated": lambda queue: queue.push("x", when=datetime.now(UTC) - timedelta(hours=1)),
    "of a new priority": lambda queue: queue.push("x", priority=-9),
    "of a new priority, later": lambda queue: queue.push("x", priority=9),
}


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("push", BEFORE)
def test_what_another_client_puts_before_the_floor_is_found_by_a_later_claim(
    queue: Any, other_queue: Any, push: str, take: str
) -> None:
    hurry(queue)
    id = BEFORE[push](other_queue)
    began, item = time.monotonic(), None
    while item is None:
        assert time.monotonic() - began < SOON
        item = TAKE[take](queue)
    assert item.id == id


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("push", BEFORE)
def test_what_this_process_puts_there_is_found_at_once(queue: Any, push: str, take: str) -> None:
    hurry(queue)
    id = BEFORE[push](queue)
    item = TAKE[take](queue)
    assert item is not None
    assert item.id == id


def test_what_this_process_releases_is_found_at_once(queue: Any) -> None:
    id = queue.push("x", when=datetime.now(UTC) - timedelta(hours=1))
    item = queue.reserve()
    hurry(queue)
    queue.release(item)
    again = queue.reserve_many(1)
    assert [each.id for each in again] == [id]
    queue.release_many(again)
    assert queue.reserve().id == id


def moved_in_a_batch(broker: mongoq.Broker) -> None:
    source = broker.queue("source")
    source.push("x", priority=-9)
    source.move_many([(item, mongoq.Move("orders")) for item in source.reserve_many(1)])


def moved_in_a_batch_to_a_priority(broker: mongoq.Broker) -> None:
    source = broker.queue("source")
    source.push("x")
    source.move_many([(item, mongoq.Move("orders", priority=-9)) for item in source.reserve_many(1)])


def moved_in_a_batch_to_the_past(broker: mongoq.Broker) -> None:
    source, hour_ago = broker.queue("source"), datetime.now(UTC) - timedelta(hours=1)
    source.push("x")
    source.move_many([(item, mongoq.Move("orders", when=hour_ago)) for item in source.reserve_many(1)])


def buried(broker: mongoq.Broker) -> None:
    source = broker.queue("source", dead="orders")
    source.push("x", priority=-9)
    source.bury(source.reserve())


def buried_in_a_batch(broker: mongoq.Broker) -> None:
    source = broker.queue("source", dead="orders", max_retries=0)
    source.push("x", priority=-9)
    source.rollback_many(source.reserve_many(1))


def buried_by_a_pop(broker: mongoq.Broker) -> None:
    source = broker.queue("source", model=int, dead="orders")
    broker.queue("source").push("x", priority=-9)
    assert source.pop() is None


def buried_because_it_cannot_be_claimed(broker: mongoq.Broker) -> None:
    source = broker.queue("source", dead="orders")
    id = source.push("x", priority=-9)
    spoil: Command[Any] = Command("update_one", {"filter": {"_id": id}, "update": {"$set": {"attempts": "many"}}})
    broker._driver.run(iter(spoil))
    assert source.reserve() is None


def sent_back(broker: mongoq.Broker) -> None:
    source = broker.queue("source")
    source.push("x", priority=-9)
    source.bury(source.reserve())
    source.dead.replay(to="orders")


def replayed(broker: mongoq.Broker) -> None:
    source = broker.queue("source", history=3600)
    source.push("x", priority=-9)
    source.pop()
    source.replay(to="orders")


def given_back_by_a_stream(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push("x", priority=-9)
    run = broker._driver.run(streams.open_run(broker._context, "etl", "orders", timedelta(seconds=60)))
    assert broker._driver.run(streams.next_claim(queue._context, run, 5, None, after=0)) is not None
    hurry(queue)  # as if the item had been pushed elsewhere
    assert broker.release_claims("etl") == 1


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize(
    "push",
    [
        moved_in_a_batch,
        moved_in_a_batch_to_a_priority,
        moved_in_a_batch_to_the_past,
        buried,
        buried_in_a_batch,
        buried_by_a_pop,
        buried_because_it_cannot_be_claimed,
        sent_back,
        replayed,
        given_back_by_a_stream,
    ],
)
def test_what_this_process_puts_there_in_another_way_is_found_at_once(
    broker: mongoq.Broker, queue: Any, push: Callable[[mongoq.Broker], None], take: str
) -> None:
    claim_hints = hurry(queue)
    push(broker)
    claim_hints.looked_at = time.monotonic() + SOON  # by this process's own knowledge, not by the next refresh
    item = TAKE[take](queue)
    assert item is not None
    assert item.payload == "x"


def test_a_push_of_now_is_found_at_once_whoever_made_it(queue: Any, other_queue: Any) -> None:
    hurry(queue)
    for _ in range(50):
        id = other_queue.push("x")
        assert queue.reserve().id == id


def test_an_expired_lease_is_found(queue: Any, other_queue: Any) -> None:
    hurry(queue)
    id = other_queue.push("x")
    assert other_queue.reserve(lease=0.05).id == id
    assert queue.reserve() is None
    time.sleep(0.06)
    assert queue.reserve().id == id


def test_an_urgent_item_of_another_client_is_found_while_others_keep_coming(queue: Any, other_queue: Any) -> None:
    hurry(queue)
    urgent, began = other_queue.push("urgent", priority=-9), time.monotonic()
    while True:
        assert time.monotonic() - began < SOON
        queue.push("x")
        if queue.reserve().id == urgent:
            break


def test_claims_keep_the_order_of_what_they_know(queue: Any) -> None:
    hurry(queue, priorities=(-1, 0, 1), floor=datetime.now(UTC) - timedelta(hours=2))
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    wanted = []
    for priority in (-1, 0, 1):
        wanted += [queue.push("x", priority=priority, when=hour_ago) for _ in range(3)]
        wanted += queue.push_many(["x"] * 3, priority=priority, when=hour_ago + timedelta(minutes=1))
    got = [queue.reserve().id for _ in range(4)]
    got += [item.id for item in queue.reserve_many(6)]
    got += [queue.pop().id for _ in range(5)]
    got += [item.id for item in queue.reserve_many(9)]
    assert got == wanted


def test_the_end_of_a_priority_is_no_item(queue: Any, raw: Any, broker: mongoq.Broker) -> None:
    claim_hints = hurry(queue)
    claim_hints.looked_at = float("-inf")
    assert queue.reserve() is None
    assert raw.find_one({"_id": "end:0:orders"}) == {
        "_id": "end:0:orders",
        "q": "orders",
        "priority": 0,
        "when": MaxKey(),
    }
    assert queue.peek(5) == queue.reserve_many(5) == list(queue.history(state=None)) == []
    assert (queue.pop(), queue.next_when(), queue.size(), queue.counts().total) == (None, None, 0, 0)
    assert broker.queues() == []
    assert queue.purge() == 0
    assert broker.stats()["orders"].counts.total == 0


def test_a_queue_that_is_slow_to_walk_gets_hints_by_itself(queue: Any) -> None:
    claim_hints: ClaimHints = queue._context.state.claim_hints
    claim_hints.looked_at, claim_hints.spent = float("-inf"), 1.0
    queue.push("x")
    assert queue.reserve() is not None
    assert claim_hints.fast


def test_nothing_is_lost_or_doubled_by_several_processes(uri: str, database: str, client: MongoClient[Any]) -> None:
    """Each goes by hints and in batches or not, while pushes of all priorities and dates come in."""
    with mongoq.connect(uri, database=database) as broker:
        queue, pushed = broker.queue("orders"), []
        consumers = [
            subprocess.Popen(
                [sys.executable, str(CONSUMER), uri, database, str(batch)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT)},
            )
            for batch in (1, 7, 20, 0)
        ]
        popped: list[str] = []
        readers = [threading.Thread(target=_read, args=(consumer, popped)) for consumer in consumers]
        for reader in readers:
            reader.start()
        for n in range(60):
            when = datetime.now(UTC) - timedelta(seconds=(n % 7) * 10)
            pushed += queue.push_many(range(25), priority=(n * 7) % 13 - 6, when=when)
        for reader in readers:
            reader.join()
        for consumer in consumers:
            assert consumer.wait() == 0
        assert queue.size() == 0
    assert Counter(popped) == Counter(str(id) for id in pushed)


def _read(consumer: subprocess.Popen[str], popped: list[str]) -> None:
    assert consumer.stdout is not None
    with consumer.stdout as lines:
        popped += [line.strip() for line in lines]


# --- plans --------------------------------------------------------------------------------------------------------


DEEP = 20_000


@pytest.fixture
def watched(uri: str, database: str) -> Iterator[Watched]:
    """A queue of three priorities, each with items before and behind the floor, and many that wait."""
    deep = Watched(uri, database)
    deep.broker.ensure_indexes()
    now = datetime.now(UTC)
    for priority in (-5, 0, 5):
        for when in (now - timedelta(hours=2), now - timedelta(minutes=5), now + timedelta(hours=1)):
            deep.queue.push_many(range(DEEP // 9), priority=priority, when=when)
    yield deep
    deep.client.close()


@pytest.mark.parametrize("priorities", [(0,), (-5, 0, 5), tuple(range(-5, 11))], ids=len)
@pytest.mark.parametrize("take", TAKE)
def test_a_fast_claim_begins_at_the_floors(watched: Watched, take: str, priorities: tuple[int, ...]) -> None:
    hurry(watched.queue, priorities=priorities, floor=datetime.now(UTC) - timedelta(hours=1))
    items = 5 if take == "reserve_many" else 1
    for _ in range(2):  # the second time from an id
        item = TAKE[take](watched.queue)
        assert item is not None
        assert item.due > datetime.now(UTC) - timedelta(hours=1)
        plan = watched.plan("findAndModify") if take != "reserve_many" else _first_find(watched)
        assert "IXSCAN" in plan.stages
        assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
        assert plan.keys <= items + 2 * len(priorities)
        assert plan.documents <= (0 if take == "reserve_many" else 1)


def _first_find(watched: Watched) -> Any:
    """Explain the ``find`` of the ids of a batch as one that follows the last would send it."""
    start = watched.queue._context.state.claim_hints.start("orders", datetime.now(UTC))
    watched.recorder.commands["find"] = {
        "find": "mongoq",
        "filter": start.filter,
        "sort": {"priority": 1, "when": 1, "_id": 1},
        "limit": 5,
        "projection": {"priority": 1, "when": 1},
    }
    return watched.plan("find")
