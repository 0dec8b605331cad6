# Generated from mongoq/drivers/aio/driver.py by scripts/unasync.py. Do not edit.
"""Driver: runs the operations of a broker on its backend.

Its performer lets callers wait for commands; brokers and queues inherit the runner, by which all operations are run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import Context
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import pymongo
from pymongo.errors import NetworkTimeout, PyMongoError

from mongoq.core.command import (
    MAX_SENDS,
    OPERATION,
    Command,
    Interruption,
    Operation,
    ReplyLost,
    UndoLog,
    hands_over,
    is_of_transaction,
)
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.find import close_cursor
from mongoq.drivers.backend import (
    STATEMENT_TYPES,
    Backend,
    build_raw_command,
    classify_error,
    decode,
    find_primary,
    limit_stream,
    parse_raw_reply,
)
from mongoq.drivers.counter_flush import FLUSH_TIMEOUT_SECONDS, CounterFlush
from mongoq.drivers.errors import FailoverNotice
from mongoq.drivers.observer import Observer
from mongoq.drivers.performer_threads import ThreadPerformer
from mongoq.drivers.sessions import Sessions

__all__ = ["Runner", "ThreadDriver"]

C = TypeVar("C")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
logger = logging.getLogger("mongoq.drive")

UNDO_SECONDS = 2.0
"""Seconds to give items back when the deadline of the caller is over: the caller waits for it."""
RESTORE_SECONDS = 15.0
"""Seconds to store a popped item anew, by one command and the driver's own retries: longer than an election takes."""


