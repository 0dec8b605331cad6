"""What a run sets in its context is seen by no other run, nor by whoever runs the worker."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import mongoq
from mongoq.testing import AsyncVirtualBroker, VirtualBroker

TENANT = ContextVar("TENANT", default="nobody")
PLACES, CALLER_PLACES = 3, 11
Seen = tuple[str, int]
CLEAN: Seen = ("caller", CALLER_PLACES)


def look_and_leave_traces(payload: Any) -> Seen:
    """Return what a run finds, and change all of it."""
    context = TENANT.get(), decimal.getcontext().prec
    TENANT.set(f"tenant {payload}")
    decimal.getcontext().prec = PLACES
    return context


@pytest.fixture(autouse=True)
def _of_the_caller() -> Iterator[None]:
    """Let the test's own context be a special one."""
    token = TENANT.set("caller")
    with decimal.localcontext() as own:
        own.prec = CALLER_PLACES
        yield
        assert (TENANT.get(), decimal.getcontext().prec) == CLEAN, "the caller's context was changed"
    TENANT.reset(token)


def drain(kind: str, uri: str, database: str, register: Any) -> None:
    """Run a worker of a kind until the queues are empty, in this thread."""
    if kind == "threads":
        with mongoq.connect(uri, database=database) as broker:
            worker = mongoq.Worker(broker)
            register(worker)
            worker.run(drain=True)
        return

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)
            register(worker)
            await worker.run(drain=True)

    asyncio.run(work())


def handler(kind: str, contexts: list[Seen]) -> Any:
    def plain(payload: Any) -> None:
        contexts.append(look_and_leave_traces(payload))

    async def task(payload: Any) -> None:
        contexts.append(look_and_leave_traces(payload))
        await asyncio.sleep(0)
        assert TENANT.get() == f"tenant {payload}", "a run keeps its own"
        assert await asyncio.create_task(own_tenant()) == f"tenant {payload}", "and hands it on"
        assert decimal.getcontext().prec == PLACES

    return task if kind == "tasks" else plain


async def own_tenant() -> str:
    await asyncio.sleep(0)
    return TENANT.get()


@pytest.mark.parametrize("kind", ["threads", "tasks", "plain"])
def test_each_run_begins_in_a_copy_of_the_context_of_run(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    contexts: list[Seen] = []
    queue.push_many(list(range(6)))
    drain(kind, uri, database, lambda worker: worker.consumer("orders", concurrency=3)(handler(kind, contexts)))
    assert len(contexts) == 6
    assert set(contexts) == {CLEAN}


@pytest.mark.parametrize("way", ["drain", "drain_async"])
def test_stages_and_sources_begin_in_a_copy_of_the_context_of_the_call(way: str, uri: str, database: str) -> None:
    pipeline = mongoq.Pipeline("prices")
    contexts: list[Seen] = []
    payloads: list[Any] = []

    @pipeline.source(to="raw")
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        for number in range(position or 0, 3):
            contexts.append(look_and_leave_traces(number) if number == 0 else CLEAN)
            yield mongoq.Record(number, position=number + 1)

    if way.endswith("async"):

        @pipeline.source(to="raw")
        async def others(position: int | None) -> AsyncIterator[mongoq.Record]:
            for number in range(position or 3, 6):
                contexts.append(look_and_leave_traces(number) if number == 3 else CLEAN)
                yield mongoq.Record(number, position=number + 1)

        @pipeline.stage("raw", to="priced")
        async def price(payload: int) -> dict[str, str]:
            contexts.append(look_and_leave_traces(payload))
            return {"price": f"{TENANT.get()}: {payload}"}
    else:

        @pipeline.stage("raw", to="priced")
        def price(payload: int) -> dict[str, str]:
            contexts.append(look_and_leave_traces(payload))
            return {"price": f"{TENANT.get()}: {payload}"}

    @pipeline.sink("priced")
    def load(payload: Any) -> None:
        contexts.append(look_and_leave_traces("load"))
        payloads.append(payload["price"])

    number = 6 if way.endswith("async") else 3
    drain_pipeline(pipeline, way, uri, database)
    assert sorted(payloads) == [f"tenant {each}: {each}" for each in range(number)]
    assert set(contexts) == {CLEAN}


def drain_pipeline(pipeline: mongoq.Pipeline, way: str, uri: str, database: str) -> None:
    if way == "drain":
        with mongoq.connect(uri, database=database) as broker:
            pipeline.drain(broker)
        return

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            await pipeline.drain_async(broker)

    asyncio.run(work())


def test_runs_of_a_virtual_worker_leave_nothing_behind() -> None:
    contexts: list[Seen] = []
    with VirtualBroker() as virtual:
        worker = virtual.worker()
        worker.consumer("orders")(handler("plain", contexts))
        virtual.queue("orders").push_many([1, 2, 3])
        worker.run_until_idle()
    assert contexts == [CLEAN] * 3


def test_runs_of_an_async_virtual_worker_leave_nothing_behind() -> None:
    contexts: list[Seen] = []

    async def work() -> None:
        async with AsyncVirtualBroker() as virtual:
            worker = virtual.worker()
            worker.consumer("orders")(handler("tasks", contexts))
            await virtual.queue("orders").push_many([1, 2, 3])
            await worker.run_until_idle()
            assert (TENANT.get(), decimal.getcontext().prec) == CLEAN

    asyncio.run(work())
    assert contexts == [CLEAN] * 3
