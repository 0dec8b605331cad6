"""Workers run by hand: registrations of production, jobs, coroutine functions, pipelines until nothing is ready."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from mongoq.testing import AsyncVirtualBroker, NeverIdle, VirtualBroker, VirtualWorker

# --- registrations -------------------------------------------------------------------------------


def test_the_checks_are_those_of_production(worker: VirtualWorker) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="concurrency"):
        worker.consumer("orders", concurrency=0)
    with pytest.raises(mongoq.ArgumentInvalid, match="payload"):
        worker.consumer("orders")(lambda: None)
    worker.consumer("orders", concurrency=8, prefetch=5, max_time=1, probe=True)(lambda _: None)
    with pytest.raises(mongoq.ArgumentInvalid, match="consumer in this worker already"):
        worker.consumer("orders")(lambda _: None)


def test_a_queue_without_consumer_is_reported(worker: VirtualWorker) -> None:
    worker.consumer("orders")(lambda _: None)
    with pytest.raises(mongoq.ArgumentInvalid, match="'invoices' has no consumer in this worker; there is 'orders'"):
        worker.run_one("invoices")


def test_a_virtual_worker_does_not_run_by_itself(worker: VirtualWorker) -> None:
    worker.consumer("orders")(lambda _: None)
    assert isinstance(worker, mongoq.Worker)
    with pytest.raises(mongoq.ArgumentInvalid, match="needs a server"):
        worker.run()


@pytest.fixture
def production() -> Iterator[mongoq.Broker]:
    """A broker as a module makes it, that no test may send anything by: there is no server."""
    with MongoClient("mongodb://127.0.0.1:1", connect=False, serverSelectionTimeoutMS=1) as client:
        yield mongoq.Broker(client["app"]["mongoq"])


def test_a_worker_of_production_is_taken_over(virtual: VirtualBroker, production: mongoq.Broker) -> None:
    app = mongoq.Worker(production)

    @app.consumer(production.queue("orders", model=int, lease=77), retry=mongoq.Fixed(5), max_retries=0)
    def handle(n: int) -> Any:
        return mongoq.Retry() if n else None

    orders = virtual.queue("orders")
    orders.push(1)
    worker = virtual.worker(app)
    result = worker.run_one("orders")
    assert (result.outcome, orders.dead.size()) == ("dead", 1)
    assert (result.item.lease_until - virtual.clock.now()).total_seconds() == 77
    orders.push("not a number")
    assert worker.run_one("orders") is None
    assert orders.dead.size() == 2


async def test_an_asynchronous_worker_of_production_is_taken_over() -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient("mongodb://127.0.0.1:1", connect=False)
    app = mongoq.AsyncWorker(mongoq.AsyncBroker(client["app"]["mongoq"]))

    @app.consumer("orders")
    async def handle(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    async with AsyncVirtualBroker() as virtual:
        await virtual.queue("orders").push(1)
        assert (await virtual.worker(app).run_one("orders")).returned == 2
    await client.close()


def test_a_factory_of_workers_is_tested_on_the_virtual_broker(virtual: VirtualBroker) -> None:
    def make_worker(broker: mongoq.Broker) -> mongoq.Worker:
        worker = mongoq.Worker(broker, grace=10)
        invoices = broker.queue("invoices")
        worker.consumer("orders")(invoices.push)
        return worker

    virtual.queue("orders").push({"n": 1})
    assert virtual.worker(make_worker(virtual)).run_one("orders").outcome == "done"
    assert virtual.queue("invoices").pop().payload == {"n": 1}


def test_a_handle_of_production_stands_for_the_queue_of_its_name(
    virtual: VirtualBroker, worker: VirtualWorker, production: mongoq.Broker
) -> None:
    worker.consumer(production.queue("orders", model=int))(lambda n: n)
    virtual.queue("orders").push("5")
    assert worker.run_one(production.queue("orders")).returned == 5


def test_only_a_worker_is_taken_over(virtual: VirtualBroker) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="production"):
        virtual.worker(virtual)  # type: ignore[arg-type]


# --- jobs ----------------------------------------------------------------------------------------


def test_a_job_tells_of_its_items(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    @worker.consumer("orders", batch=5, lease=10)
    def handle(payloads: list[int], job: mongoq.Job) -> None:
        assert [item.payload for item in job.items] == payloads
        assert job.item is job.items[0]
        assert len(job.delivery_hash) == 64
        assert not job.lost.is_set()
        job.extend(lease=100)
        until = [item.lease_until for item in virtual.queue("orders").peek(5, state="reserved")]
        assert {(end - virtual.clock.now()).total_seconds() for end in until} == {100}

    virtual.queue("orders").push_many([1, 2])
    assert [result.error for result in worker.run_batch("orders")] == [None, None]


def test_leases_are_kept_while_time_passes_in_a_handler(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    @worker.consumer("orders", lease=10)
    def handle(payload: int, job: mongoq.Job) -> None:
        virtual.advance(60)
        assert virtual.queue("orders").reserve() is None
        assert not job.lost.is_set()

    virtual.queue("orders").push(1)
    assert worker.run_one("orders").outcome == "done"


def test_a_job_learns_that_its_item_is_lost(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    orders = virtual.queue("orders")

    @worker.consumer("orders")
    def handle(payload: int, job: mongoq.Job) -> str:
        orders.push(2, key="a", on_duplicate="replace")
        virtual.advance(1)
        return "stopped" if job.lost.is_set() else "went on"

    orders.push(1, key="a")
    result = worker.run_one("orders")
    assert (result.outcome, result.returned) == ("lost", "stopped")
    assert orders.pop().payload == 2


# --- coroutine functions -------------------------------------------------------------------------

ambient = contextvars.ContextVar("ambient", default=0)


def test_coroutine_functions_run_in_one_loop_of_the_broker(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    invoices = AsyncVirtualBroker(virtual).queue("invoices")
    loops = set()

    @worker.consumer("orders")
    async def handle(payload: int, job: mongoq.AsyncJob) -> int:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await job.extend(lease=60)
        await invoices.push(payload)
        return ambient.get()

    ambient.set(5)
    virtual.queue("orders").push_many([1, 2])
    assert [result.returned for result in worker.run_until_idle()] == [5, 5]
    assert [item.payload for item in virtual.queue("invoices").peek(5)] == [1, 2]
    assert len(loops) == 1


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1), asyncio.CancelledError()])
def test_a_coroutine_function_fails_as_a_plain_one(
    virtual: VirtualBroker, worker: VirtualWorker, error: BaseException
) -> None:
    @worker.consumer("orders")
    async def handle(payload: int) -> None:
        await asyncio.sleep(0)
        if payload:
            raise error

    virtual.queue("orders").push_many([1, 0])
    results = worker.run_until_idle()
    assert [result.outcome for result in results] == ["retry", "done"]
    assert type(results[0].error) is type(error)


def test_ctrl_c_ends_the_run_of_a_coroutine_function(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    @worker.consumer("orders")
    async def handle(_: int) -> None:
        raise KeyboardInterrupt

    virtual.queue("orders").push(1)
    with pytest.raises(KeyboardInterrupt):
        worker.run_one("orders")
    assert virtual.queue("orders").size("ready") == 1


async def test_a_plain_worker_is_refused_coroutine_functions_in_a_loop(
    virtual: VirtualBroker, worker: VirtualWorker
) -> None:
    @worker.consumer("orders")
    async def handle(_: int) -> None: ...

    virtual.queue("orders").push(1)
    with pytest.raises(mongoq.ArgumentInvalid, match="AsyncVirtualBroker"):
        worker.run_one("orders")
    assert virtual.queue("orders").size("ready") == 1


async def test_an_asynchronous_worker_runs_in_the_loop_of_the_test() -> None:
    async with AsyncVirtualBroker() as virtual:
        worker, orders = virtual.worker(), virtual.queue("orders")
        home = asyncio.get_running_loop()

        @worker.consumer(orders, retry=mongoq.Fixed(60), batch=2)
        async def handle(payloads: list[int], job: mongoq.AsyncJob) -> list[Any]:
            assert asyncio.get_running_loop() is home
            assert not job.lost.is_set()
            return [mongoq.Retry() if payload else None for payload in payloads]

        @worker.consumer("invoices")
        def plain(payload: int) -> int:
            return threading.get_ident()

        await orders.push_many([1, 0, 0])
        await virtual.queue("invoices").push(1)
        results = await worker.run_until_idle()
        assert [result.outcome for result in results] == ["retry", "done", "done", "done"]
        assert results[-1].returned == threading.get_ident()
        worker.advance(60)
        assert [result.item.attempts for result in await worker.run_batch("orders")] == [2]
        assert worker.force_retry("orders") == 1
        assert (await worker.run_one(orders)).item.attempts == 3
        virtual.advance(1)
        assert virtual.force_retry("orders") == 1


async def test_a_cancelled_test_gives_back_what_it_runs() -> None:
    async with AsyncVirtualBroker() as virtual:
        worker = virtual.worker()

        @worker.consumer("orders")
        async def handle(_: int) -> None:
            await asyncio.sleep(60)

        await virtual.queue("orders").push(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.run_one("orders"), 0.05)
        item = (await virtual.queue("orders").peek())[0]
        assert item.attempts == 0


async def test_a_job_of_a_coroutine_function_learns_that_its_item_is_lost() -> None:
    async with AsyncVirtualBroker() as virtual:
        worker, orders = virtual.worker(), virtual.queue("orders")

        @worker.consumer("orders")
        async def handle(_: int, job: mongoq.AsyncJob) -> None:
            await orders.push(2, key="a", on_duplicate="replace")
            virtual.advance(1)
            await job.lost.wait()

        await orders.push(1, key="a")
        assert (await worker.run_one("orders")).outcome == "lost"


# --- until nothing is ready ----------------------------------------------------------------------


def test_a_pipeline_runs_in_the_order_of_its_registration(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    worker.consumer("late")(lambda _: None)
    worker.consumer("orders")(lambda n: mongoq.Move("late") if n % 2 else None)
    virtual.queue("orders").push_many([1, 2, 3])
    virtual.queue("late").push(0)
    results = worker.run_until_idle()
    assert [(result.item.queue, result.item.payload) for result in results] == [
        ("late", 0),
        ("orders", 1),
        ("orders", 2),
        ("orders", 3),
        ("late", 1),
        ("late", 3),
    ]
    assert worker.run_until_idle() == []


def test_a_circle_is_reported_and_not_run_for_ever(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    worker.consumer("a")(lambda _: mongoq.Move("b"))
    worker.consumer("b")(lambda _: mongoq.Move("a"))
    virtual.queue("a").push(1)
    with pytest.raises(NeverIdle, match="after 10 runs") as caught:
        worker.run_until_idle(limit=10)
    assert (caught.value.limit, len(caught.value.results)) == (10, 11)


def test_as_many_runs_as_the_limit_are_fine(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    worker.consumer("a")(lambda _: None)
    virtual.queue("a").push_many(range(10))
    assert len(worker.run_until_idle(limit=10)) == 10
    with pytest.raises(mongoq.ArgumentInvalid, match="limit"):
        worker.run_until_idle(limit=0)


def test_a_paused_queue_is_left(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    worker.consumer("orders")(lambda _: None)
    virtual.queue("orders").push(1)
    virtual.queue("orders").pause()
    assert worker.run_until_idle() == []


# --- the broker ----------------------------------------------------------------------------------


def test_both_faces_share_queues_and_clock() -> None:
    virtual = VirtualBroker(clock=mongoq.VirtualClock(datetime(2030, 1, 1, tzinfo=UTC)))
    async_broker = AsyncVirtualBroker(virtual)
    id = asyncio.run(async_broker.queue("orders").push(1, delay=10))
    assert async_broker.clock is virtual.clock
    assert async_broker.advance(10) == datetime(2030, 1, 1, 0, 0, 10, tzinfo=UTC)
    item = virtual.queue("orders").reserve()
    assert item.id == id
    asyncio.run(async_broker.queue("orders").commit(item))
    asyncio.run(async_broker.close())
    with pytest.raises(mongoq.BrokerClosed):
        virtual.queue("orders").size()


async def test_an_asynchronous_broker_has_no_transactions_without_a_server() -> None:
    async with AsyncVirtualBroker() as virtual:
        with pytest.raises(mongoq.TransactionsUnavailable):
            async with virtual.transaction():
                pass
        async with virtual.queue("orders").reserved() as item:
            assert item is None


def test_no_thread_is_started(virtual: VirtualBroker, worker: VirtualWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    starters, start = [], threading.Thread.start

    def note(thread: threading.Thread) -> None:
        starters.append(threading.current_thread())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    worker.consumer("orders")(lambda _: None)
    virtual.queue("orders").push_many([1, 2])
    worker.run_until_idle()
    assert threading.current_thread() not in starters  # threads of earlier tests may start some, or end
    assert virtual.stats()["orders"].commit == 2


def test_a_broker_that_nobody_closes_leaves_no_loop_behind() -> None:
    virtual = VirtualBroker()
    worker, loops = virtual.worker(), []

    @worker.consumer("orders")
    async def handle(_: int) -> None:
        loops.append(asyncio.get_running_loop())

    virtual.queue("orders").push(1)
    worker.run_one("orders")
    del virtual, worker, handle
    gc.collect()
    assert loops[0].is_closed()


def test_arguments_are_checked() -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="clock"):
        VirtualBroker(clock=5)  # type: ignore[arg-type]
    with pytest.raises(mongoq.ArgumentInvalid, match="virtual"):
        AsyncVirtualBroker(5)  # type: ignore[arg-type]
    with VirtualBroker() as virtual, pytest.raises(mongoq.ArgumentInvalid, match="by"):
        virtual.advance(-1)


def test_mongomock_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mongomock", None)
    with pytest.raises(ModuleNotFoundError, match=r"install mongoq-driver\[testing\]"):
        VirtualBroker()


@pytest.mark.parametrize("closed", [False, True])
def test_a_broker_may_be_collected_while_another_loop_runs(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    def left_behind() -> VirtualBroker:
        broker = VirtualBroker()
        worker = broker.worker()

        @worker.consumer("orders")
        async def handle(_: Any) -> None:
            await asyncio.sleep(0)

        broker.queue("orders").push(1)
        assert worker.run_one("orders") is not None
        if closed:
            broker.close()
        return broker

    async def main(references: list[Any]) -> None:
        references.clear()
        gc.collect()

    wrong: list[Any] = []
    gc.collect()  # what other tests have left
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    asyncio.run(main([left_behind()]))
    assert wrong == []


def test_a_virtual_worker_takes_a_coroutine_that_would_be_cancelled() -> None:
    with VirtualBroker() as virtual:
        worker, payloads = virtual.worker(), []

        @worker.consumer("orders", max_time=1, on_timeout="cancel", prefetch_bytes=None)
        async def handle(payload: int) -> None:
            payloads.append(payload)

        virtual.queue("orders").push(1)
        worker.run_until_idle()
        assert payloads == [1]
