"""The virtual workers: consumers of production, run by hand.

A run is a coroutine. That of a plain test waits for nothing: coroutine functions run in a loop of the broker meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mongoq.aio import AsyncQueue
from mongoq.data.arguments import count
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.run.consumers import machinery
from mongoq.sync import Queue
from mongoq.testing.server import VirtualTime
from mongoq.testing.station import NeverIdle, Result, VirtualStation
from mongoq.worker import AsyncWorker, Worker
from mongoq.worker.consumer import Consumer, Hook, add_hooks

if TYPE_CHECKING:
    from mongoq.testing.broker import AsyncVirtualBroker, VirtualBroker


class _Adopting(VirtualTime):
    """Base of the virtual workers: takes over consumers of production, for the queues of the same names here."""

    _consumers: dict[str, Consumer]
    _hooks: list[Hook]

    def _take_over(self, production: Any, broker: Any) -> None:
        self._server = server = broker._server
        if isinstance(production, Pipeline):
            production.check()
            sources = [f"source {source.name!r}" for source in production.graph.sources]
            if sources:
                hint = "call the generator in the test, and push what it yields to a pipeline without"
                problem = (
                    f"pipeline {production.name!r} has {', '.join(sources)}, which needs a server with transactions"
                )
                raise ArgumentInvalid("production", f"{problem}; {hint}")
            for consumer in machinery(production.graph, broker, coroutines=True)[0]:
                # A second consumer of a queue has the key of queue and stage.
                again = f" ({consumer.stage})" if consumer.name in self._consumers else ""
                self._consumers[consumer.name + again] = consumer
        elif isinstance(production, Worker | AsyncWorker):
            for name, consumer in production._consumers.items():
                self._consumers[name] = replace(consumer, queue=server.queue(consumer.queue._context))
            self._hooks += production._hooks
            for plan in production._schedules.values():
                self._add_schedule(*plan)
        elif production is not None:
            wanted = "a Worker, an AsyncWorker or a Pipeline"
            raise ArgumentInvalid("production", f"{wanted}, not {type(production).__name__}")

    def _hooked(self) -> dict[str, Consumer]:
        """Return the consumers, with the context managers of ``around``."""
        observer = self._server._driver.observer
        hooks = () if observer is None else observer.find_hooks()
        return {key: add_hooks(add_hooks(own, self._hooks), hooks) for key, own in self._consumers.items()}

    def _add_schedule(self, definition: Any, queue: Any) -> None:
        self._server.define_schedule(definition, queue)
        super()._add_schedule(definition, queue)  # type: ignore[misc]  # a worker is the next class

    def _handle(self, queue: Any, lease: Any, max_retries: Any, limits: Mapping[str, Any]) -> Any:
        if isinstance(queue, Queue | AsyncQueue):
            bind = self._server.async_queue if isinstance(self, AsyncWorker) else self._server.queue
            queue = bind(queue._context)
        return super()._handle(queue, lease, max_retries, limits)  # type: ignore[misc]


class VirtualWorker(_Adopting, Worker):
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
        self._take_over(production, broker)

    def _complete(self, run: Callable[..., Coroutine[Any, Any, list[Result]]], *args: Any) -> list[Result]:
        """Run a coroutine to its end, without a running event loop."""
        server = self._server
        server.check_loop(self._consumers.values())
        server.schedules.tick()

        async def await_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return server.run_in_loop(coroutine)

        stations = {name: VirtualStation(each, server, await_coroutine) for name, each in self._hooked().items()}
        try:
            run(stations, *args).send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        raise AssertionError("a run without an event loop waits for something")

    def run_one(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> Result | None:
        """Run the next ready item of a queue, and return its result; ``None`` when no item is ready.

        A batch handler gets a list of one payload.

        Args:
            queue: its name, or a handle.

        Raises:
            ArgumentInvalid: the queue has no consumer; or a handler is a coroutine function, and the test runs in an
                event loop already: await the worker of an ``AsyncVirtualBroker`` there.
        """
        results = self._complete(_run_up_to, queue, 1)
        return results[0] if results else None

    def run_batch(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> list[Result]:
        """Run ready items as one batch, as large as the consumer takes; returns the result of each item.

        Args:
            queue: its name, or a handle.

        Raises:
            ArgumentInvalid: as for ``run_one``.
        """
        return self._complete(_run_up_to, queue, None)

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
        return self._complete(_run_until_idle, limit)


class AsyncVirtualWorker(_Adopting, AsyncWorker):
    """``VirtualWorker`` for tests that run in an event loop; made by ``AsyncVirtualBroker.worker``.

    Coroutine functions run in the test's own loop, plain functions in the loop's thread.
    """

    def __init__(self, broker: AsyncVirtualBroker, production: Worker | AsyncWorker | Pipeline | None = None) -> None:
        super().__init__(broker)
        self._take_over(production, broker)

    def _stations(self) -> dict[str, VirtualStation]:
        """Make the ticks that are due, and return the stations of a run in the running event loop."""
        self._server.schedules.tick()

        async def await_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return await coroutine

        return {name: VirtualStation(each, self._server, await_coroutine) for name, each in self._hooked().items()}

    async def run_one(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> Result | None:
        """Run the next ready item of a queue, and return its result, as ``VirtualWorker.run_one`` does.

        Raises:
            ArgumentInvalid: the queue has no consumer.
        """
        results = await _run_up_to(self._stations(), queue, 1)
        return results[0] if results else None

    async def run_batch(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> list[Result]:
        """Run ready items as one batch, and return the result of each item, as ``VirtualWorker.run_batch`` does.

        Raises:
            ArgumentInvalid: the queue has no consumer.
        """
        return await _run_up_to(self._stations(), queue, None)

    async def run_until_idle(self, *, limit: int = 1_000) -> list[Result]:
        """Run all queues that have consumers until nothing is ready, as ``VirtualWorker.run_until_idle`` does.

        Raises:
            NeverIdle: there is more to run; the error holds the results so far.
            ArgumentInvalid: ``limit`` is no whole number of at least 1.
        """
        return await _run_until_idle(self._stations(), limit)


async def _run_up_to(stations: Mapping[str, VirtualStation], queue: Any, n: int | None) -> list[Result]:
    """Run up to ``n`` items of a queue, or a batch."""
    name = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
    if name not in stations:
        there = ", ".join(map(repr, stations)) or "none"
        raise ArgumentInvalid("queue", f"{name!r} has no consumer in this worker; there is {there}")
    return await stations[name].run(n)


async def _run_until_idle(stations: Mapping[str, VirtualStation], limit: Any) -> list[Result]:
    """Run queue by queue, and again from the first as long as an item has run."""
    most = count(limit, "limit")
    results: list[Result] = []
    runs = before = 0
    while True:
        for station in stations.values():
            # Each queue until it is empty, so that results come in an order that tests can rely on.
            while came := await station.run(None):
                results += came
                runs += 1
                if runs > most:
                    raise NeverIdle(most, results)
        if runs == before:
            return results
        before = runs
