"""What a handler returns that has not run is no success, wherever handlers run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.waiting import until
from tests.worker.conftest import Desk, every_kind


async def work(payload: Any) -> None:
    raise AssertionError("nobody awaits it")


def steps(payload: Any) -> Iterator[Any]:
    yield payload


async def steps_async(payload: Any) -> AsyncIterator[Any]:
    yield payload


class Awaitable:
    """What may be awaited, and is no coroutine."""

    def __await__(self) -> Iterator[Any]:
        yield


class Cursor:
    """An iterator that is no generator."""

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        raise StopIteration


class AsyncCursor:
    """The same with asyncio."""

    def __aiter__(self) -> AsyncCursor:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration


LAZY: dict[str, Callable[[Any], Any]] = {
    "generator": steps,
    "async generator": steps_async,
    "coroutine": work,
    "awaitable": lambda _: Awaitable(),
    "future": lambda _: Future(),
    "map": lambda payload: map(print, [payload]),
    "filter": lambda payload: filter(None, [payload]),
    "zip": lambda payload: zip([payload], [payload], strict=True),
    "iterator of a list": lambda payload: iter([payload]),
    "context manager": contextmanager(steps),
    "async context manager": asynccontextmanager(steps_async),
    "cursor": lambda _: Cursor(),
    "async cursor": lambda _: AsyncCursor(),
    "list of coroutines": lambda payload: [work(payload), work(payload)],
    "tuple of generators": lambda payload: (None, steps(payload)),
}


def assert_failed(letters: list[mongoq.Item[Any]], number: int = 1) -> None:
    assert [letter.error.type for letter in letters if letter.error] == ["mongoq.errors.OutcomeInvalid"] * number
    assert all("was returned" in letter.error.message for letter in letters if letter.error)


def test_what_has_not_run_is_a_failure_such_as_a_cursor(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push_many(list(LAZY))
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(lambda name: LAZY[name](name))
    worker.run(drain=True)
    letters = queue.dead.peek(99)
    assert {letter.payload for letter in letters} == LAZY.keys()
    assert_failed(letters, len(LAZY))


@every_kind
def test_so_it_is_in_every_worker(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([1, 2, 3])
    desk.broker.queue("batches").push_many([1, 2, 3])

    async def handle(payload: int) -> Any:
        return steps(payload)

    async def handle_batch(payloads: list[int]) -> Any:
        return [work(payload) for payload in payloads]

    desk.consume("orders", handle, max_retries=0)
    desk.consume("batches", handle_batch, batch=3, max_retries=0)
    desk.run()
    assert_failed(queue.dead.peek(9), 3)
    assert_failed(desk.broker.queue("batches").dead.peek(9), 3)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_what_has_not_run_is_a_failure_of_a_stage(broker: mongoq.Broker, delivery: Any) -> None:
    broker.queue("in").push(1)
    pipeline = mongoq.Pipeline("lazy", errors="lazy.errors", outputs=["out"])
    pipeline.stage("in", to="out", max_retries=0, delivery=delivery)(lambda payload: steps(payload))
    pipeline.drain(broker)
    letters = broker.queue("lazy.errors").peek(5)
    assert [letter.error.type for letter in letters if letter.error] == ["mongoq.errors.OutcomeInvalid"]
    assert broker.queue("out").size() == 0


def test_one_entry_that_has_not_run_is_that_item_s_failure(broker: mongoq.Broker) -> None:
    broker.queue("in").push_many([1, 2, 3])
    pipeline = mongoq.Pipeline("lazy", errors="lazy.errors", outputs=["out"])
    pipeline.stage("in", to="out", batch=3, max_retries=0)(
        lambda payloads: [steps(n) if n == 2 else n for n in payloads]
    )
    pipeline.drain(broker)
    assert [letter.payload for letter in broker.queue("lazy.errors").peek(5)] == [2]
    assert sorted(item.payload for item in broker.queue("out").peek(5)) == [1, 3]


def test_a_join_that_returns_what_has_not_run_fails(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("lazy", errors="lazy.errors")
    pipeline.join(["a", "b"], on=None, max_retries=0)(lambda *pair: steps(pair))
    broker.queue("a").push(1)
    broker.queue("b").push(2)
    with pipeline.start(broker) as run:
        until(lambda: broker.queue("lazy.errors").size() or run.ended)
    [letter] = broker.queue("lazy.errors").peek(5)
    assert letter.payload == [1, 2]


def test_a_stage_on_frames_that_returns_what_has_not_run_fails(broker: mongoq.Broker) -> None:
    broker.queue("in").push_many([{"n": 1}, {"n": 2}])
    pipeline = mongoq.Pipeline("lazy", errors="lazy.errors")
    pipeline.batch_stage("in", format="arrow", max_retries=0)(lambda frame: steps(frame))
    pipeline.drain(broker)
    assert broker.queue("lazy.errors").size() == 2


def test_a_virtual_worker_says_the_same() -> None:
    with VirtualBroker() as virtual:
        worker = virtual.worker()
        worker.consumer("orders", max_retries=0)(lambda name: LAZY[name](name))
        virtual.queue("orders").push_many(list(LAZY))
        assert {result.outcome for result in worker.run_until_idle()} == {"dead"}
        assert_failed(virtual.queue("orders").dead.peek(99), len(LAZY))


def test_a_virtual_worker_takes_a_returned_exception_for_a_raised_one() -> None:
    with VirtualBroker() as virtual:
        worker = virtual.worker()
        worker.consumer("orders", max_retries=0)(lambda _: LookupError("nothing"))
        virtual.queue("orders").push_many([1, 2])
        results = worker.run_until_idle()
        assert [result.outcome for result in results] == ["dead", "dead"]
        assert {str(result.error) for result in results} == {"nothing"}


def test_a_returned_exception_is_a_failed_run(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(["bad", "expected"])

    async def handle(payload: str) -> Any:
        return ValueError(payload) if payload == "bad" else KeyError(payload)

    desk.consume("orders", handle, max_retries=1, retry=mongoq.Fixed(0), success_on=KeyError)
    desk.run()
    (letter,) = queue.dead.peek(9)
    assert letter.error is not None
    assert letter.origin is not None
    assert (letter.payload, letter.error.type, letter.origin.attempts) == ("bad", "ValueError", 2)


def test_what_holds_values_is_success(broker: mongoq.Broker) -> None:
    values = [[1], (), {"a": 1}, range(3), "text", MagicMock(), pytest, Cursor]
    queue = broker.queue("orders")
    queue.push_many(range(len(values)))
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(values.__getitem__)
    worker.run(drain=True)
    assert queue.dead.peek(9) == []


def test_a_coroutine_that_is_not_run_is_closed(broker: mongoq.Broker) -> None:
    queue, lazy_values = broker.queue("orders"), []
    queue.push_many([1, 2])
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", batch=2, max_retries=0)
    def handle(payloads: list[Any]) -> Any:
        lazy_values.extend([work(1), work(2), steps(3)])
        return lazy_values[:3] if len(lazy_values) == 3 else lazy_values[3:]

    worker.run(drain=True)
    assert all("CLOSED" in (state(value)) for value in lazy_values)
    assert queue.dead.size() == 2


def state(value: Any) -> str:
    return inspect.getcoroutinestate(value) if inspect.iscoroutine(value) else inspect.getgeneratorstate(value)


class Steps:
    """An object that is a generator when it is called."""

    def __call__(self, payload: Any) -> Iterator[Any]:
        yield payload


class Work:
    """An object that is a coroutine function when it is called."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []

    async def __call__(self, payload: Any) -> None:
        self.payloads.append(payload)


