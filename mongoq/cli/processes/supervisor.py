"""Supervisor: starts worker processes, restarts them when they die, and stops them in good order."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from mongoq.cli.base.errors import INTERRUPTED, OPERATION_FAILED
from mongoq.cli.processes.child import MAX_CRASHES, Child, describe_exit
from mongoq.cli.processes.file_watcher import FileWatcher
from mongoq.cli.processes.supervisor_link import HALT, STOP
from mongoq.model.health import Health
from mongoq.monitoring.durations import RunDurations

logger = logging.getLogger("mongoq.cli")

KILL_SECONDS = 10.0
"""Seconds beyond the grace of its worker after which a process is killed; the last settlements take some."""
WATCH_SECONDS = 0.5
"""Seconds between two looks at the source files."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Keeps worker processes running until a signal stops them.

    It works without threads and without a connection, so it goes on when a worker or the server does not. Its processes
    are started anew, not forked: a forked copy of a client or of a thread would not work.

    Args:
        arguments: arguments of ``mongoq worker`` for each process; no secrets, since every user can read them.
        environment: variables for each process beside those of this one, such as the connection string.
        processes: number of processes.
        drain: a process that ends well is not started again.
        watcher: with it, a change of a file restarts the processes, and one that has ended waits for a change.
        durations: gets the handler calls that the processes report; ``None`` if they report none.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        processes: int = 1,
        drain: bool = False,
        watcher: FileWatcher | None = None,
        durations: RunDurations | None = None,
    ) -> None:
        self.children = [Child(number, arguments, environment, durations) for number in range(1, processes + 1)]
        self._drain = drain
        self._watcher = watcher
        self._signals: list[signal.Signals] = []
        self._signals_seen = 0
        self._is_stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Run the processes until all have ended for good, and return the exit code of the command."""
        with self._wakeups() as wakeups:
            try:
                while self._has_work():
                    self._start_due()
                    self._wait(wakeups)
                    self._obey_signals()
                    for child in self.children:
                        child.read_reports()
                        self._settle_end(child)
                        self._kill_overdue(child)
                    self._restart_on_change()
            except BaseException:
                for child in self.children:  # none stays behind an error of the supervisor itself
                    child.order(STOP)
                raise
        if self._drain and self._signals:
            self._fail(INTERRUPTED)
        logger.info("all workers have ended")
        return self._exit_code

    def health(self) -> Health:
        """Return whether all processes consume just now; from any thread."""
        if self._is_stopping:
            return Health.of(["it stops"])
        parts = [child.health() for child in self.children]
        return Health.of(
            (each for part in parts for each in part.reasons), (each for part in parts for each in part.notes)
        )

    def _has_work(self) -> bool:
        busy = any(child.is_running or child.start_at is not None for child in self.children)
        return busy or (self._watcher is not None and not self._is_stopping)

    # --- starts and ends ---------------------------------------------------------------------------

    def _start_due(self) -> None:
        for child in self.children:
            if child.start_at is not None and child.start_at <= time.monotonic():
                try:
                    child.start()
                except OSError as error:
                    self._restart(child, f"cannot start: {error}")
                else:
                    logger.info("%s of %d starts", child, len(self.children))

    def _settle_end(self, child: Child) -> None:
        """Decide what follows when a process has ended."""
        name, told = str(child), child.stopping
        code = child.take_exit_code()
        if code is None:
            return
        if self._is_stopping:
            # A process that still loads ends by the signal itself.
            ended_well = code in {0, INTERRUPTED} or -code in STOP_SIGNALS
            logger.log(logging.INFO if ended_well else logging.ERROR, "%s %s", name, describe_exit(code))
            if not ended_well:
                self._fail(OPERATION_FAILED)
        elif told:  # for a changed file
            child.start_at = time.monotonic()
        elif self._drain and code == 0:
            logger.info("%s has ended: its queues are empty", name)
        elif self._watcher is not None:
            logger.error("%s %s; it starts again when a file changes", name, describe_exit(code))
        elif child.lasting:
            logger.error("%s %s, and would fail in the same way again; all workers stop", name, describe_exit(code))
            self._fail(code)
            self._stop()
        else:
            self._restart(child, describe_exit(code), name)

    def _restart(self, child: Child, what: str, name: str | None = None) -> None:
        pause = child.count_crash()
        name = name or str(child)
        if child.crashes < MAX_CRASHES:
            child.start_at = time.monotonic() + pause
            logger.error("%s %s; it starts again in %.3g s", name, what, pause)
            return
        logger.error("%s %s, for the %dth time in a row; the supervisor gives up", name, what, child.crashes)
        self._fail(OPERATION_FAILED)
        self._stop()

    def _fail(self, code: int) -> None:
        self._exit_code = self._exit_code or code

    def _restart_on_change(self) -> None:
        if self._watcher is None or self._is_stopping or not (changes := self._watcher.find_changes()):
            return
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        logger.info("%s%s changed: workers start again", changes[0], more)
        for child in self.children:
            if child.is_running:
                self._order(child, STOP)
            else:
                child.start_at = time.monotonic()

    # --- the end -----------------------------------------------------------------------------------

    def _obey_signals(self) -> None:
        """Stop in good order on the first signal, at once on the second."""
        new, self._signals_seen = self._signals[self._signals_seen :], len(self._signals)
        for number in new:
            if not self._is_stopping:
                logger.info("%s: workers finish what runs, and end; another one ends them at once", number.name)
                self._stop()
            else:
                logger.info("%s: workers end at once", number.name)
                for child in self.children:
                    self._order(child, HALT, grace=0)

    def _stop(self) -> None:
        self._is_stopping = True
        for child in self.children:
            child.start_at = None
            self._order(child, STOP)

    def _order(self, child: Child, order: bytes, *, grace: float | None = None) -> None:
        if child.is_running:
            child.stopping = True
            child.order(order)
            kill_at = time.monotonic() + (child.grace if grace is None else grace) + KILL_SECONDS
            child.kill_at = kill_at if child.kill_at is None else min(child.kill_at, kill_at)

    def _kill_overdue(self, child: Child) -> None:
        if child.is_running and child.kill_at is not None and child.kill_at <= time.monotonic():
            logger.error("%s has not ended in time, and is killed; its items come back when their leases end", child)
            child.kill()
            child.kill_at = None

    # --- waits -------------------------------------------------------------------------------------

    @contextmanager
    def _wakeups(self) -> Iterator[int]:
        """Hear signals for the length of a block; the number of a file that becomes readable when one comes.

        The end of a process is a signal too (SIGCHLD), so nothing is polled.
        """
        with ExitStack() as stack:
            reader, writer = os.pipe()
            stack.callback(os.close, reader)
            stack.callback(os.close, writer)
            for number in (reader, writer):
                os.set_blocking(number, False)
            before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            stack.callback(signal.set_wakeup_fd, before)
            for number in STOP_SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, self._note))
            stack.callback(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, _ignore))
            yield reader

    def _note(self, number: int, frame: object) -> None:
        self._signals.append(signal.Signals(number))

    def _wait(self, wakeups: int) -> None:
        """Wait for a signal, a report, or the next time at which something is due."""
        due = [at for child in self.children for at in (child.start_at, child.kill_at) if at is not None]
        if self._watcher is not None:
            due.append(time.monotonic() + WATCH_SECONDS)
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        links = [child.fileno() for child in self.children if child.fileno() >= 0]
        select.select([wakeups, *links], [], [], timeout)
        with suppress(BlockingIOError):
            while os.read(wakeups, 512):
                pass


def _ignore(number: int, frame: object) -> None:
    """Take SIGCHLD, so that Python writes it to the wake-up file: it writes no signal without a handler."""
