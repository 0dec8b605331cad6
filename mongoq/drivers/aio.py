"""Driver for asyncio: runs flows on a PyMongo async or a Motor collection."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

import pymongo

from mongoq.drivers import counter_flush, raw_commands, sleep
from mongoq.drivers.backend import Backend, UndoLog, interruption, log_reply
from mongoq.drivers.counter_flush import AioCounterFlush
from mongoq.drivers.errors import FailoverNotice
from mongoq.drivers.group_commit_aio import AioGroupCommit, caller
from mongoq.drivers.sessions import Numbered, Sessions
from mongoq.errors import BrokerClosed
from mongoq.model.clock import Clock
from mongoq.model.process import Counters
from mongoq.protocol.flow import (
    SENDS,
    Begin,
    Begun,
    Beside,
    Command,
    Flow,
    Interruption,
    ReplyLost,
    Request,
    Rest,
    Shared,
    Wait,
    hands_over,
)
from mongoq.protocol.state.batcher import Batchers
from mongoq.protocol.state.waiter_registry import WaiterRegistry

__all__ = ["AioDriver"]

T = TypeVar("T")
OwnRequest = Command[Any] | Wait | Rest | Beside | Begin | Begun
"""Requests of one caller alone, in contrast to ``Shared``."""
Perform = Callable[[OwnRequest, UndoLog], Awaitable[Any]]
logger = logging.getLogger("mongoq.drive")


class AioDriver:
    """Performs the requests of a flow on the running event loop.

    Commands run in tasks of the driver: cancelling one inside PyMongo drops its connection, and a command that was
    sent may have happened. A cancelled caller leaves at once; its command ends, and items that it took are given back.
    Only a command that takes nothing, and that is not shared, may run in the caller's own task (``here``).

    All callers belong to one event loop: so do the client's connections, and a future must not be set from the thread
    of another loop.
    """

    asynchronous = shares = True
    caller = staticmethod(asyncio.current_task)

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._failover = FailoverNotice(backend, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._caller_commands: set[asyncio.Future[None]] = set()
        self._session_commands: dict[int, asyncio.Task[Any]] = {}
        self._closed = False
        self._counter_flush: AioCounterFlush | None = None
        self._group_commit: AioGroupCommit | None = None
        self._registry: WaiterRegistry | None = None
        self._side_tasks: set[asyncio.Task[Any]] = set()

    async def run(self, flow: Flow[T], perform: Perform | None = None) -> T:
        """Run a flow to its end; driver errors that the flow did not handle are raised unchanged.

        ``perform`` performs its requests; the default allows for the cancellation of the caller.
        """
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._bind_loop(loop)
        flusher = self._counter_flush
        if flusher is not None and not flusher.armed:
            flusher.arm()
        undo_log: UndoLog | None = None
        request: Request | None = None
        try:
            request = next(flow)
            while True:
                try:
                    if isinstance(request, Shared):
                        # Awaited directly: a shared request costs its caller neither a task nor another coroutine.
                        reply = await self._enter_batch(request, loop)
                        undo_log = undo_log if request.undo is None else [(request, reply)]
                    else:
                        undo_log = [] if undo_log is None else undo_log
                        reply = await (perform or self._perform)(request, undo_log)
                except Exception as error:
                    request = flow.throw(self._failover.convert_error(error))
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException as error:
            try:
                await self._handle_failure(error, request, undo_log)
            finally:
                flow.close()
            raise
        finally:
            if flusher is not None and not flusher.armed:
                flusher.rearm()

    async def run_within(self, seconds: float, flow: Flow[T]) -> T:
        """Run a flow with a limit for all its commands together, waiting for a server included."""
        with pymongo.timeout(seconds):
            return await self.run(flow)

    def _bind_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the driver to the first event loop: its commands would never end for a caller on another one."""
        if self._loop is not None:
            raise RuntimeError("an AsyncBroker, like its client, belongs to the event loop on which it was first used")
        self._loop = loop

    def _enter_batch(self, shared: Shared[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Return the future of a caller's part of a batch."""
        if self._closed:
            self._check_caller()
        assert self._group_commit is not None
        return self._group_commit.enter(shared, loop)

    async def _handle_failure(self, error: BaseException, request: Request | None, undo_log: UndoLog | None) -> None:
        """Give back the items that a failed flow took; raises the driver's own error for an ``Interruption``."""
        if isinstance(error, asyncio.CancelledError) and isinstance(request, Shared):
            assert self._group_commit is not None
            self._group_commit.leave(request)
            if request.undo is not None:
                undo_log = None  # the undo of the request gives back all that the flow had taken
        if undo_log and not hands_over(error):
            await self._give_back(*undo_log[-1], wait=isinstance(error, Exception))
        if isinstance(error, Interruption):
            raise error.cause from None

    @property
    def sessions(self) -> Sessions:
        """Sessions of the client."""
        return self._backend.sessions

    async def run_shielded(self, flow: Flow[T]) -> T:
        """Run a whole flow in a task of the driver, so that it ends even if the caller is cancelled."""
        if self._closed:  # tasks of the driver may still send commands, so the flow would not be refused later
            flow.close()
            raise BrokerClosed
        return await asyncio.shield(self._start_task(self.run(flow)))

    def share_in(self, batchers: Batchers) -> None:
        """Send the requests that callers share through these batchers."""
        batchers.divides = True
        self._group_commit = AioGroupCommit(self._start_task, partial(self.run, perform=self._perform_here), self._undo)
        batchers.caller, batchers.go_on = caller, self._group_commit.go_on

    def look_after(self, counters: Counters, flush: Callable[[], Flow[None]]) -> None:
        """Write counters at intervals and at close, with the flow that ``flush`` makes."""
        self._counter_flush = AioCounterFlush(counters, flush, self._start_task, self.run)

    def wake(self, registry: WaiterRegistry) -> None:
        """Keep the registry, whose waiters ``close`` wakes, and adapt its change stream to the client."""
        self._registry = registry
        sleep.limit_stream(registry, self._backend.client)

    async def close(self) -> None:
        """Write the counters, refuse further commands (of waiting calls as well), and wait for running commands.

        Idempotent.
        """
        if self._counter_flush is not None and not self._closed:
            self._counter_flush.stop()
            await self._counter_flush.write()
        await self._close_change_stream()
        self._closed = True
        for task in _filter_this_loop(self._side_tasks):
            task.cancel()
        if self._registry is not None:
            self._registry.wake()
        await asyncio.sleep(0)  # callers that were cancelled a moment ago have not run since
        while under_way := _filter_this_loop(self._tasks | self._caller_commands):
            _, late = await asyncio.wait(under_way, timeout=counter_flush.FLUSH_TIMEOUT_SECONDS)
            if late and self._backend.is_cut_off():
                for each in late:
                    each.cancel()
                self._caller_commands.clear()  # PyMongo fails these commands when the client closes
            await asyncio.sleep(0)

    async def _close_change_stream(self) -> None:
        """Close the change stream: its reader would wait for the next answer of the server."""
        cursor = self._registry.close() if self._registry is not None and not self._closed else None
        if cursor is None:
            return
        try:
            with pymongo.timeout(counter_flush.FLUSH_TIMEOUT_SECONDS):
                await self._send(self._backend.kill_command(cursor))
        except Exception as error:
            logger.debug("the change stream could not be closed: %r", error)

    def _start_task(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T]:
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _perform(self, request: OwnRequest, undo_log: UndoLog) -> Awaitable[Any]:
        """Perform a request whose caller may be cancelled."""
        if self._closed:
            self._check_caller()
        if isinstance(request, Command):
            return self._send_in_caller_task(request) if request.here else self._send_in_own_task(request, undo_log)
        if isinstance(request, Begun):
            return self._await_begun(request, undo_log)
        return self._perform_other(request)

    async def _send_in_own_task(self, request: Command[Any], undo_log: UndoLog) -> Any:
        """Send a command from a task of the driver, which undoes the command if the caller was cancelled."""
        self._failover.check_topology()
        if request.session is not None:
            reply = await self._send_in_session(request)
            return reply if request.parse is None else request.parse(reply)
        waiter = asyncio.get_running_loop().create_future()
        self._start_task(self._answer(request, waiter)).add_done_callback(partial(self._release_waiter, waiter))
        try:
            reply = await waiter
        except asyncio.CancelledError:
            if request.undo is not None:
                undo_log.clear()  # the undo of this command gives back all that the flow had taken
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._start_task(self._undo(request, waiter.result()))  # it came in the moment of the cancellation
            raise
        return log_reply(request, reply, undo_log)

    async def _send_in_caller_task(self, request: Command[Any]) -> Any:
        """Send a command from the caller's task; a cancellation drops the connection."""
        self._failover.check_topology()
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._caller_commands.add(under_way)
        try:
            reply = await self._send(request)
        finally:
            self._caller_commands.discard(under_way)
            under_way.cancel()
        return reply if request.parse is None else request.parse(reply)

    def _check_caller(self) -> None:
        if asyncio.current_task() not in self._tasks:  # tasks of the driver finish the work that they have begun
            raise BrokerClosed

    async def _perform_here(self, request: OwnRequest, undo_log: UndoLog) -> Any:
        """Send a command from a task of the driver, which is not cancelled with a caller."""
        if not isinstance(request, Command):
            return await self._perform(request, undo_log)
        self._failover.check_topology()
        return log_reply(request, await self._send(request), undo_log)

    async def _await_begun(self, begun: Begun, undo_log: UndoLog) -> Any:
        return log_reply(begun.command, await asyncio.shield(begun.reply), undo_log)

    async def _perform_other(self, request: Wait | Rest | Beside | Begin) -> Any:
        if isinstance(request, Wait):
            return await asyncio.sleep(request.seconds)
        if isinstance(request, Rest):
            return await sleep.rest_aio(request.event, request.seconds)
        if isinstance(request, Beside):
            return self._start_side_flow(request)
        self._failover.check_topology()
        reply = self._start_task(self._send(request.command))
        # Reads the exception, so that asyncio does not log it as never retrieved if the caller has gone.
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)  # lets the task send the command before the flow goes on, which may take long
        return Begun(request.command, reply)

    def _start_side_flow(self, beside: Beside) -> None:
        """Run a flow in its own task, without the deadlines and settings of the caller's context."""
        task = asyncio.create_task(self.run(beside.flow(), self._perform_here), context=Context())
        task.add_done_callback(lambda _: beside.over())  # a task that was cancelled may not have begun its flow
        for tasks in (self._tasks, self._side_tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _send_in_session(self, command: Command[Any]) -> Any:
        """Send a command of a session, one at a time per session. A cancelled caller waits for its command to end.

        Otherwise the abort that follows could overtake the command, which would then happen outside of the transaction.
        """
        key = id(command.session)
        while (before := self._session_commands.get(key)) is not None:
            await asyncio.wait([before])
        task = self._session_commands[key] = self._start_task(self._send(command))
        task.add_done_callback(lambda _: self._session_commands.pop(key))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            raise

    async def _answer(self, command: Command[Any], waiter: asyncio.Future[Any]) -> None:
        try:
            reply = await self._send(command)
            if waiter.cancelled():
                await self._undo(command, reply)
            else:
                waiter.set_result(reply)
        except Exception as error:
            if waiter.cancelled():
                logger.debug("a command whose caller was cancelled failed: %r", error)
            else:
                waiter.set_exception(error)

    def _release_waiter(self, waiter: asyncio.Future[Any], _: asyncio.Task[None]) -> None:
        """Wake a caller whose task was cancelled at the end of the event loop, maybe before its first step."""
        if self._closed and not waiter.done():
            waiter.set_exception(BrokerClosed())
        waiter.cancel()

    def _send(self, command: Command[Any]) -> Coroutine[Any, Any, Any]:
        if command.resolved and self._backend.is_raw_command(command):
            return self._send_raw(command)
        if (leased := self._backend.lend_for_write(command)) is not None:
            return self._send_numbered(command, leased)
        return self._send_by_driver(command)

    async def _send_raw(self, command: Command[Any]) -> Any:
        leased = self._backend.lend()
        try:
            return raw_commands.parse_reply(command, await self._backend.call_raw(command, leased))
        finally:
            if leased is not None:
                leased.give_back()

    async def _send_by_driver(self, command: Command[Any]) -> Any:
        reply = self._backend.call(command)
        if command.target == "sessions" and not inspect.isawaitable(reply):
            return reply
        if command.method not in ("find", "aggregate"):
            return await reply
        cursor = await reply if inspect.isawaitable(reply) else reply
        return await cursor.to_list(None)

    async def _send_numbered(self, command: Command[Any], leased: Numbered) -> Any:
        with leased:
            while True:
                try:
                    return raw_commands.parse_reply(command, await self._backend.call_raw(command, leased))
                except Exception as error:
                    leased.retry_or_raise(error, lost=isinstance(interruption(error), ReplyLost))

    async def _give_back(self, command: Command[Any] | Shared[Any], reply: Any, *, wait: bool) -> None:
        """Undo a command of a failed flow; a cancelled caller does not wait for it."""
        if command.undo is None:
            return
        undoing = self._start_task(self._undo(command, reply))
        if wait:
            await asyncio.shield(undoing)

    async def _undo(self, command: Command[Any] | Shared[Any], reply: Any) -> None:
        """Give back the items that a command took for a caller that has gone; the fence makes a resend safe."""
        back = command.undo(reply) if command.undo is not None else None
        for sends in range(SENDS if back is not None else 0):
            try:
                await self._send(back)  # type: ignore[arg-type]  # it is one
            except Exception as error:
                if isinstance(interruption(error), ReplyLost) and sends < SENDS - 1:
                    continue
                logger.warning("an item that a failed or cancelled call had taken could not be given back: %r", error)
            return


def _filter_this_loop(futures: Iterable[asyncio.Future[Any]]) -> set[asyncio.Future[Any]]:
    """Return the futures of the running event loop. Another loop may be closed or stopped: its futures never end."""
    loop = asyncio.get_running_loop()
    return {future for future in futures if future.get_loop() is loop}
