"""Stand-in for the server: a collection in memory, a clock moved by hand, an event loop, and the runs under way."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Iterable
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from bson import ObjectId

from mongoq.aio import AsyncQueue
from mongoq.data.arguments import Duration, duration, queue_name
from mongoq.data.clock import VirtualClock
from mongoq.data.item import Item
from mongoq.data.rate import Pace
from mongoq.data.schedule.definition import Definition
from mongoq.drivers.threads.driver import Runner, ThreadDriver
from mongoq.drivers.virtual import VirtualDriver, make_ready
from mongoq.errors import ArgumentInvalid, BatchIncomplete
from mongoq.sync import Queue
from mongoq.sync.operations import BrokerContext, QueueContext
from mongoq.sync.schedules import Schedules
from mongoq.worker.backlog import HandlerCall
from mongoq.worker.consumer import Consumer

P = ParamSpec("P")
T = TypeVar("T")


class VirtualServer(Runner[BrokerContext]):
    """State that the virtual brokers of one collection share with their workers.

    Attributes:
        clock: clock that stands still until the test moves it.
        driver: driver of handles that are awaited.
        running: runs under way: one, unless handlers run handlers or tasks of a test run several.
        paces: paces by which consumers with a ``rate_key`` have put items off, by queue.
        schedules: makes the ticks of schedules.
    """

    def __init__(self, threads: ThreadDriver, context: BrokerContext, clock: VirtualClock) -> None:
        super().__init__(threads, context)
        self.clock = clock
        self.driver = VirtualDriver(threads, context)
        self._runner: asyncio.Runner | None = None
        self.running: dict[HandlerCall, Consumer] = {}
        self.paces: dict[str, Pace | None] = {}
        self.schedules = Schedules(threads, context)

    def check_loop(self, consumers: Iterable[Consumer]) -> None:
        """Refuse to run coroutine functions in a thread where another loop runs.

        Raises:
            ArgumentInvalid: a handler is a coroutine function; the message says what to use.
        """
        for consumer in consumers:
            if consumer.asynchronous and asyncio._get_running_loop() is not None:
                problem = "is a coroutine function, and the test runs in an event loop already"
                advice = "await the worker of an AsyncVirtualBroker there"
                raise ArgumentInvalid("worker", f"the handler of {consumer.name!r} {problem}; {advice}")

    def run_in_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of a plain test to its end, in the context of the caller.

        All run in one loop, made at the first run: objects that a handler keeps between runs stay usable.
        """
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # no other loop is taken for it
            # A broker that is never closed would leave its loop open, and Python would warn about it.
            weakref.finalize(self, self._runner.get_loop().close)
        return self._runner.run(coroutine, context=copy_context())

    def close(self) -> None:
        """End the loop. Idempotent."""
        if self._runner is not None:
            self._runner.close()

    def queue(self, context: QueueContext[Any]) -> Queue[Any]:
        """Return a handle of the same queue here, with the same model and options."""
        return Queue(self._driver, self._bind(context))

    def async_queue(self, context: QueueContext[Any]) -> AsyncQueue[Any]:
        """Return a handle of the same queue here that is awaited, with the same model and options."""
        return AsyncQueue(self.driver, self._bind(context))

    def _bind(self, context: QueueContext[Any]) -> QueueContext[Any]:
        return context if context.broker is self._context else replace(context, broker=self._context)

    def resolve_target(self, to: Any) -> Any:
        """Return the destination of a ``Move``: a queue's name as it is, or a handle's queue here."""
        return self._bind(to._context) if isinstance(to, Queue | AsyncQueue) else to

    def extend_leases(self) -> None:
        """Extend the leases of the running items, as a worker would have done before the clock jumped."""
        for run, consumer in list(self.running.items()):
            try:
                self.queue(consumer.queue._context).extend_many(run.items, lease=consumer.lease)
            except BatchIncomplete:
                if run.job is not None:
                    run.job.lost.set()

    def define_schedule(self, definition: Definition, queue: Any) -> None:
        """Define a schedule of a worker here."""
        self.schedules._define_schedule(definition, self._bind(queue._context))

    def make_ready(self, filter: dict[str, Any]) -> int:
        """Make waiting items ready now, and return their number."""
        return self._run(make_ready, filter)


class VirtualTime:
    """The part of virtual brokers and workers by which a test lets items come due."""

    _server: VirtualServer

    def advance(self, by: Duration) -> datetime:
        """Move the clock on, so that delays, retries and leases come due, and return the new time; nothing to await.

        Inside a handler it extends the leases of the running items, as a worker would, and sets ``job.lost`` when one
        of them is lost.

        Args:
            by: a ``timedelta`` or seconds.

        Raises:
            ArgumentInvalid: ``by`` is no duration.
        """
        now = self._server.clock.advance(duration(by, "by"))
        self._server.extend_leases()
        return now

    def force_retry(self, target: Item[Any] | ObjectId | str | Queue[Any] | AsyncQueue[Any]) -> int:
        """Make items that wait for a retry ready now, without moving the clock, and return their number.

        Args:
            target: an item or its id, which may also wait for the delay of its push; or a queue, a handle or its name:
                all its items that wait after a run.

        Raises:
            ArgumentInvalid: the item does not wait: it is ready, reserved, settled or gone.
            QueueNameInvalid: ``target`` is neither an item nor a queue.
        """
        if not isinstance(target, Item | ObjectId):
            name = target.name if isinstance(target, Queue | AsyncQueue) else queue_name(target, "target")
            return self._server.make_ready({"q": name, "attempts": {"$gt": 0}})
        id = target.id if isinstance(target, Item) else target
        if not self._server.make_ready({"_id": id}):
            raise ArgumentInvalid("target", f"item {id} waits for nothing: it is ready, reserved, settled or gone")
        return 1
