"""What a handler returns, or raises, and what becomes of its item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import AsyncMongoClient, InsertOne, MongoClient, UpdateOne, WriteConcern
from pymongo.errors import DuplicateKeyError

import mongoq
from tests.worker.conftest import KINDS, Desk, every_kind

QUICK = mongoq.Fixed(0.01)


class Raises:
    """What is no queue, and raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise LookupError("nobody is there")


class Unknown(mongoq.Outcome):
    """An outcome that the set does not list."""


class Texts(Exception):
    """An error that cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_any_return_value_is_success(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    values = [None, 0, False, "", {"retry": True}, [1], mongoq.Drop()]
    queue.configure(history=3600)
    queue.push_many(range(len(values)))

    async def handle(payload: int) -> Any:
        return values[payload]

    desk.consume("orders", handle)
    desk.run()
    assert [item.attempts for item in queue.history()] == [1] * len(values)
    assert queue.dead.counts() == mongoq.Counts()


def test_an_outcome_that_is_raised_fails_with_an_error_that_says_so(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push(1)

    async def handle(_: Any) -> None:
        raise mongoq.Dead("no such customer")  # type: ignore[misc]

    desk.consume("orders", handle, max_retries=0)
    desk.run()
    [letter] = queue.dead.peek(2)
    assert letter.error is not None
    assert letter.error.type == "mongoq.errors.OutcomeInvalid"
    assert "an outcome is returned: return mongoq.Dead" in letter.error.message


def test_each_item_comes_with_its_payload_and_its_job(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    ids = queue.push_many([f"n{n}" for n in range(30)])
    deliveries = {}

    async def handle(payload: Any, job: Any) -> None:
        deliveries[job.item.id] = payload, job.item.payload, len(job.items), job.lost.is_set()

    desk.consume("orders", handle, concurrency=4)
    desk.run()
    assert deliveries == {id: (f"n{n}", f"n{n}", 1, False) for n, id in enumerate(ids)}


def test_an_exception_is_a_failure_until_the_retries_are_used_up(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push("bad")
    runs = []

    async def handle(payload: Any, job: Any) -> None:
        runs.append((job.item.attempts, job.item.error and job.item.error.message))
        raise ValueError(f"run {job.item.attempts}")

    desk.consume("orders", handle, retry=QUICK, max_retries=3)
    desk.run()
    assert runs == [(1, None), (2, "run 1"), (3, "run 2"), (4, "run 3")]
    (letter,) = queue.dead.peek(2)
    assert (letter.origin.reason, letter.origin.attempts) == ("retries exhausted", 4)
    assert (letter.error.type, letter.error.message) == ("ValueError", "run 4")
    assert 'raise ValueError(f"run {job.item.attempts}")' in letter.error.traceback
    assert "mongoq/worker" not in letter.error.traceback


def test_the_delay_between_runs_is_what_the_policy_says(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push("bad")
    came: list[Any] = []

    async def handle(payload: Any, job: Any) -> None:
        if job.item.error is not None:
            came.append(job.item.due - job.item.error.at)
        raise ValueError

    desk.consume("orders", handle, retry=mongoq.Linear(0.05), max_retries=3)
    desk.run()
    assert [round(delay.total_seconds(), 3) for delay in came] == [0.05, 0.1, 0.15]


@every_kind
def test_outcomes_say_otherwise(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(["retry", "dead", "drop", "move", "payload", "patch", "later"], headers={"from": "here"})
    runs: list[tuple[str, int]] = []
    outcomes = {
        "dead": mongoq.Dead("not wanted"),
        "drop": mongoq.Drop(),
        "move": mongoq.Move("next"),
        "payload": mongoq.Move("next", payload={"a": 1}),
        "later": mongoq.Move("next", delay=3600),
    }

    async def handle(payload: Any, job: Any) -> Any:
        runs.append((payload, job.item.attempts))
        if payload == "retry":
            return mongoq.Retry(delay=0.02, error="not yet") if job.item.attempts == 1 else None
        if payload == "patch":
            return mongoq.Move("next", priority=-5)
        return outcomes[payload]

    desk.consume("orders", handle, concurrency=3, retry=mongoq.Fixed(3600))
    desk.run()
    assert sorted(runs) == sorted([("retry", 1), ("retry", 2), *((name, 1) for name in [*outcomes, "patch"])])
    assert [(letter.payload, letter.origin.reason) for letter in queue.dead.peek(9)] == [("dead", "not wanted")]
    moved = desk.broker.queue("next").peek(9, state="ready")
    assert (moved[0].payload, moved[0].priority) == ("patch", -5)
    assert sorted(str(item.payload) for item in moved) == ["move", "patch", "{'a': 1}"]
    assert desk.broker.queue("next").counts().scheduled == 1


def test_a_patch_changes_the_payload_on_its_way(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push({"n": 1})

    async def handle(payload: Any) -> Any:
        return mongoq.Move("next", patch={"$inc": {"n": 1}, "$set": {"seen": True}})

    desk.consume("orders", handle)
    desk.run()
    assert desk.broker.queue("next").peek(1)[0].payload == {"n": 2, "seen": True}


IMPOSSIBLE: list[tuple[Any, str]] = [
    (mongoq.Retry, "the class Retry was returned; return Retry(…)"),
    (mongoq.Move("$no"), "a queue name cannot begin with '$'"),
    (mongoq.Move("next", payload=object()), "object"),
    (mongoq.Move("next", patch={"$where": {"a": 1}}), "$where"),
    (mongoq.Move("next", patch={"$inc": {"a": 1}}), "a"),
    (mongoq.Move("next", priority=1000), "priority"),
    (mongoq.Move(Raises()), "a Move that cannot be read: LookupError: nobody is there"),
    (Unknown(), "Unknown"),
]


@pytest.mark.parametrize("desk", KINDS[:2], indirect=True)
def test_an_outcome_that_cannot_be_is_a_failure(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([{"a": "text", "n": n} for n in range(len(IMPOSSIBLE))])

    async def handle(payload: Any) -> Any:
        return IMPOSSIBLE[payload["n"]][0]

    desk.consume("orders", handle, retry=QUICK, max_retries=1)
    desk.run()
    letters = {letter.payload["n"]: letter for letter in queue.dead.peek(99)}
    assert letters.keys() == set(range(len(IMPOSSIBLE)))
    for n, (_, message) in enumerate(IMPOSSIBLE):
        assert message in letters[n].error.message
        assert letters[n].origin.attempts == 2
    assert desk.broker.queue("next").size() == 0


ERRORS: dict[str, Any] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "Texts": Texts,
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_handler_raises_is_its_items_alone(
    kind: str, uri: str, database: str, broker: mongoq.Broker, queue: mongoq.Queue[Any]
) -> None:
    queue.push_many([payload for name in ERRORS for payload in (name, "good")])
    payloads = []

    def plain(payload: Any) -> None:
        payloads.append(payload)
        if payload in ERRORS:
            raise ERRORS[payload]

    async def task(payload: Any) -> None:
        plain(payload)

    async def asynchronous() -> None:
        async with mongoq.connect_async(uri, database=database) as opened:
            worker = mongoq.AsyncWorker(opened)
            worker.consumer("orders", retry=QUICK, max_retries=1)(plain if kind == "plain" else task)
            await worker.run(drain=True)

    if kind == "threads":
        worker = mongoq.Worker(broker)
        worker.consumer("orders", retry=QUICK, max_retries=1)(plain)
        worker.run(drain=True)
    else:
        asyncio.run(asynchronous())
    assert sorted(payloads) == sorted([*ERRORS, *ERRORS, *["good"] * len(ERRORS)])
    types = {letter.payload: letter.error.type.split(".")[-1] for letter in queue.dead.peek(9)}
    if kind != "threads":
        assert types.pop("StopIteration") == "RuntimeError", "a coroutine cannot raise StopIteration"
    assert {name: name for name in types} == types
    assert len(types) >= len(ERRORS) - 1


def test_an_expected_conflict_is_success(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(["conflict", "other"])

    async def handle(payload: Any) -> None:
        raise KeyError(payload) if payload == "conflict" else ValueError(payload)

    desk.consume("orders", handle, success_on=LookupError, max_retries=0)
    desk.run()
    assert [letter.payload for letter in queue.dead.peek(9)] == ["other"]


UNSURE = WriteConcern(w=9, wtimeout=1)
STORED, NEW = {"_id": 1, "text": "a"}, {"_id": 2}
BULKS: dict[str, Callable[[Any], Any]] = {
    "found again": lambda own: own.insert_many([STORED, STORED], ordered=False),
    "one found again": lambda own: own.insert_many([STORED], ordered=False),
    "stopped": lambda own: own.insert_many([STORED, NEW]),
    "refused": lambda own: own.bulk_write([InsertOne(STORED), UpdateOne(STORED, {"$inc": {"text": 1}})], ordered=False),
    "not confirmed": lambda own: own.with_options(write_concern=UNSURE).insert_many([STORED], ordered=False),
}


@every_kind
def test_a_bulk_whose_only_errors_are_duplicates_is_one(
    broker: mongoq.Broker, client: MongoClient[Any], desk: Desk, uri: str
) -> None:
    broker.queue("orders").push_many([*BULKS])
    own = client[broker.namespace.split(".")[0]]["own"]
    own.insert_one(STORED)

    async def handle(payload: str) -> None:
        if desk.kind != "tasks":
            BULKS[payload](own)
            return
        async with AsyncMongoClient[Any](uri) as opened:
            await BULKS[payload](opened[own.database.name]["own"])

    desk.consume("orders", handle, success_on=DuplicateKeyError, max_retries=0)
    desk.run()
    assert {letter.payload for letter in broker.queue("orders").dead.peek(9)} == {"stopped", "refused", "not confirmed"}


class Order(BaseModel):
    """What a typed queue holds."""

    n: int


def test_a_typed_queue_gives_its_models_and_buries_what_does_not_fit(broker: mongoq.Broker) -> None:
    broker.queue("orders").push_many([{"n": 1}, {"n": "many"}])
    orders = []
    worker = mongoq.Worker(broker)

    @worker.consumer(broker.queue("orders", model=Order))
    def handle(order: Order) -> None:
        orders.append(order)

    worker.run(drain=True)
    assert orders == [Order(n=1)]
    assert [letter.payload for letter in broker.queue("orders").dead.peek(9)] == [{"n": "many"}]


def test_the_retries_of_a_consumer_hold_for_it_alone(desk: Desk) -> None:
    queue = desk.broker.queue("orders", max_retries=7)
    queue.push("bad")
    runs = []

    async def handle(payload: Any) -> None:
        runs.append(payload)
        raise ValueError

    desk.consume("orders", handle, retry=QUICK, max_retries=1)
    desk.run()
    assert len(runs) == 2
    assert queue.settings.max_retries == 7
    assert desk.broker.queue("orders").dead.size() == 1


def test_a_dead_letter_that_does_not_fit_a_model_waits_and_lets_the_others_pass(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    for payload in ({"n": 1}, {"n": "many"}, {"n": 2}):
        queue.push(payload)
        item = queue.reserve()
        assert item is not None
        queue.bury(item)
    numbers: list[int] = []
    worker = mongoq.Worker(broker)

    @worker.consumer(broker.queue("orders.dead", model=Order), retry=mongoq.Fixed(3600))
    def handle(order: Order) -> None:
        numbers.append(order.n)
        if len(numbers) == 2:
            worker.stop()

    worker.run()
    assert numbers == [1, 2]
    (letter,) = queue.dead.peek(9, state="scheduled")
    assert letter.payload == {"n": "many"}
    assert letter.error.type == "mongoq.errors.PayloadInvalid"
    assert letter.state == "scheduled"