class ThreadDriver:
    """Runs operations, each with what it has taken: items that a command took are given back when the operation fails.

    ``flush`` is the operation that writes the counters, at intervals and at close.

    Attributes:
        observer: replaces operations; set by an instrumentation.
        sessions: the sessions of the client.
        failover: watches the topology as the client sees it.
    """

    asynchronous = False
    caller = staticmethod(threading.get_ident)
    observer: Observer | None = None

    def __init__(self, backend: Backend, context: BrokerContext, flush: Callable[[], None]) -> None:
        self._backend = backend
        self.sessions = backend.sessions
        self.failover = FailoverNotice(backend, context.clock)
        self._performer = ThreadPerformer(self)
        limit_stream(context.registry, backend.client)
        self._context = context
        self._flush = flush
        self._counter_flush: CounterFlush | None = CounterFlush(
            context.counters, self._write_counters, self._performer.start_later
        )

    def run(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run an operation to its end; driver errors that it did not handle are raised unchanged."""
        if self.observer is not None:
            work = self.observer.operations.get(work, work)
        flusher = self._counter_flush
        if flusher is not None and not flusher.armed:
            flusher.arm()
        outer = OPERATION.get(None)
        operation = Operation(self._performer)
        OPERATION.set(operation)
        try:
            return work(*args, **options)  # a function of the core, such as ``push.push``
        except BaseException as error:
            taken = [entry for entry in operation.undo_log if is_of_transaction(entry[0]) or not hands_over(error)]
            if taken:
                self._performer.undo_all(taken[::-1])
            if isinstance(error, Interruption):
                raise error.cause from None
            raise
        finally:
            # Not reset by a token: what closes a suspended caller may have another context.
            OPERATION.set(outer)  # type: ignore[arg-type]
            if flusher is not None and not flusher.armed:
                flusher.rearm()

    def send(self, command: Command[Any]) -> Any:
        """Send a command, raw or by the driver's method, and return its reply, not parsed."""
        backend, arguments = self._backend, command.arguments
        if command.resolved and command.session is None and not backend.serverless:
            document = build_raw_command(command, backend.targets["collection"].name)
            if document is not None:
                options = backend.undecoded if command.target == "bytes" else backend.options
                reply = backend.targets["database"].command(document, codec_options=options)
                return parse_raw_reply(command, reply)
        if command.method == "bulk_write":
            statements = [STATEMENT_TYPES[kind](**statement) for kind, statement in arguments["requests"]]
            arguments = {**arguments, "requests": statements}
        elif backend.serverless:
            arguments = decode(arguments, backend.options)
        if command.session is not None:
            arguments = {**arguments, "session": command.session}
        # A method of PyMongo's collection, Motor's or mongomock's, such as ``insert_one`` for a push.
        reply = getattr(backend.targets[command.target], command.method)(**arguments)
        if command.method in ("find", "aggregate"):
            return list(reply)
        return reply

    def undo_all(self, taken: UndoLog) -> None:
        """Give back what an operation took, in this order; a fence makes it safe to send that again."""
        for command, reply in taken:
            back = command.undo(reply) if command.undo is not None else None
            if back is None:
                continue
            error = self._try_to_send(back) if back.fenced else None
            if not back.fenced or (isinstance(error, PyMongoError) and error.timeout):
                # The deadline of the caller (``pymongo.timeout``) may be what the call has failed by; this has its own.
                seconds, sends = (UNDO_SECONDS, MAX_SENDS) if back.fenced else (RESTORE_SECONDS, 1)
                error = Context().run(self._try_to_send, back, seconds, sends)
            if error is not None:
                logger.warning("what a failed call had taken could not be given back: %r", error)

    def _try_to_send(
        self, command: Command[Any], seconds: float | None = None, sends: int = MAX_SENDS
    ) -> Exception | None:
        """Send a command, again if its reply is lost; returns the last error, or ``None``."""
        last: Exception | None = None
        with nullcontext() if seconds is None else pymongo.timeout(seconds):
            for _ in range(sends):
                try:
                    self.send(command)
                except Exception as error:
                    last = error
                    if not isinstance(classify_error(error), ReplyLost):
                        break
                else:
                    return None
        return last

    def run_within(self, seconds: float, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run an operation with a limit for all its commands together, waiting for a server included."""
        with pymongo.timeout(seconds):
            try:
                return self.run(work, *args, **options)
            except OverflowError as error:
                # PyMongo 4.20 retries until the limit; the pause before the 1,024th retry is too large for a float.
                raise NetworkTimeout(f"no server answered within {seconds:g} s") from error

    def run_shielded(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a whole operation to its end, even if the caller is cancelled."""
        return self.run(work, *args, **options)

    @property
    def primary(self) -> tuple[str, int | None] | None:
        """Host and port of the primary as the client last saw it; ``None`` without one, and for mongomock."""
        client = self._backend.client
        return None if client is None else find_primary(client)

    @property
    def is_cut_off(self) -> bool:
        """True while the client knows no server that takes writes; its monitor finds that out, without a command."""
        return self._backend.is_cut_off()

    @property
    def last_outage(self) -> tuple[float, str] | None:
        """Monotonic time and type of the latest error by which no server answered."""
        return self.failover.last_outage

    def start_later(self, seconds: float, work: Callable[[], None], done: Callable[[], None]) -> Callable[[], None]:
        """Start work after some seconds, and call ``done`` at its end; returns a function that cancels it."""
        return self._performer.start_later(seconds, work, done)

    def _write_counters(self) -> None:
        """Write the counters; counts that cannot be written stay for the next time."""
        try:
            self.run_within(FLUSH_TIMEOUT_SECONDS, self._flush)
        except Exception as error:
            logger.debug("counters could not be written: %r", error)

    def close(self) -> None:
        """Write the counters, and refuse further commands, of waiting calls as well. Idempotent.

        Without a server that takes writes, the counts since the last write are lost. On asyncio, wait for running
        commands.
        """
        # One limit for both: a supervisor kills a process that takes long to end.
        with pymongo.timeout(FLUSH_TIMEOUT_SECONDS):
            if self._counter_flush is not None and not self._performer.closed:
                self._counter_flush.stop()
                if not self._backend.is_cut_off():
                    self._counter_flush.write()
            if not self._performer.closed:
                # The reader of the change stream would wait for the next answer of the server.
                cursor = self._context.registry.close()
                if cursor is not None and not self._backend.is_cut_off():
                    try:
                        self.run(close_cursor, self._context, cursor)
                    except Exception as error:
                        logger.debug("the change stream could not be closed: %r", error)
        self._performer.close()
        # Only now: the next command of a caller that wakes up is refused, which ends its wait with ``BrokerClosed``.
        self._context.registry.wake()


class Runner(Generic[C]):
    """Base of brokers and queues: runs operations. Workers, pipelines and Spark send all their commands by it."""

    def __init__(self, driver: ThreadDriver, context: C) -> None:
        self._driver = driver
        self._context = context

    def _run(self, work: Callable[Concatenate[C, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Run an operation of the core with this context as its first argument, and return its result."""
        return self._driver.run(work, self._context, *args, **options)

    def _run_given(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run an operation of which the context, if any, is given."""
        return self._driver.run(work, *args, **options)

    def _observed(self, work: F) -> F:
        """Return an operation, or its replacement by the observer: for a part of another operation."""
        observer = self._driver.observer
        return work if observer is None else observer.operations.get(work, work)  # type: ignore[return-value]

    def _run_within(
        self, seconds: float, work: Callable[Concatenate[C, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """Run an operation as ``_run`` does, with a limit for all its commands together, waiting included."""
        return self._driver.run_within(seconds, work, self._context, *args, **options)

    @property
    def _sessions(self) -> Sessions:
        return self._driver.sessions
