"""The virtual workers: consumers of production, run by hand.

A run is a generator of steps, which the worker for plain tests and the one for tests in an event loop both drive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mongoq.aio import AsyncQueue
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import count
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.run.consumers import machinery
from mongoq.sync import Queue
from mongoq.testing.server import PrivateLoop, VirtualServer, VirtualTime
from mongoq.testing.station import NeverIdle, Result, Steps, VirtualStation
from mongoq.worker import AsyncWorker, Worker
from mongoq.worker.consumer import Consumer
from mongoq.worker.hooks import add_hooks

if TYPE_CHECKING:
    from mongoq.testing.broker import AsyncVirtualBroker, VirtualBroker


class VirtualWorker(VirtualTime, Worker):
    """A ``Worker`` that runs an item on request and returns its result; made by ``VirtualBroker.worker``.

    ``consumer`` registers handlers with the same options and checks as in production. Handlers may be plain functions
    or coroutine functions, which run in an event loop of the broker. A handle of another broker stands for the queue of
    the same name here, and context managers of ``around`` are entered as in production. Schedules follow the clock of
    the broker: each run makes the ticks that are due before it takes an item. The worker's own parts decide
    about outcomes and exceptions. Handlers run in the caller's thread; only ``KeyboardInterrupt`` and exceptions of
    test tools that are no ``Exception``, such as ``pytest.fail``, leave a run.

    One item runs at a time. ``concurrency``, ``max_running``, ``prefetch``, ``prefetch_bytes``, ``max_time``,
    ``on_timeout`` and ``probe`` are checked and have no effect: with ``probe`` every failure counts. Under a ``rate``
    no more items are ready than it allows by the virtual clock. ``run`` and ``stop`` are for
    production; ``run`` is refused.
    """

    _coroutines = True

    def __init__(self, broker: VirtualBroker, production: Worker | AsyncWorker | Pipeline | None = None) -> None:
        super().__init__(broker)
        self._server = broker._server
        if production is not None:
            self._consumers.update(_adopt_consumers(production, self._server, broker))
            self._hooks += [] if isinstance(production, Pipeline) else production._hooks
            for plan in () if isinstance(production, Pipeline) else production._schedules.values():
                self._add_schedule(plan)

    def _hooked(self) -> dict[str, Consumer]:
        """Return the consumers, with the context managers of ``around``."""
        consumers = {key: add_hooks(consumer, self._hooks) for key, consumer in self._consumers.items()}
        observer = self._server._driver.observer
        hooks = () if observer is None else observer.find_hooks()
        return {key: add_hooks(consumer, hooks) for key, consumer in consumers.items()}

    def _add_schedule(self, plan: Any) -> None:
        self._server.define_schedule(plan)
        super()._add_schedule(plan)

    def _handle(
        self, queue: str | Queue[Any] | AsyncQueue[Any], lease: Any, max_retries: Any, limits: Mapping[str, Any]
    ) -> Queue[Any]:
        if isinstance(queue, Queue | AsyncQueue):
            queue = self._server.queue(queue._context)
        return super()._handle(queue, lease, max_retries, limits)

    def _run_steps(self, steps: Steps) -> list[Result]:
        self._server.loop.check(self._consumers.values())
        self._server.schedules.tick()
        return _drive(steps, self._server.loop)

    def run_one(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> Result | None:
        """Run the next ready item of a queue, and return its result; ``None`` when no item is ready.

        A batch handler gets a list of one payload.

        Args:
            queue: its name, or a handle.

        Raises:
            ArgumentInvalid: the queue has no consumer; or a handler is a coroutine function, and the test runs in an
                event loop already: await the worker of an ``AsyncVirtualBroker`` there.
        """
        results = self._run_steps(_run_up_to(1, queue, self._hooked(), self._server))
        return results[0] if results else None

    def run_batch(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> list[Result]:
        """Run ready items as one batch, as large as the consumer takes; returns the result of each item.

        Args:
            queue: its name, or a handle.

        Raises:
            ArgumentInvalid: as for ``run_one``.
        """
        return self._run_steps(_run_up_to(None, queue, self._hooked(), self._server))

    def run_until_idle(self, *, limit: int = 1_000) -> list[Result]:
        """Run all queues that have consumers until nothing is ready in any; returns the results of the items, in order.

        The worker takes queue by queue in the order of their registration, runs each until it is empty, and begins
        again as long as an item has run. The clock stands still: items that wait for a delay or a retry are left.

        Args:
            limit: runs, at most.

        Raises:
            NeverIdle: there is more to run; the error holds the results so far.
            ArgumentInvalid: ``limit`` is no whole number of at least 1; or as for ``run_one``.
        """
        return self._run_steps(_run_until_idle(limit, self._hooked(), self._server))


class AsyncVirtualWorker(VirtualTime, AsyncWorker):
    """``VirtualWorker`` for tests that run in an event loop; made by ``AsyncVirtualBroker.worker``.

    Coroutine functions run in the test's own loop, plain functions in the loop's thread.
    """

    def __init__(self, broker: AsyncVirtualBroker, production: Worker | AsyncWorker | Pipeline | None = None) -> None:
        super().__init__(broker)
        self._server = broker._server
        if production is not None:
            self._consumers.update(_adopt_consumers(production, self._server, broker))
            self._hooks += [] if isinstance(production, Pipeline) else production._hooks
            for plan in () if isinstance(production, Pipeline) else production._schedules.values():
                self._add_schedule(plan)

    def _hooked(self) -> dict[str, Consumer]:
        """Return the consumers, with the context managers of ``around``."""
        consumers = {key: add_hooks(consumer, self._hooks) for key, consumer in self._consumers.items()}
        observer = self._server._driver.observer
        hooks = () if observer is None else observer.find_hooks()
        return {key: add_hooks(consumer, hooks) for key, consumer in consumers.items()}

    def _add_schedule(self, plan: Any) -> None:
        self._server.define_schedule(plan)
        super()._add_schedule(plan)

    def _handle(
        self, queue: str | Queue[Any] | AsyncQueue[Any], lease: Any, max_retries: Any, limits: Mapping[str, Any]
    ) -> AsyncQueue[Any]:
        if isinstance(queue, Queue | AsyncQueue):
            queue = self._server.async_queue(queue._context)
        return super()._handle(queue, lease, max_retries, limits)

    async def run_one(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> Result | None:
        """Run the next ready item of a queue, and return its result, as ``VirtualWorker.run_one`` does.

        Raises:
            ArgumentInvalid: the queue has no consumer.
        """
        self._server.schedules.tick()
        results = await _drive_async(_run_up_to(1, queue, self._hooked(), self._server))
        return results[0] if results else None

    async def run_batch(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> list[Result]:
        """Run ready items as one batch, and return the result of each item, as ``VirtualWorker.run_batch`` does.

        Raises:
            ArgumentInvalid: the queue has no consumer.
        """
        self._server.schedules.tick()
        return await _drive_async(_run_up_to(None, queue, self._hooked(), self._server))

    async def run_until_idle(self, *, limit: int = 1_000) -> list[Result]:
        """Run all queues that have consumers until nothing is ready, as ``VirtualWorker.run_until_idle`` does.

        Raises:
            NeverIdle: there is more to run; the error holds the results so far.
            ArgumentInvalid: ``limit`` is no whole number of at least 1.
        """
        self._server.schedules.tick()
        return await _drive_async(_run_until_idle(limit, self._hooked(), self._server))


def _adopt_consumers(production: Any, server: VirtualServer, broker: Any) -> dict[str, Consumer]:
    """Return the consumers of a production worker or a pipeline, bound to the queues of the same names here."""
    if isinstance(production, Pipeline):
        production.check()
        _check_sources(production)
        return _key_by_queue(machinery(production.graph, broker, coroutines=True)[0])
    if not isinstance(production, Worker | AsyncWorker):
        raise ArgumentInvalid("production", f"a Worker, an AsyncWorker or a Pipeline, not {type(production).__name__}")
    return {
        name: replace(consumer, queue=server.queue(consumer.queue._context))
        for name, consumer in production._consumers.items()
    }


def _check_sources(pipeline: Pipeline) -> None:
    sources = [f"source {source.name!r}" for source in pipeline.graph.sources]
    if sources:
        hint = "call the generator in the test, and push what it yields to a pipeline without"
        problem = f"pipeline {pipeline.name!r} has {', '.join(sources)}, which needs a server with transactions; {hint}"
        raise ArgumentInvalid("production", problem)


def _key_by_queue(own: Iterable[Consumer]) -> dict[str, Consumer]:
    """Return consumers by queue; a second consumer of a queue has the key of queue and stage."""
    consumers_by_key: dict[str, Consumer] = {}
    for consumer in own:
        consumers_by_key[
            consumer.name if consumer.name not in consumers_by_key else f"{consumer.name} ({consumer.stage})"
        ] = consumer
    return consumers_by_key


def _run_up_to(n: int | None, queue: Any, consumers: Mapping[str, Consumer], server: VirtualServer) -> Steps:
    """Run up to ``n`` items of a queue, or a batch."""
    name = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
    if name not in consumers:
        there = ", ".join(map(repr, consumers)) or "none"
        raise ArgumentInvalid("queue", f"{name!r} has no consumer in this worker; there is {there}")
    return (yield from VirtualStation(consumers[name], server).steps(n))


def _run_until_idle(limit: Any, consumers: Mapping[str, Consumer], server: VirtualServer) -> Steps:
    """Run queue by queue, and again from the first as long as an item has run."""
    most = count(limit, "limit")
    stations = [VirtualStation(consumer, server) for consumer in consumers.values()]
    results: list[Result] = []
    runs = before = 0
    while True:
        for station in stations:
            # Each queue until it is empty, so that results come in an order that tests can rely on.
            while came := (yield from station.steps(None)):
                results += came
                runs += 1
                if runs > most:
                    raise NeverIdle(most, results)
        if runs == before:
            return results
        before = runs


def _drive(steps: Steps, loop: PrivateLoop) -> list[Result]:
    """Run all steps in a plain test."""
    try:
        coroutine = next(steps)
        while True:
            try:
                reply = loop.run(coroutine)
            except BaseException as error:
                coroutine = steps.throw(error)
            else:
                coroutine = steps.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _drive_async(steps: Steps) -> list[Result]:
    """Run all steps in a test that runs in an event loop; a cancelled test releases its running items."""
    try:
        coroutine = next(steps)
        while True:
            try:
                reply = await coroutine
            except BaseException as error:
                # A handler may raise CancelledError by itself; that fails its run and does not end the test.
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    steps.close()
                    raise
                coroutine = steps.throw(error)
            else:
                coroutine = steps.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _is_cancelled() -> bool:
    """Return whether the test is cancelled, and not only the handler by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
