"""Driver of a virtual broker: it runs operations on a collection in memory, in the caller's task; nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from mongoq.core.command import Command, Shared, UndoLog, WakeEvent, number_matched
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.perform import perform
from mongoq.drivers.aio.driver import AioDriver
from mongoq.drivers.observer import Observer
from mongoq.drivers.performer_threads import ThreadPerformer
from mongoq.drivers.threads.driver import ThreadDriver

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


def make_ready(broker: BrokerContext, filter: dict[str, Any]) -> int:
    """Make waiting items ready now, and return their number: an operation of tests."""
    now = broker.clock.now()
    waiting = {**filter, "when": {"$gt": now}, "reserved": {"$ne": True}}
    return perform(Command("update_many", {"filter": waiting, "update": {"$set": {"when": now}}}, number_matched))
