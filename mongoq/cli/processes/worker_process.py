"""Worker process: runs a worker or a pipeline of the user, and stops it on signals and orders of its supervisor."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import click

import mongoq
from mongoq.aio import AsyncBroker
from mongoq.cli.base.output import INTERRUPTED, OPERATION_FAILED
from mongoq.cli.processes.target import KINDS, TargetFailed, TargetUnusable, has_coroutines, load, make
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

LINK_VARIABLE = "MONGOQ_SUPERVISOR"
"""Environment variable by which a child learns the number of its end of the link."""
STOP, HALT = b"s", b"h"
"""Orders: stop in good order; stop at once."""
POLL_SECONDS = 0.2
"""Seconds between two looks at the state of the worker."""
REPORT_SECONDS = 2.0
"""Seconds between two reports of the same state: they show that the process is not frozen."""
END_SECONDS = 10.0
"""Seconds beyond the grace after which a process without supervisor ends by force."""
LASTING_ERRORS = (TargetUnusable, ArgumentInvalid, AuthenticationFailed, GraphInvalid, StageStopped)
"""Errors that a restart would meet again: the code, the item or the user's rights have to change first."""
CLOSE_SECONDS = 4.0
"""Seconds for the last commands of an asynchronous broker: a supervisor kills a process that takes long to end."""
POOL_THREADS = "ThreadPoolExecutor"
"""Beginning of the names of threads that Python ends by itself."""
LOOP_SECONDS = 1.0
"""Seconds beyond the limit of a reading after which the event loop counts as blocked."""


class SupervisorLink:
    """Obeys the supervisor, and sends it the state of the worker; works in a thread of its own.

    When the supervisor dies, the system closes its end, and the worker stops in good order: nothing would restart or
    stop it any more. That works on every system, where a signal at the death of the parent exists on Linux alone.

    Attributes:
        stops_wanted: how many stops the supervisor wants: 1 to stop in good order, 2 to stop at once.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # The number came by inheritance; a process that a handler starts must not keep the link open.
        os.set_inheritable(link.fileno(), False)
        self._lock = threading.Lock()
        self._durations_lock = threading.Lock()
        self.stops_wanted = 1

    @classmethod
    def from_environment(cls) -> SupervisorLink | None:
        """Return the link of this process, and remove its mark from the environment; ``None`` without supervisor."""
        number = os.environ.pop(LINK_VARIABLE, None)
        if number is None:
            return None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the start
        return cls(socket.socket(fileno=int(number)))

    def start(self, process: WorkerProcess) -> None:
        """Begin to obey and to report."""
        threading.Thread(target=self._serve, args=(process,), name="mongoq-supervisor", daemon=True).start()

    def report_durations(self, process: WorkerProcess) -> None:
        """Report the handler calls since the last report, if there are any."""
        with self._durations_lock:  # a report that was taken by one thread goes before the end of the other
            if process.durations is not None and (taken := process.durations.take()):
                self.report(durations=taken)

    def report(self, **fields: Any) -> None:
        """Send fields of the state: the ``grace`` of the handlers, reasons why it is ``unready``, or others."""
        try:
            with self._lock:
                self._link.sendall(json.dumps(fields).encode() + b"\n")
        except OSError:  # the supervisor is gone; the thread notices it as well
            pass

    def _serve(self, process: WorkerProcess) -> None:
        reported, reported_at = None, 0.0
        while not process.has_ended:
            if select.select([self._link], [], [], POLL_SECONDS)[0]:
                try:
                    orders = self._link.recv(16)
                except OSError:
                    orders = b""
                if not orders:
                    break
                self.stops_wanted = 2 if HALT in orders else self.stops_wanted
                self._wake_main_thread(process)
            health, now = process.health(), time.monotonic()
            if health != reported or now > reported_at + REPORT_SECONDS:
                self.report(unready=health.reasons, notes=health.notes)
                self.report_durations(process)
                reported, reported_at = health, now
        if process.has_ended:
            return
        logger.warning("the supervisor is gone: this worker finishes what runs, and ends")
        self._wake_main_thread(process)
        time.sleep(process.grace + END_SECONDS)
        os._exit(1)

    def _wake_main_thread(self, process: WorkerProcess) -> None:
        """Send SIGTERM to the main thread: the handlers there stop the worker; while it loads, the signal ends it."""
        main = threading.main_thread().ident
        if not process.has_ended and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)


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
                    # The brokers of the user's worker too: the process ends, and counters are written at the close.
                    for broker in self._brokers:
                        with suppress(Exception):  # the server may be gone; what was settled is settled
                            if isinstance(broker, AsyncBroker):
                                self._loop.run(asyncio.wait_for(broker.close(), CLOSE_SECONDS))
                            else:
                                broker.close()
            if self._drain and self.engine is not None and self.engine.interrupted:
                logger.warning("%s has stopped before its queues were empty", self._path)
                raise click.exceptions.Exit(INTERRUPTED)
        except _Terminated:
            self._end_unstarted()
        except Exception as error:
            is_refused = error.lasting if isinstance(error, TargetFailed) else is_refused_user(error)
            if self._link is not None and (is_refused or isinstance(error, LASTING_ERRORS)):
                self._link.report(lasting=True)  # a restart would fail in the same way
            raise
        finally:
            self.has_ended = True
            if self._link is not None:
                self._link.report_durations(self)
            self._ignore_signals()
            self._loop.close()
            names = sorted(
                thread.name
                for thread in threading.enumerate()
                if not thread.daemon
                and thread is not threading.main_thread()
                and not thread.name.startswith(POOL_THREADS)
            )
            if names:  # a supervisor kills it after a while
                text = "the worker has ended, and its process waits for threads that the program has started: %s"
                logger.warning(text, ", ".join(names))

    def _load(self) -> None:
        process = os.getpid()
        try:
            found = load(self._path)
            self._made = found if isinstance(found, KINDS) else make(self._path, found, self._connect, self._loop)
        finally:
            if os.getpid() != process:
                text = "a process that the module has forked comes back from it, and ends; the worker is its parent's"
                logger.error(text)
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

        async def connect_async() -> AsyncBroker:
            return await mongoq.connect_async(**arguments)

        made = mongoq.connect(**arguments) if kind is Broker else self._loop.run(connect_async())
        self._brokers.append(made)
        return made

    def _work(self) -> None:
        made = self._made
        if isinstance(made, Pipeline):
            grace, heartbeat = timedelta(seconds=DRAIN_GRACE_SECONDS), timedelta(seconds=HEARTBEAT_SECONDS)
            options = {"grace": grace, "heartbeat": heartbeat, "signals": False}
            if has_coroutines(made):
                broker = self._connect(AsyncBroker)

                async def run_pipeline() -> None:
                    run = await made._make_async_run(broker, None, drain=self._drain, **options)
                    self._engine = run._engine
                    async with run:
                        await run.wait()

                self._loop.run(run_pipeline())
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
