"""Stand-in for the server: a collection in memory, a clock moved by hand, an event loop, and the runs under way."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from bson import ObjectId

from mongoq.aio import AsyncQueue
from mongoq.core.command import Command, Shared, UndoLog, WakeEvent, number_matched
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.perform import perform
from mongoq.data.arguments import Duration, duration, queue_name
from mongoq.data.clock import VirtualClock
from mongoq.data.item import Item
from mongoq.data.rate import Pace
from mongoq.data.schedule.definition import Definition
from mongoq.drivers.aio.driver import AioDriver
from mongoq.drivers.observer import Observer
from mongoq.drivers.performer_threads import ThreadPerformer
from mongoq.drivers.threads.driver import Runner, ThreadDriver
from mongoq.errors import ArgumentInvalid, BatchIncomplete
from mongoq.sync import Queue
from mongoq.sync.schedules import Schedules
from mongoq.worker.backlog import HandlerCall
from mongoq.worker.consumer import Consumer

P = ParamSpec("P")
T = TypeVar("T")


class ImmediatePerformer:
    """Performs commands by the performer for threads, in the caller's task: commands in memory end at once."""

    def __init__(self, threads: ThreadPerformer) -> None:
        self._threads = threads
        self.check_open = threads.check_open
        self.run_beside = threads.run_beside

    def check_loop(self) -> None:
        """Accept any loop: nothing here belongs to one."""

    async def perform(self, command: Command[Any], undo_log: UndoLog) -> Any:
        """Send a command."""
        return self._threads.perform(command, undo_log)

    async def share(self, shared: Shared[Any], undo_log: UndoLog) -> Any:
        """Send a part of a shared command."""
        return self._threads.share(shared, undo_log)

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        self._threads.sleep(seconds)

    async def rest(self, event: WakeEvent, seconds: float) -> None:
        """Wait for an event."""
        self._threads.rest(event, seconds)

    def undo_all(self, taken: UndoLog) -> asyncio.Future[None]:
        """Give back what commands took."""
        self._threads.undo_all(taken)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class VirtualDriver(AioDriver):
    """Runs operations by the performer for threads, in the caller's task, so nothing waits."""

    def __init__(self, threads: ThreadDriver, context: BrokerContext) -> None:
        super().__init__(threads._backend, context, self._flush_nothing)
        self._threads = threads
        self._counter_flush = None
        self._performer: Any = ImmediatePerformer(threads._performer)

    async def _flush_nothing(self) -> None:
        """Write no counters: those of the driver for threads are written."""

    async def run_shielded(self, work: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run an operation to its end; no task can cancel it, because it never waits."""
        return await self.run(work, *args, **options)

    def start_later(
        self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]], done: Callable[[], None]
    ) -> Callable[[], None]:
        """Start nothing: a server in memory is always healthy, and a test has no time of its own for checks."""
        return lambda: None

    @property
    def observer(self) -> Observer | None:
        """Observer of the driver for threads: both brokers of a pair are observed, or none."""
        return self._threads.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._threads.observer = observer


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
        now = self._context.clock.now()
        waiting = {**filter, "when": {"$gt": now}, "reserved": {"$ne": True}}
        arguments = {"filter": waiting, "update": {"$set": {"when": now}}}
        return self._run_given(perform, Command("update_many", arguments, number_matched))


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
