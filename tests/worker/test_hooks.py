"""Context managers around handlers: entered before each call, in its own thread or task, and left after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import mongoq
from mongoq.testing import AsyncVirtualBroker, VirtualBroker
from tests.waiting import until
from tests.worker.conftest import KINDS

TENANT = ContextVar("TENANT", default="nobody")
Register = Callable[[Any], object]


def drain(kind: str, uri: str, database: str, register: Register) -> None:
    """Run a worker of a kind until its queues are empty."""
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


def fitting(kind: str, handler: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the handler as a coroutine function for a worker of tasks."""
    if kind != "tasks":
        return handler

    async def task(payload: Any) -> Any:
        await asyncio.sleep(0)
        return handler(payload)

    return task


def make_hook(name: str, log: list[Any]) -> Callable[[Any], Any]:
    """Return a hook that logs its beginning and its end, with the exception."""

    @contextlib.contextmanager
    def hook(job: Any) -> Iterator[None]:
        log.append((name, "enter"))
        try:
            yield
        except BaseException as error:
            log.append((name, type(error).__name__))
            raise
        log.append((name, "exit"))

    return hook


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_nest_in_the_order_of_their_registration(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    log: list[Any] = []
    queue.push(1)

    def register(worker: Any) -> None:
        worker.around(make_hook("a", log))
        worker.consumer("orders")(fitting(kind, lambda payload: log.append(payload)))
        worker.around(make_hook("b", log))  # later than the consumer, and it holds all the same

    drain(kind, uri, database, register)
    assert log == [("a", "enter"), ("b", "enter"), 1, ("b", "exit"), ("a", "exit")]
    assert queue.size() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_runs_in_the_thread_and_the_context_of_the_handler(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    seen: list[Any] = []
    queue.push_many([1, 2])

    @contextlib.contextmanager
    def tenant(job: Any) -> Iterator[None]:
        assert TENANT.get() == "nobody"
        token = TENANT.set(f"tenant {job.item.payload}")
        thread = threading.get_ident()
        yield
        seen.append((TENANT.get(), thread == threading.get_ident()))
        TENANT.reset(token)

    def handle(payload: Any) -> None:
        seen.append((TENANT.get(), threading.current_thread() is threading.main_thread()))

    def register(worker: Any) -> None:
        worker.around(tenant)
        worker.consumer("orders", concurrency=1)(fitting(kind, handle))

    drain(kind, uri, database, register)
    in_main = kind == "tasks"
    assert seen == [("tenant 1", in_main), ("tenant 1", True), ("tenant 2", in_main), ("tenant 2", True)]


def test_the_job_of_a_hook_has_the_item_the_consumer_the_worker_and_the_result(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    facts: list[Any] = []
    names: list[str] = []
    queue.push({"a": 1}, headers={"trace": "t"})

    @contextlib.contextmanager
    def hook(job: Any) -> Iterator[None]:
        assert job.returned is None
        yield
        facts.append((job.item.queue, job.item.headers, job.item.attempts, job.consumer, job.returned))
        names.append(job.worker)

    def register(worker: Any) -> None:
        worker.around(hook)
        worker.consumer("orders")(lambda payload, job: {"of": job.item.payload})

    drain("threads", uri, database, register)
    assert facts == [("orders", {"trace": "t"}, 1, "orders", {"of": {"a": 1}})]
    assert f":{os.getpid()}:" in names[0]
    assert "/" in names[0]


def test_the_exception_of_a_handler_reaches_all_hooks(uri: str, database: str, queue: mongoq.Queue[Any]) -> None:
    log: list[Any] = []
    queue.push(1)

    def handle(payload: Any) -> None:
        raise KeyError(payload)

    def register(worker: Any) -> None:
        worker.around(make_hook("a", log))
        worker.around(make_hook("b", log))
        worker.consumer("orders", max_retries=0)(handle)

    drain("threads", uri, database, register)
    assert log == [("a", "enter"), ("b", "enter"), ("b", "KeyError"), ("a", "KeyError")]
    (letter,) = queue.dead.peek(10)
    assert letter.error is not None
    assert letter.error.type == "KeyError"


@pytest.mark.parametrize("where", ["call", "exit"])
def test_an_exception_of_a_hook_fails_the_run(where: str, uri: str, database: str, queue: mongoq.Queue[Any]) -> None:
    log: list[Any] = []
    queue.push(1)

    class Failing:
        def __init__(self, job: Any) -> None:
            self.fail("call")

        def fail(self, here: str) -> None:
            if where == here:
                raise ValueError(where)

        def __enter__(self) -> None:
            self.fail("enter")

        def __exit__(self, *error: object) -> None:
            self.fail("exit")

    def register(worker: Any) -> None:
        worker.around(make_hook("outer", log))
        worker.around(Failing)
        worker.consumer("orders", max_retries=0)(log.append)

    drain("threads", uri, database, register)
    assert log == [("outer", "enter"), *([1] if where == "exit" else []), ("outer", "ValueError")]
    (letter,) = queue.dead.peek(10)
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == ("ValueError", where)


def test_a_hook_that_suppresses_an_exception_makes_the_run_a_success(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push(1)

    def handle(payload: Any) -> None:
        raise KeyError(payload)

    def register(worker: Any) -> None:
        worker.around(lambda job: contextlib.suppress(KeyError))
        worker.consumer("orders", max_retries=0)(handle)

    drain("threads", uri, database, register)
    assert (queue.size(), queue.dead.size()) == (0, 0)


def test_a_batch_is_one_call_inside_its_hooks(uri: str, database: str, queue: mongoq.Queue[Any]) -> None:
    batches: list[Any] = []
    queue.push_many([1, 2, 3])

    @contextlib.contextmanager
    def hook(job: Any) -> Iterator[None]:
        yield
        batches.append(([item.payload for item in job.items], job.returned))

    def register(worker: Any) -> None:
        worker.around(hook)
        worker.consumer("orders", batch=3)(lambda payloads: [None, mongoq.Dead("x"), None])

    drain("threads", uri, database, register)
    assert batches == [([1, 2, 3], [None, mongoq.Dead("x"), None])]
    assert [item.payload for item in queue.dead.peek(10)] == [2]


def test_a_coroutine_function_has_asynchronous_and_plain_hooks(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    log: list[Any] = []
    queue.push(1)

    @contextlib.asynccontextmanager
    async def hook(job: mongoq.AsyncJob) -> AsyncIterator[None]:
        task = asyncio.current_task()
        await asyncio.sleep(0)
        log.append("enter")
        yield
        await asyncio.sleep(0)
        log.append(("exit", asyncio.current_task() is task))

    def register(worker: Any) -> None:
        worker.around(make_hook("outer", log))
        worker.around(hook)
        worker.consumer("orders")(fitting("tasks", lambda payload: log.append(payload)))

    drain("tasks", uri, database, register)
    assert log == [("outer", "enter"), "enter", 1, ("exit", True), ("outer", "exit")]


def test_an_asynchronous_hook_around_a_plain_function_is_refused_when_the_worker_starts(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    queue.push(1)

    @contextlib.asynccontextmanager
    async def hook(job: Any) -> AsyncIterator[None]:
        yield

    def register(worker: Any) -> None:
        worker.around(hook)
        worker.consumer("orders")(print)

    with pytest.raises(mongoq.ArgumentInvalid, match="plain function"):
        drain("plain", uri, database, register)
    assert [item.attempts for item in queue.peek(10)] == [0]


def test_a_coroutine_that_is_cancelled_after_its_time_leaves_its_hooks(
    uri: str, database: str, queue: mongoq.Queue[Any]
) -> None:
    log: list[Any] = []
    queue.push(1)

    async def hang(payload: Any) -> None:
        await asyncio.Event().wait()

    def register(worker: Any) -> None:
        worker.around(make_hook("a", log))
        worker.consumer("orders", max_retries=0, max_time=0.1, on_timeout="cancel")(hang)

    drain("tasks", uri, database, register)
    assert log == [("a", "enter"), ("a", "CancelledError")]
    (letter,) = queue.dead.peek(10)
    assert letter.error is not None
    assert letter.error.type == "TimeoutError"


def test_a_forked_child_ends_inside_the_hooks(uri: str, database: str, queue: mongoq.Queue[Any], tmp_path: Any) -> None:
    notes = tmp_path / "notes"
    queue.push(1)

    @contextlib.contextmanager
    def hook(job: Any) -> Iterator[None]:
        yield
        with notes.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def handle(payload: Any) -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)

    def register(worker: Any) -> None:
        worker.around(hook)
        worker.consumer("orders")(handle)

    drain("threads", uri, database, register)
    assert notes.read_text() == f"{os.getpid()}\n"
    assert queue.size() == 0


async def coroutine_function(job: Any) -> None:
    pass


async def async_generator(job: Any) -> AsyncIterator[None]:
    yield


def generator(job: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "hook, advice",
    [
        (coroutine_function, "coroutine function"),
        (async_generator, "asynccontextmanager"),
        (generator, "contextlib.contextmanager"),
        (contextlib.asynccontextmanager(async_generator), "AsyncWorker"),
        (lambda: contextlib.nullcontext(), "the job"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_at_once(broker: mongoq.Broker, hook: Any, advice: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=advice):
        mongoq.Worker(broker).around(hook)


def test_a_hook_that_returns_no_context_manager_fails_the_run(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    worker = mongoq.Worker(broker)
    worker.around(lambda job: None)  # type: ignore[arg-type,return-value]
    worker.consumer(queue, max_retries=0)(print)
    worker.run(drain=True)
    (letter,) = queue.dead.peek(10)
    assert letter.error is not None
    assert "context manager" in letter.error.message


def test_a_worker_that_runs_takes_no_hook(broker: mongoq.Broker) -> None:
    errors: list[str] = []
    worker = mongoq.Worker(broker)

    @worker.consumer("orders")
    def handle(payload: Any) -> None:
        try:
            worker.around(contextlib.nullcontext)
        except mongoq.ArgumentInvalid as error:
            errors.append(str(error))

    broker.queue("orders").push(1)
    worker.run(drain=True)
    assert "too late" in errors[0]


# --- pipelines and tests -------------------------------------------------------------------------


def hooked_pipeline(log: list[Any], *, asynchronous: bool = False, **options: Any) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    def plain(payload: Any) -> Any:
        return payload

    async def task(payload: Any) -> Any:
        return payload

    pipeline.stage("in", to="out", name="first", **options)(task if asynchronous else plain)
    pipeline.sink("out", name="last")(plain)

    @pipeline.around
    @contextlib.contextmanager
    def hook(job: Any) -> Iterator[None]:
        yield
        log.append((job.consumer, job.item.queue, job.returned))

    return pipeline


STEPS = [("first", "in", 1), ("last", "out", 1)]


def test_a_pipeline_has_hooks_around_its_stages(broker: mongoq.Broker) -> None:
    log: list[Any] = []
    broker.queue("in").push(1)
    hooked_pipeline(log, delivery="at-most-once").drain(broker)
    assert log == STEPS


async def test_so_has_one_with_asyncio(uri: str, database: str) -> None:
    log: list[Any] = []
    async with mongoq.connect_async(uri, database=database) as broker:
        await broker.queue("in").push(1)
        await hooked_pipeline(log, asynchronous=True).drain_async(broker)
    assert log == STEPS


def test_a_join_has_hooks_around_its_handler_alone(broker: mongoq.Broker) -> None:
    calls: list[Any] = []
    pipeline = mongoq.Pipeline("pairs", errors="pairs.errors")
    pipeline.join(("a", "b"), to=(), on="id", name="both")(lambda a, b: None)

    @pipeline.around
    @contextlib.contextmanager
    def hook(job: Any) -> Iterator[None]:
        calls.append(job.item.payload)
        yield

    broker.queue("a").push({"id": 1})
    broker.queue("b").push({"id": 1})
    with pipeline.start(broker) as run:
        until(lambda: calls)
        run.stop()
        run.wait()
    assert calls == [[{"id": 1}, {"id": 1}]]


def test_a_pipeline_in_threads_refuses_asynchronous_hooks(broker: mongoq.Broker) -> None:
    pipeline = hooked_pipeline([])
    pipeline.around(contextlib.asynccontextmanager(async_generator))
    with pytest.raises(mongoq.GraphInvalid, match="stage 'first'.*plain function"):
        pipeline.drain(broker)


def test_a_virtual_worker_has_the_hooks_of_production_and_its_own() -> None:
    virtual = VirtualBroker()
    production = mongoq.Worker(VirtualBroker())
    log: list[Any] = []
    production.around(make_hook("production", log))

    @production.consumer("orders")
    def handle(payload: Any) -> None:
        log.append(payload)
        raise KeyError(payload)

    worker = virtual.worker(production)
    worker.around(make_hook("test", log))
    virtual.queue("orders").push(1)
    result = worker.run_one("orders")
    assert result is not None
    assert result.outcome == "retry"
    entered = [("production", "enter"), ("test", "enter"), 1]
    assert log == [*entered, ("test", "KeyError"), ("production", "KeyError")]


async def test_an_asynchronous_virtual_worker_has_asynchronous_hooks() -> None:
    virtual = AsyncVirtualBroker()
    worker = virtual.worker()
    log: list[Any] = []

    @worker.around
    @contextlib.asynccontextmanager
    async def hook(job: Any) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        yield
        log.append(job.returned)

    @worker.consumer("orders")
    async def handle(payload: Any) -> int:
        return 7

    await virtual.queue("orders").push(1)
    await worker.run_one("orders")
    assert log == [7]
