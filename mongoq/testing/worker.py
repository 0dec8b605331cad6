"""The virtual workers: consumers of production, run by hand."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from bson import ObjectId

from mongoq.aio import AsyncQueue
from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Queue
from mongoq.testing.running import adopt_consumers, driven, run_steps_async, until_idle, up_to
from mongoq.testing.station import Result, Steps
from mongoq.worker import AsyncWorker, Worker

if TYPE_CHECKING:
    from mongoq.testing.broker import AsyncVirtualBroker, VirtualBroker

__all__ = ["AsyncVirtualWorker", "VirtualWorker"]


class VirtualWorker(Worker):
    """A ``Worker`` that runs an item on request and returns its result; made by ``VirtualBroker.worker``.

    ``consumer`` registers handlers with the same options and checks as in production. Handlers may be plain functions
    or coroutine functions, which run in an event loop of the broker. A handle of another broker stands for the queue of
    the same name here. The worker's own parts decide about outcomes and exceptions. Handlers run in the caller's
    thread; only ``KeyboardInterrupt`` and exceptions of test tools that are no ``Exception``, such as ``pytest.fail``,
    leave a run.

    One item runs at a time. ``concurrency``, ``prefetch``, ``prefetch_bytes``, ``max_time``, ``on_timeout`` and
    ``probe`` are checked and have no effect: with ``probe`` every failure counts. ``run`` and ``stop`` are for
    production; ``run`` is refused.
    """

    _coroutines = True

    def __init__(self, broker: VirtualBroker, production: Worker | AsyncWorker | Pipeline | None = None) -> None:
        super().__init__(broker)
        self._server = broker._server
        if production is not None:
            self._consumers.update(adopt_consumers(production, self._server, broker))

    def _handle(self, queue: str | Queue[Any] | AsyncQueue[Any], lease: Any, max_retries: Any) -> Queue[Any]:
        if isinstance(queue, Queue | AsyncQueue):
            queue = Queue(self._server.driver, self._server.bound(queue._context))
        return super()._handle(queue, lease, max_retries)

    def _driven(self, steps: Steps) -> list[Result]:
        self._server.loop.check(self._consumers.values())
        return driven(steps, self._server.loop)

    def run_one(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> Result | None:
        """Run the next ready item of a queue, and return its result; ``None`` when no item is ready.

        A batch handler gets a list of one payload.

        Args:
            queue: its name, or a handle.

        Raises:
            ArgumentInvalid: the queue has no consumer; or a handler is a coroutine function, and the test runs in an
                event loop already: await the worker of an ``AsyncVirtualBroker`` there.
        """
        results = self._driven(up_to(1, queue, self._consumers, self._server))
        return results[0] if results else None

    def run_batch(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> list[Result]:
        """Run ready items as one batch, as large as the consumer takes; returns the result of each item.

        Args:
            queue: its name, or a handle.

        Raises:
            ArgumentInvalid: as for ``run_one``.
        """
        return self._driven(up_to(None, queue, self._consumers, self._server))

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
        return self._driven(until_idle(limit, self._consumers, self._server))

    def advance(self, by: Duration) -> datetime:
        """Move the broker's clock on, as ``VirtualBroker.advance``.

        Raises:
            ArgumentInvalid: ``by`` is no duration.
        """
        return self._server.advance(by)

    def force_retry(self, target: Item[Any] | ObjectId | str | Queue[Any] | AsyncQueue[Any]) -> int:
        """Make items that wait for a retry ready now, as ``VirtualBroker.force_retry``.

        Raises:
            ArgumentInvalid: the item does not wait: it is ready, reserved, settled or gone.
            QueueNameInvalid: ``target`` is neither an item nor a queue.
        """
        return self._server.force_retry(target)


class AsyncVirtualWorker(AsyncWorker):
    """``VirtualWorker`` for tests that run in an event loop; made by ``AsyncVirtualBroker.worker``.

    Coroutine functions run in the test's own loop, plain functions in the loop's thread.
    """

    def __init__(self, broker: AsyncVirtualBroker, production: Worker | AsyncWorker | Pipeline | None = None) -> None:
        super().__init__(broker)
        self._server = broker._virtual._server
        if production is not None:
            self._consumers.update(adopt_consumers(production, self._server, broker))

    def _handle(self, queue: str | Queue[Any] | AsyncQueue[Any], lease: Any, max_retries: Any) -> AsyncQueue[Any]:
        if isinstance(queue, Queue | AsyncQueue):
            queue = AsyncQueue(self._broker._driver, self._server.bound(queue._context))
        return super()._handle(queue, lease, max_retries)

    async def run_one(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> Result | None:
        """Run the next ready item of a queue, and return its result, as ``VirtualWorker.run_one`` does.

        Raises:
            ArgumentInvalid: the queue has no consumer.
        """
        results = await run_steps_async(up_to(1, queue, self._consumers, self._server))
        return results[0] if results else None

    async def run_batch(self, queue: str | Queue[Any] | AsyncQueue[Any]) -> list[Result]:
        """Run ready items as one batch, and return the result of each item, as ``VirtualWorker.run_batch`` does.

        Raises:
            ArgumentInvalid: the queue has no consumer.
        """
        return await run_steps_async(up_to(None, queue, self._consumers, self._server))

    async def run_until_idle(self, *, limit: int = 1_000) -> list[Result]:
        """Run all queues that have consumers until nothing is ready, as ``VirtualWorker.run_until_idle`` does.

        Raises:
            NeverIdle: there is more to run; the error holds the results so far.
            ArgumentInvalid: ``limit`` is no whole number of at least 1.
        """
        return await run_steps_async(until_idle(limit, self._consumers, self._server))

    def advance(self, by: Duration) -> datetime:
        """Move the broker's clock on, as ``VirtualBroker.advance``.

        Raises:
            ArgumentInvalid: ``by`` is no duration.
        """
        return self._server.advance(by)

    def force_retry(self, target: Item[Any] | ObjectId | str | Queue[Any] | AsyncQueue[Any]) -> int:
        """Make items that wait for a retry ready now, as ``VirtualBroker.force_retry``.

        Raises:
            ArgumentInvalid: the item does not wait: it is ready, reserved, settled or gone.
            QueueNameInvalid: ``target`` is neither an item nor a queue.
        """
        return self._server.force_retry(target)
