"""Performer of asyncio: sends the commands of operations from tasks, and lets their callers be cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mongoq.core.command import LOST, Command, ReplyLost, Shared, UndoLog, WakeEvent, is_of_transaction, note_taken
from mongoq.drivers.backend import classify_error
from mongoq.drivers.counter_flush import FLUSH_TIMEOUT_SECONDS
from mongoq.drivers.group_commit_aio import AioGroupCommit
from mongoq.drivers.sessions import ENDED
from mongoq.drivers.sleep import rest_aio as rest
from mongoq.errors import ArgumentInvalid, BrokerClosed

if TYPE_CHECKING:
    from mongoq.drivers.aio.driver import AioDriver

T = TypeVar("T")
logger = logging.getLogger("mongoq.drive")


class AioPerformer:
    """Performs the commands of operations on one event loop.

    Commands run in tasks of the driver: cancelling one inside PyMongo drops its connection, and a command that was
    sent may have happened. A cancelled caller leaves at once; its command ends, and items that it took are given back.

    All callers belong to one event loop: so do the client's connections, and a future must not be set from the thread
    of another loop.

    Attributes:
        loop: event loop on which the driver was first used.
        group_commit: lets callers share commands, where ``BrokerContext.group_commit`` is set.
        closed: True after ``close``: callers may send no further command.
    """

    def __init__(self, driver: AioDriver) -> None:
        self._driver = driver
        self._tasks: set[asyncio.Task[Any]] = set()
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._session_commands: dict[int, asyncio.Task[Any]] = {}
        self.group_commit = AioGroupCommit(self, driver.run)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def check_loop(self) -> None:
        """Bind the driver to its first event loop: its commands would never end for a caller on another one."""
        loop = asyncio.get_running_loop()
        if self.loop is None:
            self.loop = loop
        elif self.loop is not loop:
            raise RuntimeError("an AsyncBroker, like its client, belongs to the event loop on which it was first used")

    # --- for operations --------------------------------------------------------------------------

    async def perform(self, command: Command[T], undo_log: UndoLog) -> T:
        """Send a command, whose caller may be cancelled, and return its parsed reply."""
        self.check_open()
        failover = self._driver.failover
        if time.monotonic() >= failover.next_check:
            failover.check_topology()
        task = asyncio.current_task()
        try:
            # What runs beside has a session to itself.
            if command.session is not None and task not in self._side_tasks:
                reply = await self._send_in_session(command)
            elif task in self._tasks:  # a task of the driver is not cancelled with a caller
                reply = await self._driver.send(command)
            else:
                reply = await self._send_in_new_task(command, undo_log)
            if command.undo is not None:
                note_taken(undo_log, command, reply)
            return reply if command.parse is None else command.parse(reply)
        except Exception as error:
            self._driver.failover.reraise(error)

    async def share(self, shared: Shared[T], undo_log: UndoLog) -> T:
        """Let a caller share a command; what comes for one who is cancelled is given back."""
        try:
            answer: T = await self.group_commit.share(shared)
        except asyncio.CancelledError:
            self.group_commit.leave(shared)
            if shared.undo is not None:
                undo_log.clear()  # the undo of the request gives back all that the operation had taken
            raise
        except Exception as error:
            self._driver.failover.reraise(error)
        if shared.undo is not None:
            note_taken(undo_log, shared, answer)
        return answer

    def check_open(self) -> None:
        """Refuse a caller after ``close``; tasks of the driver finish the work that they have begun."""
        if self.closed and asyncio.current_task() not in self._tasks:
            raise BrokerClosed

    async def sleep(self, seconds: float) -> None:
        """Pause a caller."""
        self.check_open()
        await asyncio.sleep(seconds)

    async def rest(self, event: WakeEvent, seconds: float) -> None:
        """Suspend a caller until the event is set."""
        self.check_open()
        await rest(event, seconds)

    def run_beside(
        self, work: Callable[[], Coroutine[Any, Any, None]], over: Callable[[], object], context: Context | None
    ) -> None:
        """Run an operation in its own task."""
        self.check_open()
        task = self.start_task(self._driver.run(work), context or Context())
        task.add_done_callback(lambda _: over())  # a task that was cancelled may not have begun its operation
        if context is None:  # a caller waits for what has its context, and so does ``close``
            self._side_tasks.add(task)
            task.add_done_callback(self._side_tasks.discard)

    # --- commands --------------------------------------------------------------------------------

    async def _send_in_new_task(self, command: Command[Any], undo_log: UndoLog) -> Any:
        """Send a command from a task of the driver, and undo it if the caller is cancelled before the reply."""
        task = self.start_task(self._driver.send(command))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if command.undo is not None and not is_of_transaction(command):
                undo_log.clear()  # the undo of this command gives back all that the operation had taken
            task.add_done_callback(partial(self._undo_abandoned, command))
            raise
        if self.closed and task.cancelled():  # at the end of the event loop, maybe before its first step
            raise BrokerClosed
        return task.result()

    def _undo_abandoned(self, command: Command[Any], task: asyncio.Task[Any]) -> None:
        """Undo a command whose caller was cancelled."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.debug("a command whose caller was cancelled failed: %r", error)
        if error is None and not task.cancelled():
            self.undo_all([(command, task.result())])
        elif isinstance(error, Exception) and isinstance(classify_error(error), ReplyLost):
            self.undo_all([(command, LOST)])

    async def _send_in_session(self, command: Command[Any]) -> Any:
        """Send a command of a session, one at a time per session. A cancelled caller waits for its command to end.

        Otherwise the abort that follows could overtake the command, which would then happen outside of the transaction.
        """
        key = id(command.session)
        # In the order of the calls: a task that pushes on and on cannot put off the end of its block.
        before = self._session_commands.get(key)

        async def send_after() -> Any:
            if before is not None:
                await asyncio.wait([before])
            if command.target != "sessions" and not command.session.in_transaction:
                # The transaction has ended meanwhile: the command would happen outside of it.
                raise ArgumentInvalid("session", ENDED)
            return await self._driver.send(command)

        task = self._session_commands[key] = self.start_task(send_after())
        task.add_done_callback(lambda _: self._session_commands[key] is task and self._session_commands.pop(key))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # read, so that asyncio does not log it: the caller has gone
            raise

    async def wait_for_session(self, session: Any) -> None:
        """Wait until no command of a session is under way."""
        while task := self._session_commands.get(id(session)):
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # read, so that asyncio does not log it

    # --- tasks of the driver ---------------------------------------------------------------------

    def start_task(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T]:
        """Start a task of the driver; ``close`` waits for it."""
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_later(
        self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]], on_done: Callable[[], None]
    ) -> Callable[[], None]:
        """Start work in a task after some seconds, then call ``on_done``; return what cancels it.

        It runs without the deadlines and settings of the caller's context: a deadline of ``pymongo.timeout`` would be
        over by then, also for all that ``on_done`` starts.
        """

        def start() -> None:
            # A callback, not a part of the task: that may be cancelled before its first step.
            self.start_task(work()).add_done_callback(lambda _: on_done())

        return asyncio.get_running_loop().call_later(seconds, start, context=Context()).cancel

    def undo_all(self, taken: UndoLog) -> asyncio.Task[None]:
        """Undo commands in a task of the driver, one after the other."""
        return self.start_task(self._driver.undo_all(taken))

    def close(self) -> None:
        """Refuse further commands of callers, and end what runs beside."""
        self.closed = True
        for task in _filter_this_loop(self._side_tasks):
            task.cancel()

    async def wait_for_commands(self, is_cut_off: Callable[[], bool]) -> None:
        """Wait for the running commands; without a server that takes writes, cancel those that take too long."""
        await asyncio.sleep(0)  # callers that were cancelled a moment ago have not run since
        while under_way := _filter_this_loop(self._tasks):
            _, late = await asyncio.wait(under_way, timeout=FLUSH_TIMEOUT_SECONDS)
            if late and is_cut_off():
                for each in late:
                    each.cancel()
            await asyncio.sleep(0)


def _filter_this_loop(futures: Iterable[asyncio.Future[Any]]) -> set[asyncio.Future[Any]]:
    """Return the futures of the running event loop. Another loop may be closed or stopped: its futures never end."""
    loop = asyncio.get_running_loop()
    return {future for future in futures if future.get_loop() is loop}
