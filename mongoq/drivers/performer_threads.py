"""Performer of threads: sends the commands of an operation from its caller's thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, TypeVar

from mongoq.core.command import Command, Shared, UndoLog, WakeEvent, note_taken
from mongoq.drivers import sleep
from mongoq.drivers.group_commit_threads import ThreadGroupCommit
from mongoq.drivers.signals import DeferredSignals
from mongoq.errors import BrokerClosed

if TYPE_CHECKING:
    from mongoq.drivers.threads.driver import ThreadDriver

T = TypeVar("T")
logger = logging.getLogger("mongoq.drive")


class ThreadPerformer:
    """Performs the commands of operations in the threads of their callers.

    On the main thread, the only one that a signal interrupts, signal handlers wait for the reply: PyMongo, interrupted
    within its pool, may leave a lock locked.

    Attributes:
        group_commit: lets callers share commands, where ``BrokerContext.group_commit`` is set.
        closed: True after ``close``: callers may send no further command.
    """

    def __init__(self, driver: ThreadDriver) -> None:
        self._driver = driver
        self.group_commit = ThreadGroupCommit(self, driver.run)
        self.closed = False

    def perform(self, command: Command[T], undo_log: UndoLog) -> T:
        """Send a command, and return its parsed reply."""
        if self.closed:
            raise BrokerClosed
        failover = self._driver.failover
        if time.monotonic() >= failover.next_check:
            failover.check_topology()
        deferred = DeferredSignals() if threading.get_ident() == DeferredSignals.thread else None
        try:
            try:
                reply = self._driver.send(command)
                if command.undo is not None:  # logged before a deferred signal handler may raise
                    note_taken(undo_log, command, reply)
            finally:
                if deferred is not None:
                    deferred.end()
            return reply if command.parse is None else command.parse(reply)
        except Exception as error:
            self._driver.failover.reraise(error)

    def share(self, shared: Shared[T], undo_log: UndoLog) -> T:
        """Let a caller share a command."""
        try:
            answer: T = self.group_commit.share(shared)
        except Exception as error:
            self._driver.failover.reraise(error)
        if shared.undo is not None:
            note_taken(undo_log, shared, answer)
        return answer

    def check_open(self) -> None:
        """Refuse a caller after ``close``."""
        if self.closed:
            raise BrokerClosed

    def sleep(self, seconds: float) -> None:
        """Pause a caller."""
        self.check_open()
        time.sleep(seconds)

    def rest(self, event: WakeEvent, seconds: float) -> None:
        """Block a caller until the event is set."""
        self.check_open()
        sleep.rest(event, seconds)

    def run_beside(self, work: Callable[[], None], over: Callable[[], object], context: Context | None) -> None:
        """Run an operation in a daemon thread.

        ``over`` is not called: a thread that has started runs the operation, which tells its end by itself.
        """
        self.check_open()

        def run() -> None:
            try:
                self._driver.run(work)
            except Exception as error:
                logger.debug("what ran beside has failed: %r", error)

        threading.Thread(target=(context or Context()).run, args=(run,), name="mongoq-beside", daemon=True).start()

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

    def undo_all(self, taken: UndoLog) -> None:
        """Undo commands, one after the other."""
        self._driver.undo_all(taken)

    def close(self) -> None:
        """Refuse further commands."""
        self.closed = True
