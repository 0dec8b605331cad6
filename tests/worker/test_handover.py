"""Workers get the next item of a sequence with the settlement of the one before it, if they would wait for a claim."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel
from pymongo import MongoClient

import mongoq
from mongoq.worker.backlog import Backlog
from tests.waiting import until
from tests.worker.conftest import Desk, Running

CountClaims = Callable[[], int]


@pytest.fixture
def count_claims(client: MongoClient[Any], database: str) -> Iterator[CountClaims]:
    """Counts the claims that have found items, by the profile of the server."""
    client[database].command("profile", 2)

    def count() -> int:
        updates = client[database]["system.profile"].find({"op": "update", "nModified": {"$gt": 0}})
        return sum("batch" in each["command"].get("u", {}).get("$set", {}) for each in updates)

    yield count
    client[database].command("profile", 0)


def is_dry(worker: Any) -> bool:
    """Return whether the worker waits for items, after a claim that has found nothing."""
    return bool(worker._engine.loops[0].backlog.is_dry)


async def pause_until(happened: Callable[[], Any]) -> None:
    """Wait in a handler until something is true."""
    while not happened():
        await asyncio.sleep(0.005)


@pytest.fixture
def consume(desk: Desk) -> Iterator[Callable[..., list[Any]]]:
    """Start a worker whose first item runs until the worker waits for others; returns the list of what it handles."""
    started: list[Running] = []

    def start(act: Callable[[Any], Any] = lambda _: None, **options: Any) -> list[Any]:
        seen: list[Any] = []

        async def handle(payload: Any) -> None:
            if not seen:
                await pause_until(lambda: is_dry(desk._workers[-1]))
            seen.append(payload)
            result = act(payload)
            if asyncio.iscoroutine(result):
                await result

        desk.consume("orders", handle, retry=mongoq.Fixed(0), **options)
        started.append(desk.start())
        return seen

    yield start
    for running in started:
        running.stop()


@pytest.mark.parametrize("settings", [{}, {"on_dead": "hold"}], ids=["plain", "hold"])
def test_the_next_item_comes_with_the_settlement_of_the_one_before(
    broker: mongoq.Broker,
    consume: Callable[..., list[Any]],
    count_claims: CountClaims,
    raw: Any,
    settings: dict[str, Any],
) -> None:
    queue = broker.queue("orders", **settings)
    queue.push_many(range(20), sequence="a")
    seen = consume()
    until(lambda: raw.count_documents({"q": "orders"}) == 0, seconds=30)
    assert seen == list(range(20))
    assert count_claims() == 1
    assert raw.count_documents({"sequence": "a"}) == 0


def test_history_keeps_what_was_handed_over_like_the_rest(
    broker: mongoq.Broker, consume: Callable[..., list[Any]], raw: Any
) -> None:
    queue = broker.queue("orders", history=3600)
    queue.push_many(range(3), sequence="a")
    consume()
    until(lambda: raw.count_documents({"processed": {"$exists": True}}) == 3, seconds=30)
    fields = {"attempts": 1, "reserved": 1, "place": 1, "ready_from": 1, "token": 1}
    documents = list(raw.find({"q": "orders"}, {"_id": 0, **fields}))
    assert documents == [{"attempts": 1, "reserved": False}] * 3


def test_another_sequence_has_its_turn(queue: mongoq.Queue[Any], consume: Callable[..., list[Any]], raw: Any) -> None:
    queue.push_many(range(12), sequence="a")

    async def act(payload: Any) -> None:
        if payload == 5:
            queue.push("b", sequence="b")
        if payload == 6:
            await pause_until(lambda: raw.find_one({"sequence": "b", "reserved": True}))

    seen = consume(act)
    until(lambda: raw.count_documents({"q": "orders"}) == 0, seconds=30)
    assert [each for each in seen if each != "b"] == list(range(12))
    assert seen.index("b") in {6, 7}


def test_a_paused_queue_hands_nothing_over(
    desk: Desk, queue: mongoq.Queue[Any], consume: Callable[..., list[Any]], raw: Any
) -> None:
    queue.push_many(range(4), sequence="a")

    async def act(payload: Any) -> None:
        if payload == 1:
            queue.pause()
            await pause_until(lambda: desk._workers[-1]._engine.loops[0].context.state.paused)

    seen = consume(act)
    until(lambda: raw.find_one({"place": 2, "when": {"$exists": True}}), seconds=30)
    assert raw.find_one({"place": 2})["reserved"] is False
    queue.resume()
    until(lambda: raw.count_documents({"q": "orders"}) == 0, seconds=30)
    assert seen == [0, 1, 2, 3]


def test_a_queue_with_limits_hands_nothing_over(
    desk: Desk, queue: mongoq.Queue[Any], consume: Callable[..., list[Any]], count_claims: CountClaims, raw: Any
) -> None:
    queue.push_many(range(4), sequence="a")

    async def act(payload: Any) -> None:
        if payload == 0:
            queue.configure(max_running=2)
            context = desk._workers[-1]._engine.loops[0].context
            state, registry = context.state, context.broker.registry
            # The settlement reads settings that are out of date.
            await pause_until(lambda: "max_running" in state.stored or state.stale(1.0, registry))

    seen = consume(act)
    until(lambda: raw.count_documents({"q": "orders"}) == 0, seconds=30)
    assert seen == [0, 1, 2, 3]
    assert count_claims() == 4


def test_what_fails_is_tried_again_in_its_place(
    queue: mongoq.Queue[Any], consume: Callable[..., list[Any]], raw: Any
) -> None:
    queue.push_many(range(4), sequence="a")
    failed: list[Any] = []

    def act(payload: Any) -> None:
        if payload == 2 and not failed:
            failed.append(payload)
            raise ValueError("not yet")

    seen = consume(act)
    until(lambda: raw.count_documents({"q": "orders"}) == 0, seconds=30)
    assert seen == [0, 1, 2, 2, 3]


def test_a_hand_over_goes_by_limits_of_which_the_worker_has_just_read(broker: mongoq.Broker) -> None:
    worker, marks = mongoq.Worker(broker), list[Any]()
    queue = broker.queue("orders")
    queue.push(1)

    @worker.consumer(queue, concurrency=2)
    def handle(_: Any) -> None:
        until(lambda: is_dry(worker))
        handover, state = worker._engine.loops[0]._settler.handover, queue._context.state  # type: ignore[union-attr]
        marks.append(handover.reserve(datetime.now(UTC)))  # type: ignore[union-attr]
        state.store(paused=False, settings={**state.stored, "max_running": 1})
        marks.append(handover.reserve(datetime.now(UTC)))  # type: ignore[union-attr]

    worker.run(drain=True, signals=False)
    assert [each is not None for each in marks] == [True, False]


def test_nothing_is_handed_over_beyond_a_letter_that_holds(
    broker: mongoq.Broker, consume: Callable[..., list[Any]], raw: Any
) -> None:
    queue = broker.queue("orders", on_dead="hold", max_retries=0)
    queue.push_many(range(4), sequence="a")

    def act(payload: Any) -> None:
        if payload == 2:
            raise ValueError("for good")

    seen = consume(act)
    until(lambda: raw.count_documents({"q": "orders.dead"}) == 1, seconds=30)
    assert seen == [0, 1, 2]
    assert "when" not in raw.find_one({"q": "orders", "place": 3})
    queue.dead.purge()
    until(lambda: len(seen) == 4, seconds=30)


def test_a_worker_that_stops_keeps_nothing(desk: Desk, queue: mongoq.Queue[Any], raw: Any) -> None:
    queue.push_many(range(4), sequence="a")
    seen: list[Any] = []
    stopping: list[Any] = []

    async def handle(payload: Any) -> None:
        if not seen:
            await pause_until(lambda: is_dry(desk._workers[-1]))
        seen.append(payload)
        if payload == 2:
            desk._workers[-1].stop()
            stopping.append(payload)

    desk.consume("orders", handle)
    desk.start().join()
    assert (seen, stopping) == ([0, 1, 2], [2])
    last = raw.find_one({"sequence": "a", "place": 3})
    assert (last["reserved"], last["attempts"]) == (False, 0)
    assert not last.keys() & {"token", "batch"}  # nor was it reserved meanwhile


def test_an_item_that_was_handed_over_is_reserved_and_counted_as_such(broker: mongoq.Broker, raw: Any) -> None:
    queue, worker, items = broker.queue("orders", max_retries=0), mongoq.Worker(broker), list[mongoq.Item[Any]]()
    queue.push_many(range(3), sequence="a")

    @worker.consumer(queue, lease=77)
    def handle(_: Any, job: mongoq.Job) -> None:
        until(lambda: is_dry(worker))
        (item,) = job.items
        stored = raw.find_one({"_id": item.id})
        assert stored == item._document
        assert (stored["reserved"], stored["attempts"], stored["batch"]) == (True, 1, item.token)
        assert stored["when"] > datetime.now(UTC) + timedelta(seconds=60)
        items.append(item)

    worker.run(drain=True, signals=False)
    assert [item.payload for item in items] == [0, 1, 2]
    assert len({item.token for item in items}) == 3
    assert broker.stats()["orders"].reserve == 3


# --- what is left to a claim ---------------------------------------------------------------------


class Order(BaseModel):
    n: int


OVERDUE = {"start_by": datetime(2026, 1, 1, tzinfo=UTC)}


@contextmanager
def worker_thread(worker: mongoq.Worker) -> Iterator[None]:
    """Run a worker in a thread while the block runs."""
    thread = threading.Thread(target=partial(worker.run, signals=False))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)


def run_typed(queue: mongoq.Queue[Order], broker: mongoq.Broker) -> list[tuple[int, int]]:
    """Run a worker until its queue is empty, each item until the worker waits for others.

    Returns what it has handled, with the number of the run.
    """
    worker, seen = mongoq.Worker(broker), list[tuple[int, int]]()

    @worker.consumer(queue, lease=2)
    def handle(order: Order, job: mongoq.Job) -> None:
        until(lambda: is_dry(worker), seconds=20)
        seen.append((order.n, job.items[0].attempts))

    with worker_thread(worker):  # sooner than a lease ends: no item is reserved for nobody
        until(lambda: queue.size() == 0, seconds=60)
    return seen


ALL, WITHOUT_IT = [(0, 1), (1, 1), (2, 1)], [(0, 1), (2, 1)]


@pytest.mark.parametrize(
    ("fields", "handled", "claims"),
    [
        ({}, ALL, 1),
        ({"attempts": bson.Int64(0)}, ALL, 1),
        ({"by": "another:1:aa"}, ALL, 2),
        ({"attempts": 1}, [(0, 1), (1, 2), (2, 1)], 2),
        ({"attempts": 0.0}, ALL, 2),
        ({"attempts": bson.Decimal128("0")}, ALL, 2),
        (OVERDUE, WITHOUT_IT, 3),
        ({"attempts": 99}, WITHOUT_IT, 2),
        ({"attempts": "many"}, WITHOUT_IT, 2),
        ({"payload": {"n": "one"}}, WITHOUT_IT, 2),
    ],
)
def test_what_a_claim_would_find_out_is_found_out(  # noqa: PLR0917
    broker: mongoq.Broker,
    raw: Any,
    count_claims: CountClaims,
    fields: dict[str, Any],
    handled: list[tuple[int, int]],
    claims: int,
) -> None:
    queue = broker.queue("orders", model=Order, max_retries=3)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    raw.update_one({"_id": id}, {"$set": fields})
    assert run_typed(queue, broker) == handled
    is_dead = handled == WITHOUT_IT and "start_by" not in fields
    assert raw.count_documents({"q": "orders.dead"}) == int(is_dead)
    assert count_claims() == claims


def test_an_item_is_not_handed_over_before_its_time(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", model=Order)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    due = datetime.now(UTC) + timedelta(seconds=0.7)
    raw.update_one({"_id": id}, {"$set": {"ready_from": due}})
    assert run_typed(queue, broker) == ALL
    assert datetime.now(UTC) >= due


def test_an_item_that_cannot_be_decoded_is_buried_and_the_next_one_follows(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", model=Order)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    envelope = {**raw.find_one({"_id": id}), "payload": {"n": "ABC"}}
    raw.replace_one({"_id": id}, RawBSONDocument(bson.encode(envelope).replace(b"ABC", b"\xff\xfe\xfd")))
    assert run_typed(queue, broker) == WITHOUT_IT
    assert raw.count_documents({"q": "orders.dead"}) == 1


def test_without_a_dead_queue_what_does_not_fit_is_tried_again(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", model=Order, dead=None)
    _, id, _ = queue.push_many([Order(n=n) for n in range(3)], sequence="a")
    raw.update_one({"_id": id}, {"$set": {"payload": {"n": "one"}}})
    worker, seen = mongoq.Worker(broker), list[int]()

    @worker.consumer(queue, retry=mongoq.Fixed(0.2))
    def handle(order: Order) -> None:
        if not seen:
            until(lambda: is_dry(worker))
        seen.append(order.n)

    with worker_thread(worker):
        until(lambda: (raw.find_one({"_id": id}) or {}).get("attempts", 0) >= 2)
        raw.update_one({"_id": id}, {"$set": {"payload": {"n": 1}}})
        until(lambda: len(seen) == 3)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("options", [{"batch": 1}, {"probe": True}, {"rate_key": "n"}, {"max_running": 3}])
def test_consumers_that_do_more_than_run_each_item_claim_all(
    broker: mongoq.Broker, raw: Any, count_claims: CountClaims, options: dict[str, Any]
) -> None:
    queue, seen = broker.queue("orders"), list[Any]()
    queue.push_many([{"n": n} for n in range(4)], sequence="a")
    worker = mongoq.Worker(broker)

    @worker.consumer(queue, **options)
    def handle(payload: Any) -> None:
        if not seen and not options.keys() & {"probe", "max_running"}:  # those claim nothing while it runs
            until(lambda: is_dry(worker))
        seen.append(payload)

    worker.run(drain=True, signals=False)
    assert [each["n"] for each in (one[0] if isinstance(one, list) else one for one in seen)] == [0, 1, 2, 3]
    assert count_claims() == 4


def test_an_item_that_was_handed_over_takes_the_place_of_one_to_be_claimed(
    client: MongoClient[Any], broker: mongoq.Broker, raw: Any
) -> None:
    queue, worker, seen, ended = broker.queue("orders"), mongoq.Worker(broker), list[Any](), threading.Event()
    queue.push_many(["first", "next"], sequence="a")

    @worker.consumer(queue, concurrency=2, prefetch=0)
    def handle(payload: Any) -> None:
        seen.append(payload)
        if payload == "first":
            until(lambda: is_dry(worker))
            hold_up(client, "commitTransaction", seconds=1)
        else:
            ended.wait(30)

    with worker_thread(worker):
        until(lambda: seen and not worker._engine.loops[0].backlog.running, 10)
        queue.push("beside")
        until(lambda: "next" in seen, 10)
        assert seen == ["first", "beside", "next"]
        ids = queue.push_many(["later", "last"])
        time.sleep(0.3)
        states = {document["reserved"] for document in raw.find({"_id": {"$in": ids}})}
        ended.set()
    assert states == {False}


def test_no_more_items_are_handed_over_than_may_run(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, worker, ended = broker.queue("orders"), mongoq.Worker(broker), threading.Event()
    first, second, take_outcomes = list[str](), list[str](), Backlog.take_outcomes
    for name in "abcdef":
        queue.push_many([{"name": name, "n": n} for n in range(2)], sequence=name)

    @worker.consumer(queue, concurrency=2, prefetch=0)
    def handle(payload: Any) -> mongoq.Move:
        (second if payload["n"] else first).append(payload["name"])
        if payload["n"]:
            ended.wait(30)
        return mongoq.Move("out", patch={"$set": {"done": True}})  # each is settled by itself

    def take_all_at_once(backlog: Backlog) -> Any:
        return take_outcomes(backlog) if ended.is_set() or (len(first) == 6 and backlog.is_dry) else []

    monkeypatch.setattr(Backlog, "take_outcomes", take_all_at_once)
    with worker_thread(worker):
        until(lambda: raw.count_documents({"q": "out"}) == 6, 10)
        until(lambda: len(second) == 2, 10)
        time.sleep(0.3)
        reserved = raw.count_documents({"q": "orders", "reserved": True})
        coming = worker._engine.loops[0].backlog.coming
        ended.set()
        until(lambda: raw.count_documents({"q": "out"}) == 12, 10)
    assert (reserved, coming) == (2, 0)


def hold_up(client: MongoClient[Any], command: str, *, seconds: float) -> None:
    """Have the server answer the next such command late."""
    data = {"failCommands": [command], "blockConnection": True, "blockTimeMS": int(seconds * 1000)}
    client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
