"""Performer of threads: sends the commands of a flow from its caller's thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from mongoq.drivers import sleep
from mongoq.drivers.backend import OwnRequest, UndoLog, log_reply
from mongoq.drivers.errors import FailoverNotice
from mongoq.drivers.signals import DeferredSignals
from mongoq.errors import BrokerClosed
from mongoq.protocol.flow import Begin, Begun, Beside, Command, Flow, Rest, Shared, Wait

if TYPE_CHECKING:
    from mongoq.drivers.threads.driver import ThreadSender

logger = logging.getLogger("mongoq.drive")


class ThreadPerformer:
    """Performs the requests of flows in the threads of their callers.

    On the main thread, the only one that a signal interrupts, signal handlers wait for the reply: PyMongo, interrupted
    within its pool, may leave a lock locked.

    Attributes:
        closed: True after ``close``: callers may send no further command.
    """

    def __init__(self, sender: ThreadSender, failover: FailoverNotice, run: Callable[[Flow[None]], None]) -> None:
        self._sender = sender
        self._failover = failover
        self._run = run
        self.closed = False

    def perform(self, request: OwnRequest, undo_log: UndoLog) -> Any:
        """Perform a request."""
        if self.closed:
            raise BrokerClosed
        if isinstance(request, Command):
            return self._send(request, undo_log)
        if isinstance(request, Begin):
            return self._begin_command(request.command)
        if isinstance(request, Begun):
            return log_reply(request.command, request.reply.result(), undo_log)
        if isinstance(request, Wait):
            return time.sleep(request.seconds)
        if isinstance(request, Rest):
            return sleep.rest(request.event, request.seconds)
        return self._start_side_flow(request)

    def check_open(self) -> None:
        """Refuse a caller after ``close``."""
        if self.closed:
            raise BrokerClosed

    def _send(self, command: Command[Any], undo_log: UndoLog) -> Any:
        self._failover.check_topology()
        deferred = DeferredSignals() if threading.get_ident() == DeferredSignals.thread else None
        try:
            reply = self._sender.send(command)
            if command.undo is not None:  # logged before a deferred signal handler may raise
                undo_log[:] = [(command, reply)]
        finally:
            if deferred is not None:
                deferred.end()
        return reply if command.parse is None else command.parse(reply)

    def _begin_command(self, command: Command[Any]) -> Begun:
        """Send a command from its own thread."""
        reply: Future[Any] = Future()

        def work() -> None:
            try:
                reply.set_result(self._sender.send(command))
            except BaseException as error:
                reply.set_exception(error)

        threading.Thread(target=copy_context().run, args=(work,), name="mongoq-command", daemon=True).start()
        return Begun(command, reply)

    def _start_side_flow(self, beside: Beside) -> None:
        """Run a flow in a daemon thread, without the deadlines and settings of the caller's context."""

        def work() -> None:
            try:
                self._run(beside.flow())
            except Exception as error:
                logger.debug("what ran beside has failed: %r", error)

        threading.Thread(target=Context().run, args=(work,), name="mongoq-listener", daemon=True).start()

    def start_later(self, seconds: float, work: Callable[[], None], on_done: Callable[[], None]) -> Callable[[], None]:
        """Start work in a daemon thread after some seconds, then call ``on_done``; return what cancels it."""

        def run() -> None:
            try:
                work()
            finally:
                on_done()

        timer = threading.Timer(seconds, run)
        timer.daemon = True
        timer.start()

        def cancel() -> None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()  # waits for work that it has begun

        return cancel

    def undo(self, command: Command[Any] | Shared[Any], reply: Any) -> None:
        """Undo a command."""
        self._sender.undo(command, reply)

    def close(self) -> None:
        """Refuse further commands."""
        self.closed = True
