"""A desk for a worker: the same handlers, run by threads, by tasks, or by threads of an asyncio worker.

``Worker`` and ``AsyncWorker`` have one implementation, so most tests run on threads alone; ``every_kind`` and
``in_tasks`` say otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import mongoq
from tests.waiting import PATIENCE
from tests.worker.processes import Process

KINDS = ("threads", "tasks", "plain")

every_kind = pytest.mark.parametrize("desk", KINDS, indirect=True)
in_tasks = pytest.mark.parametrize("desk", ["tasks"], indirect=True)
NO_RUN = ("the worker does not run",)

Handler = Callable[..., Awaitable[Any]]


class Running:
    """A worker at work in a thread of its own."""

    def __init__(self, work: Callable[[], None], stop: Callable[[], None]) -> None:
        self._ended: Future[None] = Future()
        self._stop = stop
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    @property
    def ended(self) -> bool:
        return self._ended.done()

    def stop(self) -> None:
        """Tell it to stop, and wait until it has; raises what ended it."""
        self._stop()
        self.join()

    def join(self) -> None:
        self._ended.result(PATIENCE)


class Desk:
    """One kind of worker on a database of the test's own.

    Handlers are written as coroutine functions; where plain functions are wanted, a loop of their own runs them. What
    ``before`` does happens when the broker is connected, and before the worker runs.
    """

    def __init__(self, kind: str, uri: str, database: str, broker: mongoq.Broker) -> None:
        self.kind = kind
        self.uri = uri
        self.database = database
        self.broker = broker
        self.consumers: list[tuple[Any, Callable[..., Any], dict[str, Any]]] = []
        self.schedules: list[tuple[str, Handler, dict[str, Any]]] = []
        self.before: Callable[[], None] = lambda: None
        self._running: list[Running] = []
        self._workers: list[Any] = []

    def consume(self, queue: str, handler: Handler, **options: Any) -> None:
        """Have the next worker register a consumer."""
        self.consumers.append((queue, self._fitting(handler), options))

    def schedule(self, name: str, handler: Handler, **options: Any) -> None:
        """Have the next worker register a schedule."""
        self.schedules.append((name, handler, options))

    @property
    def worker(self) -> Any:
        """The worker that was started last."""
        return self._workers[-1]

    def _fitting(self, handler: Handler) -> Callable[..., Any]:
        if self.kind == "tasks":
            return handler
        if len(inspect.signature(handler).parameters) > 1:
            return lambda payload, job: asyncio.run(handler(payload, job))  # type: ignore[arg-type]
        return lambda payload: asyncio.run(handler(payload))  # type: ignore[arg-type]

    def run(self, **options: Any) -> None:
        """Run a worker until the queues are empty."""
        self._started(options, drain=True).join()

    def start(self, **options: Any) -> Running:
        """Run a worker until it is told to stop."""
        return self._started(options, drain=False)

    def _started(self, options: dict[str, Any], *, drain: bool) -> Running:
        run = self._in_threads if self.kind == "threads" else self._in_tasks
        begun, own = threading.Event(), list[Any]()
        running = Running(lambda: run(options, drain, begun), lambda: own[0].stop())
        self._running.append(running)
        while not begun.wait(0.05):
            if running.ended:
                running.join()
        own.append(self.worker)
        while self.worker.health().reasons == NO_RUN and not running.ended:  # a stop before that is none
            time.sleep(0.0005)
        return running

    def _in_threads(self, options: dict[str, Any], drain: bool, begun: threading.Event) -> None:
        with mongoq.connect(self.uri, database=self.database) as broker:
            worker = self._registered(mongoq.Worker(broker, **options))
            begun.set()
            worker.run(drain=drain)

    def _in_tasks(self, options: dict[str, Any], drain: bool, begun: threading.Event) -> None:
        async def work() -> None:
            async with mongoq.connect_async(self.uri, database=self.database) as broker:
                worker = self._registered(mongoq.AsyncWorker(broker, **options))
                begun.set()
                await worker.run(drain=drain)

        asyncio.run(work())

    def _registered(self, worker: Any) -> Any:
        for queue, handler, options in self.consumers:
            worker.consumer(queue, **options)(handler)
        for name, handler, options in self.schedules:
            worker.schedule(name, **options)(self._fitting(handler))
        self.before()
        self._workers.append(worker)
        return worker

    def stop_all(self) -> None:
        """Tell all workers to stop at once, and wait until they have."""
        for worker in self._workers:
            worker.stop()
        for running in self._running:
            running.join()

    def close(self) -> None:
        for running, worker in zip(self._running, self._workers, strict=True):
            if not running.ended:
                worker.stop()
                worker.stop()
                running.join()


@pytest.fixture(params=["threads"])
def desk(request: pytest.FixtureRequest, uri: str, database: str, broker: mongoq.Broker) -> Iterator[Desk]:
    """A worker of one kind."""
    opened = Desk(request.param, uri, database, broker)
    yield opened
    opened.close()


@pytest.fixture
def queue(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    """The queue that most tests consume."""
    return broker.queue("orders")


@pytest.fixture
def process(uri: str, database: str) -> Iterator[Callable[..., Process]]:
    """Starts workers in processes of their own, and ends them."""
    started = []

    def start(kind: str, seconds: float, grace: float, *more: object) -> Process:
        started.append(Process(uri, database, kind, seconds, grace, *more))
        return started[-1]

    yield start
    for one in started:
        one.close()
