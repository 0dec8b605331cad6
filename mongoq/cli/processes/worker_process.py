"""Worker process: runs a worker or a pipeline of the user in this process, and stops it on signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import click
from pymongo.errors import OperationFailure

import mongoq
from mongoq.aio import AsyncBroker
from mongoq.cli.base.errors import INTERRUPTED, OPERATION_FAILED
from mongoq.cli.processes.supervisor_link import SupervisorLink
from mongoq.cli.processes.target import KINDS, TargetUnusable, UserRefused, has_coroutines, load, make
from mongoq.data.process import Health
from mongoq.drivers.errors import is_refused_user
from mongoq.drivers.signals import on_main_thread
from mongoq.errors import ArgumentInvalid, AuthenticationFailed, GraphInvalid, ServerUnavailable, StageStopped
from mongoq.monitoring.durations import RunDurations
from mongoq.pipeline.pipeline import DRAIN_GRACE_SECONDS, HEARTBEAT_SECONDS, Pipeline
from mongoq.sync import Broker
from mongoq.worker.aio.engine import AsyncEngine
from mongoq.worker.aio.worker import AsyncWorker
from mongoq.worker.consumer import LogErrors
from mongoq.worker.signals import SIGNALS, stop_on_signals
from mongoq.worker.threads.engine import Engine

if TYPE_CHECKING:
    from mongoq.monitoring.prometheus import BrokerReading

logger = logging.getLogger("mongoq.cli")

LASTING_ERRORS = (TargetUnusable, UserRefused, ArgumentInvalid, AuthenticationFailed, GraphInvalid, StageStopped)
"""Errors that a restart would meet again: the code, the item or the user's rights have to change first."""
CLOSE_SECONDS = 4.0
"""Seconds for the last commands of an asynchronous broker: a supervisor kills a process that takes long to end."""
POOL_THREADS = "ThreadPoolExecutor"
"""Beginning of the names of threads that Python ends by itself."""
LOOP_SECONDS = 1.0
"""Seconds beyond the limit of a reading after which the event loop counts as blocked."""