@pytest.mark.parametrize("handler", [partial(steps), Steps(), partial(Steps()), Steps().__call__, partial(steps_async)])
def test_a_generator_is_refused_at_its_registration(broker: mongoq.Broker, handler: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="generator"):
        mongoq.Worker(broker).consumer("orders")(handler)
    pipeline = mongoq.Pipeline("lazy", errors="lazy.errors")
    pipeline.sink("in", name="sink")(handler)
    pipeline.join(["a", "b"], on=None, name="join")(partial(handler, 1) if isinstance(handler, partial) else handler)
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.check()
    refusals = [fault for fault in caught.value.faults if "generator" in fault]
    assert [fault.split(":")[0] for fault in refusals] == ["stage 'sink'", "stage 'join'"]


def test_a_coroutine_function_in_an_object_or_a_partial_is_seen(uri: str, database: str, broker: mongoq.Broker) -> None:
    handler = Work()
    with pytest.raises(mongoq.ArgumentInvalid, match="coroutine function"):
        mongoq.Worker(broker).consumer("orders")(partial(handler))
    broker.queue("orders").push(1)

    async def run() -> None:
        async with mongoq.connect_async(uri, database=database) as opened:
            worker = mongoq.AsyncWorker(opened)
            worker.consumer("orders")(partial(handler))
            await worker.run(drain=True)

    asyncio.run(run())
    assert handler.payloads == [1]
