"""Workers get the next item of a sequence with the settlement of the one before it, if they would wait for a claim."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel
from pymongo import MongoClient

import mongoq
from tests.waiting import until
from tests.worker.conftest import KINDS, Desk

PATIENCE = 2.0
"""Seconds for which a run waits for its worker to look for others in vain; what holds, holds without that as well."""


@pytest.fixture
def profile(client: MongoClient[Any], database: str) -> Iterator[Any]:
    """What the server has done for the queue."""
    client[database].command("profile", 2)
    yield client[database]["system.profile"]
    client[database].command("profile", 0)


def count_claims(profile: Any) -> int:
    """Count the claims that have found items."""
    updates = profile.find({"op": "update", "nModified": {"$gt": 0}})
    return sum("batch" in each["command"].get("u", {}).get("$set", {}) for each in updates)


@pytest.fixture
def rest(profile: Any) -> Callable[..., None]:
    """Waits in a run until the worker has looked for other items, and found none: now it would wait for a claim."""

    def is_dry() -> bool:
        looks = profile.find({"op": "query", "command.filter.q": "orders"}).sort("$natural", -1).limit(1)
        return any(look["nreturned"] == 0 for look in looks)

    def wait(seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not is_dry() and time.monotonic() < deadline:
            time.sleep(0.005)

    return wait


def start(desk: Desk, rest: Callable[..., None], act: Callable[[Any], Any] = lambda _: None) -> list[Any]:
    """Start a worker whose first run waits until it looks for others; return the list of what it handles."""
    seen: list[Any] = []

    async def handle(payload: Any) -> None:
        if not seen:
            await asyncio.to_thread(rest, 120)
        seen.append(payload)
        act(payload)

    desk.consume("orders", handle, retry=mongoq.Fixed(0))
    desk.start()
    return seen


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_the_next_item_comes_with_the_settlement_of_the_one_before(
    desk: Desk, queue: mongoq.Queue[Any], rest: Callable[[], None], profile: Any, raw: Any
) -> None:
    queue.push_many(range(20), sequence="a")
    seen = start(desk, rest)
    until(lambda: raw.count_documents({"q": "orders"}) == 0)
    assert seen == list(range(20))
    assert count_claims(profile) < 10
    assert raw.count_documents({"sequence": "a"}) == 0


def test_a_paused_queue_hands_nothing_over(
    desk: Desk, queue: mongoq.Queue[Any], rest: Callable[[], None], raw: Any
) -> None:
    queue.push_many(range(1_000), sequence="a")
    seen = start(desk, rest, lambda payload: queue.pause() if payload == 1 else time.sleep(0.01))
    until(lambda: len(seen) > 1)
    # The worker hears of it within a moment, and then holds nothing more.
    until(lambda: all(raw.count_documents({"q": "orders", "reserved": True}) == 0 for _ in range(20)))
    assert 0 < queue.size() < 1_000
    assert seen == list(range(len(seen)))


def test_what_fails_is_tried_again_in_its_place(
    desk: Desk, queue: mongoq.Queue[Any], rest: Callable[[], None], raw: Any
) -> None:
    queue.push_many(range(4), sequence="a")
    failed: list[Any] = []

    def act(payload: Any) -> None:
        if payload == 2 and not failed:
            failed.append(payload)
            raise ValueError("not yet")

    seen = start(desk, rest, act)
    until(lambda: raw.count_documents({"q": "orders"}) == 0)
    assert seen == [0, 1, 2, 2, 3]


def test_nothing_is_handed_over_beyond_a_letter_that_holds(
    desk: Desk, broker: mongoq.Broker, rest: Callable[[], None], raw: Any
) -> None:
    queue = broker.queue("orders", on_dead="hold", max_retries=0)
    queue.push_many(range(4), sequence="a")

    def act(payload: Any) -> None:
        if payload == 2:
            raise ValueError("for good")

    seen = start(desk, rest, act)
    until(lambda: raw.count_documents({"q": "orders.dead"}) == 1)
    assert seen == [0, 1, 2]
    assert "when" not in raw.find_one({"q": "orders", "place": 3})
    queue.dead.purge()
    until(lambda: len(seen) == 4)


def test_a_worker_that_stops_keeps_nothing(
    desk: Desk, queue: mongoq.Queue[Any], rest: Callable[[], None], raw: Any
) -> None:
    queue.push_many(range(4), sequence="a")
    seen = start(desk, rest, lambda payload: desk.worker.stop() if payload == 2 else None)
    until(lambda: desk.worker.health().reasons == ("the worker does not run",))
    assert seen == [0, 1, 2]
    last = raw.find_one({"sequence": "a", "place": 3})
    assert (last["reserved"], last["attempts"]) == (False, 0)


def test_an_item_that_was_handed_over_is_reserved_and_counted_as_such(
    broker: mongoq.Broker, rest: Callable[[], None], raw: Any
) -> None:
    queue, worker, tokens = broker.queue("orders", max_retries=0), mongoq.Worker(broker), list[Any]()
    queue.push_many(range(3), sequence="a")

    @worker.consumer(queue, lease=77)
    def handle(_: Any, job: mongoq.Job) -> None:
        rest()
        stored = raw.find_one({"_id": job.item.id})
        assert (stored["reserved"], stored["attempts"]) == (True, 1)
        assert "ready_from" not in stored
        assert stored["when"] > datetime.now(UTC) + timedelta(seconds=40)
        tokens.append(stored["token"])

    worker.run(drain=True, signals=False)
    assert len(set(tokens)) == 3
    assert broker.stats()["orders"].reserve == 3


# --- what is left to a claim ---------------------------------------------------------------------


class Order(BaseModel):
    n: int


def run_typed(broker: mongoq.Broker, rest: Callable[[], None]) -> list[tuple[int, int]]:
    """Run a worker until its queue is empty, and return what it has handled, with the number of the run."""
    worker, seen = mongoq.Worker(broker), list[tuple[int, int]]()

    @worker.consumer(broker.queue("orders", model=Order))
    def handle(order: Order, job: mongoq.Job) -> None:
        rest()
        seen.append((order.n, job.items[0].attempts))

    worker.run(drain=True, signals=False)
    return seen


ALL, WITHOUT_IT = [(0, 1), (1, 1), (2, 1)], [(0, 1), (2, 1)]


@pytest.mark.parametrize(
    ("fields", "handled"),
    [
        ({"attempts": 1}, [(0, 1), (1, 2), (2, 1)]),
        ({"attempts": bson.Decimal128("0")}, ALL),
        ({"start_by": datetime(2026, 1, 1, tzinfo=UTC)}, WITHOUT_IT),
        ({"attempts": 99}, WITHOUT_IT),
        ({"payload": {"n": "one"}}, WITHOUT_IT),
    ],
)
def test_what_a_claim_would_find_out_is_found_out(
    broker: mongoq.Broker, raw: Any, rest: Callable[[], None], fields: dict[str, Any], handled: list[tuple[int, int]]
) -> None:
    queue = broker.queue("orders", model=Order, max_retries=3)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    raw.update_one({"_id": id}, {"$set": fields})
    assert run_typed(broker, rest) == handled
    is_dead = handled == WITHOUT_IT and "start_by" not in fields
    assert raw.count_documents({"q": "orders.dead"}) == int(is_dead)


def test_an_item_is_not_handed_over_before_its_time(broker: mongoq.Broker, raw: Any, rest: Callable[[], None]) -> None:
    queue = broker.queue("orders", model=Order)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    due = datetime.now(UTC) + timedelta(seconds=0.7)
    raw.update_one({"_id": id}, {"$set": {"ready_from": due}})
    assert run_typed(broker, rest) == ALL
    assert datetime.now(UTC) >= due


def test_an_item_that_cannot_be_decoded_is_buried_and_the_next_one_follows(
    broker: mongoq.Broker, raw: Any, rest: Callable[[], None]
) -> None:
    queue = broker.queue("orders", model=Order)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    envelope = {**raw.find_one({"_id": id}), "payload": {"n": "ABC"}}
    raw.replace_one({"_id": id}, RawBSONDocument(bson.encode(envelope).replace(b"ABC", b"\xff\xfe\xfd")))
    assert run_typed(broker, rest) == WITHOUT_IT
    assert raw.count_documents({"q": "orders.dead"}) == 1


@pytest.mark.parametrize("options", [{"batch": 1}, {"probe": True}, {"rate_key": "n"}, {"max_running": 3}], ids=str)
def test_consumers_that_do_more_than_run_each_item_get_all_in_order(
    broker: mongoq.Broker, rest: Callable[[], None], options: dict[str, Any]
) -> None:
    queue, seen = broker.queue("orders"), list[Any]()
    queue.push_many([{"n": n} for n in range(4)], sequence="a")
    worker = mongoq.Worker(broker)

    @worker.consumer(queue, **options)
    def handle(payload: Any) -> None:
        if not seen and not options.keys() & {"probe", "max_running"}:  # those claim nothing while it runs
            rest()
        seen.append(payload)

    worker.run(drain=True, signals=False)
    expected = [{"n": n} for n in range(4)]
    assert seen == ([[each] for each in expected] if "batch" in options else expected)
