"""Driver for threads: runs flows on a PyMongo or mongomock collection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import pymongo

from mongoq.drivers import counter_flush, raw_commands, sleep
from mongoq.drivers.backend import Backend, UndoLog, interruption, log_reply
from mongoq.drivers.counter_flush import CounterFlush
from mongoq.drivers.errors import FailoverNotice
from mongoq.drivers.group_commit_threads import ThreadGroupCommit
from mongoq.drivers.sessions import Numbered, Sessions
from mongoq.drivers.signals import DeferredSignals
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

__all__ = ["ThreadDriver"]

T = TypeVar("T")
logger = logging.getLogger("mongoq.drive")


class ThreadDriver:
    """Performs the requests of a flow in the caller's thread.

    Items that a command took are given back when the flow fails. On the main thread, the only one that a signal
    interrupts, signal handlers wait for the reply: PyMongo, interrupted within its pool, may leave a lock locked.
    """

    asynchronous = shares = False
    caller = staticmethod(threading.get_ident)

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._failover = FailoverNotice(backend, clock)
        self._closed = False
        self._counter_flush: ThreadCounterFlush | None = None
        self._group_commit: ThreadGroupCommit | None = None
        self._registry: WaiterRegistry | None = None

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; driver errors that the flow did not handle are raised unchanged."""
        if self._counter_flush is not None and not self._counter_flush.armed:
            self._counter_flush.arm()
        undo_log: UndoLog = []
        try:
            request = next(flow)
            while True:
                try:
                    reply = self._perform(request, undo_log)
                except Exception as error:
                    request = flow.throw(self._failover.convert_error(error))
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException as error:
            if undo_log and not hands_over(error):
                self._undo(*undo_log[-1])
            if isinstance(error, Interruption):
                raise error.cause from None
            raise
        finally:
            flow.close()
            if self._counter_flush is not None and not self._counter_flush.armed:
                self._counter_flush.rearm()

    def run_within(self, seconds: float, flow: Flow[T]) -> T:
        """Run a flow with a limit for all its commands together, waiting for a server included."""
        with pymongo.timeout(seconds):
            return self.run(flow)

    @property
    def sessions(self) -> Sessions:
        """Sessions of the client."""
        return self._backend.sessions

    def run_shielded(self, flow: Flow[T]) -> T:
        """Run a flow; a thread is never cancelled."""
        return self.run(flow)

    def share_in(self, batchers: Batchers) -> None:
        """Send the requests that callers share through these batchers."""
        self._group_commit = ThreadGroupCommit(batchers, self.run, self._undo)

    def look_after(self, counters: Counters, flush: Callable[[], Flow[None]]) -> None:
        """Write counters at intervals and at close, with the flow that ``flush`` makes."""
        self._counter_flush = ThreadCounterFlush(counters, flush, self.run)

    def wake(self, registry: WaiterRegistry) -> None:
        """Keep the registry, whose waiters ``close`` wakes, and adapt its change stream to the client."""
        self._registry = registry
        sleep.limit_stream(registry, self._backend.client)

    def close(self) -> None:
        """Write the counters, and refuse further commands, of waiting calls as well. Idempotent."""
        if self._counter_flush is not None and not self._closed:
            self._counter_flush.stop()
            self._counter_flush.write()
        self._close_change_stream()
        self._closed = True
        if self._registry is not None:
            self._registry.wake()

    def _close_change_stream(self) -> None:
        """Close the change stream: its reader would wait for the next answer of the server."""
        cursor = self._registry.close() if self._registry is not None and not self._closed else None
        if cursor is None:
            return
        try:
            with pymongo.timeout(counter_flush.FLUSH_TIMEOUT_SECONDS):
                self._send(self._backend.kill_command(cursor))
        except Exception as error:
            logger.debug("the change stream could not be closed: %r", error)

    def _perform(self, request: Request, undo_log: UndoLog) -> Any:
        if self._closed:
            raise BrokerClosed
        if isinstance(request, Shared):
            assert self._group_commit is not None
            return self._group_commit.share(request, undo_log)
        if isinstance(request, Begun):
            return log_reply(request.command, request.reply.result(), undo_log)
        if not isinstance(request, Command):
            return self._perform_other(request)
        self._failover.check_topology()
        deferred = DeferredSignals() if threading.get_ident() == DeferredSignals.thread else None
        try:
            reply = self._send(request)
            if request.undo is not None:  # logged before a deferred signal handler may raise
                undo_log.append((request, reply))
        finally:
            if deferred is not None:
                deferred.end()
        return reply if request.parse is None else request.parse(reply)

    def _perform_other(self, request: Wait | Rest | Beside | Begin) -> Any:
        if isinstance(request, Wait):
            return time.sleep(request.seconds)
        if isinstance(request, Rest):
            return sleep.rest(request.event, request.seconds)
        if isinstance(request, Beside):
            return self._start_side_flow(request.flow)
        return self._begin_command(request.command)

    def _begin_command(self, command: Command[Any]) -> Begun:
        """Send a command from its own thread."""
        reply: Future[Any] = Future()
        work = partial(copy_context().run, self._fulfil, command, reply)
        threading.Thread(target=work, name="mongoq-command", daemon=True).start()
        return Begun(command, reply)

    def _start_side_flow(self, flow: Callable[[], Flow[None]]) -> None:
        """Run a flow in a daemon thread, without the deadlines and settings of the caller's context."""

        def work() -> None:
            try:
                self.run(flow())
            except Exception as error:
                logger.debug("what ran beside has failed: %r", error)

        threading.Thread(target=Context().run, args=(work,), name="mongoq-listener", daemon=True).start()

    def _fulfil(self, command: Command[Any], reply: Future[Any]) -> None:
        try:
            reply.set_result(self._send(command))
        except BaseException as error:
            reply.set_exception(error)

    def _send(self, command: Command[Any]) -> Any:
        if command.resolved and self._backend.is_raw_command(command):
            return self._send_raw(command)
        if (leased := self._backend.lend_for_write(command)) is not None:
            return self._send_numbered(command, leased)
        reply = self._backend.call(command)
        return list(reply) if command.method in ("find", "aggregate") else reply

    def _send_raw(self, command: Command[Any]) -> Any:
        leased = self._backend.lend()
        try:
            return raw_commands.parse_reply(command, self._backend.call_raw(command, leased))
        finally:
            if leased is not None:
                leased.give_back()

    def _send_numbered(self, command: Command[Any], leased: Numbered) -> Any:
        with leased:
            while True:
                try:
                    return raw_commands.parse_reply(command, self._backend.call_raw(command, leased))
                except Exception as error:
                    leased.retry_or_raise(error, lost=isinstance(interruption(error), ReplyLost))

    def _undo(self, command: Command[Any] | Shared[Any], reply: Any) -> None:
        """Give back the items that a command took for a failed call; the fence makes a resend safe."""
        back = command.undo(reply) if command.undo is not None else None
        for sends in range(SENDS if back is not None else 0):
            try:
                self._send(back)  # type: ignore[arg-type]  # it is one
            except Exception as error:
                if isinstance(interruption(error), ReplyLost) and sends < SENDS - 1:
                    continue
                logger.warning("an item that a failed call had taken could not be given back: %r", error)
            return


class ThreadCounterFlush(CounterFlush):
    """Writes counters from a daemon thread that lives for one interval at a time."""

    def __init__(self, counters: Counters, flush: Callable[[], Flow[None]], run: Callable[[Flow[None]], None]) -> None:
        super().__init__(counters, flush)
        self._run = run
        self._timer: threading.Timer | None = None

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self.write)
        self._timer.daemon = True
        self._timer.start()

    def write(self) -> None:
        """Write the counters."""
        with self.writing():
            self._run(self.flush())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            if self._timer.ident is not None and self._timer is not threading.current_thread():
                self._timer.join()
