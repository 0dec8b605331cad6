"""What a handler returns, or raises, and what becomes of its item."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

import mongoq
from mongoq.worker.outcome_resolver import OutcomeResolver
from tests.worker.conftest import Desk

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


@pytest.mark.parametrize("returned", [None, 0, False, "", {"retry": True}, [1], mongoq.Drop()])
def test_any_return_value_is_success(desk: Desk, queue: mongoq.Queue[Any], returned: Any) -> None:
    queue.configure(history=3600)
    queue.push({"n": 1})

    async def handle(payload: Any) -> Any:
        return returned

    desk.consume("orders", handle)
    desk.run()
    assert [item.attempts for item in queue.history()] == [1]
    assert queue.dead.counts() == mongoq.Counts()


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


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (mongoq.Retry, "the class Retry was returned; return Retry(…)"),
        (mongoq.Drop, "the class Drop was returned; return Drop(…)"),
        (mongoq.Move("$no"), "a queue name cannot begin with '$'"),
        (mongoq.Move("next", payload=object()), "object"),
        (mongoq.Move("next", patch={"$where": {"a": 1}}), "$where"),
        (mongoq.Move("next", patch={"$inc": {"a": 1}}), "a"),
        (mongoq.Move("next", priority=1000), "priority"),
        (mongoq.Move("next", when=pd.NaT), "when: a time, not NaT"),
        (mongoq.Move("next", payload={"at": pd.NaT}), "payload.at: NaT is no time"),
        (mongoq.Fork([mongoq.Move("next", payload={"at": pd.NaT})]), "payload.at: NaT is no time"),
        (mongoq.Move(Raises()), "a Move that cannot be read: LookupError: nobody is there"),
    ],
)
def test_an_outcome_that_cannot_be_is_a_failure(
    desk: Desk, queue: mongoq.Queue[Any], returned: Any, message: str
) -> None:
    queue.push({"a": "text"})

    async def handle(payload: Any) -> Any:
        return returned

    desk.consume("orders", handle, retry=QUICK, max_retries=1, lease=3)
    desk.run()
    (letter,) = queue.dead.peek(2)
    assert letter.payload == {"a": "text"}
    assert message in letter.error.message
    assert letter.origin.attempts == 2
    assert desk.broker.queue("next").size() == 0


@pytest.mark.parametrize("outcome", [Unknown(), mongoq.Retry(), None, "done"])
def test_an_outcome_that_no_code_knows_settles_nothing_and_is_a_failure(
    desk: Desk, queue: mongoq.Queue[Any], monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    queue.configure(history=3600)
    queue.push_many(["bad", "good"])
    runs: list[str] = []
    resolve = OutcomeResolver.outcomes

    async def handle(payload: str) -> None:
        runs.append(payload)

    def outcomes(self: OutcomeResolver, consumer: Any, items: Any, returned: Any) -> Any:
        return [outcome] if items[0].payload == "bad" else resolve(self, consumer, items, returned)

    monkeypatch.setattr(OutcomeResolver, "outcomes", outcomes)
    desk.consume("orders", handle, retry=QUICK, max_retries=1)
    desk.run()
    assert sorted(runs) == ["bad", "bad", "good"]
    assert [item.payload for item in queue.history()] == ["good"]
    (letter,) = queue.dead.peek(2)
    assert (letter.payload, letter.error.type) == ("bad", "mongoq.errors.OutcomeInvalid")
    assert letter.error.message == f"no item can be settled by a {type(outcome).__name__}"


def test_an_outcome_that_cannot_be_leaves_the_others_alone(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(range(5))

    async def handle(payload: Any) -> Any:
        return mongoq.Move("next", payload={"at": pd.NaT} if payload == 2 else payload)

    desk.consume("orders", handle, max_retries=0)
    desk.run()
    assert sorted(item.payload for item in desk.broker.queue("next").peek(10)) == [0, 1, 3, 4]
    assert [letter.payload for letter in queue.dead.peek(5)] == [2]


def test_a_coroutine_that_a_plain_function_returns_is_a_failure(broker: mongoq.Broker, queue: Any) -> None:
    queue.push(1)
    worker = mongoq.Worker(broker)

    async def forgotten(payload: Any) -> None:
        pass

    worker.consumer("orders", max_retries=0)(lambda payload: forgotten(payload))
    worker.run(drain=True)
    (letter,) = queue.dead.peek(2)
    assert letter.error.type == "mongoq.errors.OutcomeInvalid"
    assert "nobody awaits it" in letter.error.message


ERRORS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), StopIteration(), Texts()]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["threads", "tasks", "plain"])
def test_whatever_a_handler_raises_is_its_items_alone(  # noqa: PLR0917
    kind: str, uri: str, database: str, broker: mongoq.Broker, queue: mongoq.Queue[Any], error: BaseException
) -> None:
    queue.push_many(["bad", "good", "good"])
    payloads = []

    def plain(payload: Any) -> None:
        payloads.append(payload)
        if payload == "bad":
            raise error

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
    assert sorted(payloads) == ["bad", "bad", "good", "good"]
    (letter,) = queue.dead.peek(2)
    expected = "RuntimeError" if kind != "threads" and isinstance(error, StopIteration) else type(error).__name__
    assert letter.error.type.split(".")[-1] == expected, "a coroutine cannot raise StopIteration"


def test_an_expected_conflict_is_success(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(["conflict", "other"])

    async def handle(payload: Any) -> None:
        raise KeyError(payload) if payload == "conflict" else ValueError(payload)

    desk.consume("orders", handle, success_on=LookupError, max_retries=0)
    desk.run()
    assert [letter.payload for letter in queue.dead.peek(9)] == ["other"]


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


class Exits(Exception):
    """An error whose text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


def test_an_error_whose_text_ends_the_program_does_not(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(["bad", "good"])

    async def handle(payload: str) -> None:
        if payload == "bad":
            raise Exits

    desk.consume("orders", handle, max_retries=0)
    desk.run()
    (letter,) = queue.dead.peek(2)
    assert letter.error.message == "(its text cannot be made: SystemExit)"


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