class WorkerProcess:
    """Runs the target of ``mongoq worker`` to its end.

    The command hears SIGTERM and SIGINT itself, and not by ``signals=True`` of the worker: a child of a supervisor
    gets the same Ctrl-C or the same SIGTERM of systemd twice, from the sender and by the supervisor.

    Args:
        path: ``module:object``.
        find_server: returns the arguments of ``mongoq.connect``, for a target without a broker of its own.
        drain: end when the queues are empty.
        link: the connection to the supervisor; ``None`` without one.
        durations: counts the calls of handlers; ``None`` to count none.
        log_errors: what logs say of errors of handlers; ``None`` for what the target says.

    Attributes:
        durations: the counts of the calls of handlers.
        has_ended: True when the worker has ended, and the process is about to.
    """

    def __init__(
        self,
        path: str,
        find_server: Callable[[], dict[str, Any]],
        *,
        drain: bool,
        link: SupervisorLink | None = None,
        durations: RunDurations | None = None,
        log_errors: LogErrors | None = None,
    ) -> None:
        self._path = path
        self._find_server = find_server
        self._drain = drain
        self._link = link
        self.durations = durations
        self._log_errors: LogErrors | None = log_errors
        self._made: Any = None
        self._engine: Engine | AsyncEngine | None = None
        self._brokers: list[Broker | AsyncBroker] = []
        self._signals = 0
        self.has_ended = False
        self._loop = asyncio.Runner()

    def run(self) -> None:
        """Load the target, run it until it is stopped or, when draining, until its queues are empty.

        Raises:
            TargetUnusable, TargetFailed: there is nothing to run.
            click.exceptions.Exit: a signal came before the queues were empty.

        And the errors of a worker.
        """
        if self._link is not None:
            self._link.start(self)
        try:
            with _terminated_while_loading():
                self._load()
            # Not before: the module may have installed handlers of its own, which are called as well.
            with stop_on_signals(self.hear):
                try:
                    self._work()
                finally:
                    self.has_ended = True
                    self._ignore_signals()
                    self._close_brokers()
            if self._drain and self.engine is not None and self.engine.interrupted:
                logger.warning("%s has stopped before its queues were empty", self._path)
                raise click.exceptions.Exit(INTERRUPTED)
        except _Terminated:
            self._end_unstarted()
        except (*LASTING_ERRORS, OperationFailure) as error:
            if self._link is not None and (isinstance(error, LASTING_ERRORS) or is_refused_user(error)):
                self._link.report(lasting=True)  # a restart would fail in the same way
            raise
        finally:
            self.has_ended = True
            if self._link is not None:
                self._link.report_durations(self)
            self._ignore_signals()
            self._loop.close()
            _warn_of_threads()

    def _load(self) -> None:
        process = os.getpid()
        try:
            found = load(self._path)
            self._made = found if isinstance(found, KINDS) else make(self._path, found, self._connect, self._loop)
        finally:
            if os.getpid() != process:  # a child that the module has forked
                logger.error(
                    "a process that the module has forked comes back from it, and ends; the worker is its parent's"
                )
                os._exit(OPERATION_FAILED)
        if self.durations is not None:
            self._made.around(self.durations)
        if self._log_errors is not None and isinstance(self._made, Pipeline):
            self._made._whole = replace(self._made._whole, log_errors=self._log_errors)
        elif self._log_errors is not None:
            self._made._log_errors = self._log_errors
        if self._link is not None:
            self._link.report(grace=self.grace)

    # --- the target --------------------------------------------------------------------------------

    def _connect(self, kind: type[Any]) -> Any:
        """Return the broker of a factory or of a pipeline; one that is there already if it is of this kind."""
        for broker in self._brokers:
            if isinstance(broker, kind):
                return broker
        arguments = self._find_server()
        made = mongoq.connect(**arguments) if kind is Broker else self._loop.run(_connect_async(arguments))
        self._brokers.append(made)
        return made

    def _work(self) -> None:
        made = self._made
        if isinstance(made, Pipeline):
            grace, heartbeat = timedelta(seconds=DRAIN_GRACE_SECONDS), timedelta(seconds=HEARTBEAT_SECONDS)
            options = {"grace": grace, "heartbeat": heartbeat, "signals": False}
            if has_coroutines(made):
                self._loop.run(self._run_pipeline_async(made, self._connect(AsyncBroker), options))
                return
            # The run of drain() would be out of reach of a signal.
            run = made._make_run(self._connect(Broker), None, **options)
            self._engine = run._engine
            with run._start(drain=self._drain):
                run.wait()
            return
        if made._broker not in self._brokers:
            self._brokers.append(made._broker)
        running = made.run(drain=self._drain, signals=False)
        if isinstance(made, AsyncWorker):
            self._loop.run(running)

    async def _run_pipeline_async(self, pipeline: Pipeline, broker: AsyncBroker, options: dict[str, Any]) -> None:
        run = await pipeline._make_async_run(broker, None, drain=self._drain, **options)
        self._engine = run._engine
        async with run:
            await run.wait()

    # --- signals -----------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine | AsyncEngine | None:
        """Engine of the worker or of the pipeline; ``None`` before it runs."""
        if self._engine is None and self._made is not None and not isinstance(self._made, Pipeline):
            self._engine = self._made._engine
        return self._engine

    @property
    def grace(self) -> float:
        """Seconds that handlers may go on when the worker is told to stop."""
        own = getattr(self._made, "_grace", None)  # a pipeline has none, nor has a target that still loads
        return float(DRAIN_GRACE_SECONDS) if own is None else float(own.total_seconds())

    def hear(self) -> None:
        """Stop on a signal, in good order on the first one; called in the main thread.

        A second signal stops at once; below a supervisor its word does, since each signal may come twice.
        """
        if self.has_ended:
            return
        engine = self.engine
        if engine is None:  # the server does not answer yet, so nothing is reserved
            self._end_unstarted()
        wanted = self._signals + 1 if self._link is None else self._link.stops_wanted
        while self._signals < min(wanted, 2):
            self._signals += 1
            engine.hear()

    def _end_unstarted(self) -> NoReturn:
        logger.info("%s stops before it has started: a signal came", self._path)
        raise SystemExit(INTERRUPTED if self._drain else 0)

    # --- what others ask, from any thread ----------------------------------------------------------

    def health(self) -> Health:
        """Return whether this process consumes just now."""
        if self.has_ended:
            return Health.of(["the worker has ended"])
        return Health.of(["it has not started"]) if self.engine is None else self.engine.health()

    def read_broker(self) -> BrokerReading:
        """Read the state of all queues, by the broker of the worker.

        Raises:
            ServerUnavailable: the worker has not started yet, or has ended.

        And the errors of the server.
        """
        from mongoq.monitoring.prometheus import READ_SECONDS, read_broker, read_broker_async

        if self.engine is None or self.has_ended:
            raise ServerUnavailable("the worker has not started yet, or has ended")
        broker = self._brokers[-1]
        if isinstance(broker, Broker):
            return read_broker(broker)
        future = asyncio.run_coroutine_threadsafe(read_broker_async(broker), self._loop.get_loop())
        try:
            # A handler that blocks the event loop blocks the reading too.
            return future.result(READ_SECONDS + LOOP_SECONDS)
        finally:
            future.cancel()

    # --- the end -----------------------------------------------------------------------------------

    def _close_brokers(self) -> None:
        """Close the brokers, that of the user's worker too: the process ends, and counters are written at the close."""
        for broker in self._brokers:
            with suppress(Exception):  # the server may be gone; what was settled is settled
                if isinstance(broker, AsyncBroker):
                    self._loop.run(asyncio.wait_for(broker.close(), CLOSE_SECONDS))
                else:
                    broker.close()

    def _ignore_signals(self) -> None:
        """Ignore the second one of two equal signals: it must not kill a process that has ended well."""
        if self._link is not None:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)


class _Terminated(KeyboardInterrupt):
    """SIGTERM came while the module of the user was loading.

    Of this class, since other errors of a module are reported as such.
    """


@contextmanager
def _terminated_while_loading() -> Iterator[None]:
    """Raise ``_Terminated`` on SIGTERM for the length of a block.

    The first process of a container does not end by SIGTERM unless it has a handler for it.
    """
    if not on_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def raise_terminated(number: int, frame: object) -> None:
        if os.getpid() == process:
            raise _Terminated
        # A child that the module has forked, such as one of a pool.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is raise_terminated:  # else the module has a handler of its own
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _warn_of_threads() -> None:
    """Log the threads that keep the process from ending: a supervisor kills it after a while."""
    names = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread() and not thread.name.startswith(POOL_THREADS)
    ]
    if names:
        text = "the worker has ended, and its process waits for threads that the program has started: %s"
        logger.warning(text, ", ".join(sorted(names)))


async def _connect_async(arguments: dict[str, Any]) -> AsyncBroker:
    return await mongoq.connect_async(**arguments)
