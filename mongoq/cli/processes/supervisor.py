"""Supervisor: starts worker processes, restarts them when they die, and stops them in good order."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mongoq.cli.base.output import INTERRUPTED, OPERATION_FAILED
from mongoq.cli.processes.worker_process import HALT, LINK_VARIABLE, STOP
from mongoq.data.process import Health
from mongoq.monitoring.durations import RunDurations
from mongoq.pipeline.pipeline import DRAIN_GRACE_SECONDS

logger = logging.getLogger("mongoq.cli")

KILL_SECONDS = 10.0
"""Seconds beyond the grace of its worker after which a process is killed; the last settlements take some."""
WATCH_SECONDS = 0.5
"""Seconds between two looks at the source files."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.25, 30.0
"""Seconds before a restart, after the first crash in a row and at most."""
MAX_CRASHES = 5
"""Crashes in a row after which a supervisor gives up."""
STABLE_SECONDS = 30.0
"""Seconds at work after which a crash is the first one of a new row."""
SILENT_SECONDS = 10.0
"""Seconds without a report after which a process counts as frozen."""
NOT_STARTED = Health.of(["it has not started"])
IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}
VENV_FILE = "pyvenv.cfg"
"""File at the top of a virtual environment, whatever its folder is called."""


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
                while self._run_once(wakeups):
                    pass
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

    def _run_once(self, wakeups: socket.socket) -> bool:
        """Start what is due, wait, and follow what has happened; returns false when all have ended for good."""
        is_waiting = self._watcher is not None and not self._is_stopping
        if not is_waiting and not any(child.is_running or child.start_at is not None for child in self.children):
            return False
        for child in self.children:
            if child.start_at is not None and child.start_at <= time.monotonic():
                try:
                    child.start()
                except OSError as error:
                    self._restart(child, str(child), f"cannot start: {error}")
                else:
                    logger.info("%s of %d starts", child, len(self.children))
        due = [at for child in self.children for at in (child.start_at, child.kill_at) if at is not None]
        if self._watcher is not None:
            due.append(time.monotonic() + WATCH_SECONDS)
        links = [child.fileno() for child in self.children if child.fileno() >= 0]
        select.select([wakeups.fileno(), *links], [], [], max(0.0, min(due) - time.monotonic()) if due else None)
        with suppress(BlockingIOError):
            while wakeups.recv(512):
                pass
        new, self._signals_seen = self._signals[self._signals_seen :], len(self._signals)
        for number in new:
            if not self._is_stopping:
                logger.info("%s: workers finish what runs, and end; another one ends them at once", number.name)
                self._stop()
            else:
                logger.info("%s: workers end at once", number.name)
                for child in self.children:
                    child.order(HALT, grace=0)
        for child in self.children:
            child.read_reports()
            self._settle_end(child)
            if child.kill_if_overdue():
                logger.error("%s has not ended in time, and is killed; its items come back after their leases", child)
        if self._watcher is not None and not self._is_stopping and (changes := self._watcher.find_changes()):
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            logger.info("%s%s changed: workers start again", changes[0], more)
            for child in self.children:
                if child.is_running:
                    child.order(STOP)
                else:
                    child.start_at = time.monotonic()
        return True

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
            self._restart(child, name, describe_exit(code))

    def _restart(self, child: Child, name: str, what: str) -> None:
        pause = child.count_crash()
        if child.crashes < MAX_CRASHES:
            child.start_at = time.monotonic() + pause
            logger.error("%s %s; it starts again in %.3g s", name, what, pause)
            return
        logger.error("%s %s, for the %dth time in a row; the supervisor gives up", name, what, child.crashes)
        self._fail(OPERATION_FAILED)
        self._stop()

    def _fail(self, code: int) -> None:
        self._exit_code = self._exit_code or code

    def _stop(self) -> None:
        self._is_stopping = True
        for child in self.children:
            child.start_at = None
            child.order(STOP)

    @contextmanager
    def _wakeups(self) -> Iterator[socket.socket]:
        """Hear signals for the length of a block; returns a socket that becomes readable when one comes.

        The end of a process is a signal too (SIGCHLD), so nothing is polled.
        """
        with ExitStack() as stack:
            reader, writer = (stack.enter_context(one) for one in socket.socketpair())
            reader.setblocking(False)
            writer.setblocking(False)
            before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            stack.callback(signal.set_wakeup_fd, before)
            for number in STOP_SIGNALS:
                handler = signal.signal(number, lambda number, _: self._signals.append(signal.Signals(number)))
                stack.callback(signal.signal, number, handler)
            # Python writes no signal without a handler to the wake-up file.
            stack.callback(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, lambda _number, _frame: None))
            yield reader


# --- one process -----------------------------------------------------------------------------------


class Child:
    """One worker process, and its successors.

    Attributes:
        number: its number, from 1.
        start_at: time of the next start (``time.monotonic``); ``None`` if none is due.
        kill_at: time at which the process is killed if it has not ended; ``None`` before it is told to end.
        crashes: crashes in a row.
        lasting: True if the process has reported an error that a restart would meet again.
        stopping: True when the process was told to stop; set by the supervisor, cleared by a start.
    """

    def __init__(
        self,
        number: int,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        durations: RunDurations | None = None,
    ) -> None:
        self.number = number
        self._arguments = arguments
        self._environment = environment
        self._durations = durations
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._received = b""
        self._started = self._reported = 0.0
        self._health = NOT_STARTED
        self._was_ready = False
        self.start_at: float | None = time.monotonic()
        self.kill_at: float | None = None
        self.grace = float(DRAIN_GRACE_SECONDS)
        self.crashes = 0
        self.lasting = self.stopping = False

    def __str__(self) -> str:
        """Name the process, as log lines do."""
        return f"worker {self.number}" + (f" (pid {self._process.pid})" if self._process is not None else "")

    @property
    def is_running(self) -> bool:
        """True from the start of the process until its exit code was read."""
        return self._process is not None

    def start(self) -> None:
        """Start the process.

        Raises:
            OSError: the system has no process left, or no file.
        """
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "mongoq", "worker", *self._arguments]
        environment = {**os.environ, **self._environment, LINK_VARIABLE: str(theirs.fileno())}
        self.start_at = None
        try:
            # Blocked until the link is there: Ctrl-C in an interpreter that starts would print a traceback.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            theirs.close()
        ours.setblocking(False)
        self._link, self._received = ours, b""
        self._started = self._reported = time.monotonic()
        self._health, self._was_ready = NOT_STARTED, False
        self.kill_at, self.lasting, self.stopping = None, False, False

    def fileno(self) -> int:
        """Return the number of the link, for ``select``; -1 if there is none."""
        return -1 if self._link is None else self._link.fileno()

    def order(self, order: bytes, *, grace: float | None = None) -> None:
        """Tell the process to stop, and have it killed unless it has ended some seconds after its grace."""
        if not self.is_running:
            return
        if self._link is not None:
            with suppress(OSError):  # a process that is about to end may not take it any more
                self._link.send(order)
        self.stopping = True
        kill_at = time.monotonic() + (self.grace if grace is None else grace) + KILL_SECONDS
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def kill_if_overdue(self) -> bool:
        """Kill the process if its time to end is over, and return whether; its items come back after their leases."""
        if self._process is None or self.kill_at is None or self.kill_at > time.monotonic():
            return False
        self._process.kill()
        self.kill_at = None
        return True

    def read_reports(self) -> None:
        """Read what the process has reported since the last call."""
        while self._link is not None:
            try:
                received = self._link.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                self._close_link()
                return
            *lines, self._received = (self._received + received).split(b"\n")
            for line in lines:
                report = json.loads(line)
                self._reported = time.monotonic()
                self.lasting = self.lasting or "lasting" in report
                self.grace = report.get("grace", self.grace)
                if "unready" in report:
                    self._health = Health.of(report["unready"], report["notes"])
                    self._was_ready = self._was_ready or self._health.healthy
                if self._durations is not None:
                    self._durations.add(report.get("durations", []))

    def take_exit_code(self) -> int | None:
        """Return the exit code of a process that has ended, once; negative for a signal. ``None`` while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self.read_reports()
            self._close_link()
            self._process, self.kill_at = None, None
            self._health = NOT_STARTED
        return code

    def count_crash(self) -> float:
        """Count a crash, and return the seconds to wait before the next start."""
        if self._was_ready and time.monotonic() > self._started + STABLE_SECONDS:
            self.crashes = 0
        self.crashes += 1
        return float(min(FIRST_BACKOFF_SECONDS * 2 ** (self.crashes - 1), MAX_BACKOFF_SECONDS))

    def health(self) -> Health:
        """Return whether the process consumes just now."""
        silent = time.monotonic() - self._reported
        reasons: Sequence[str] = self._health.reasons
        if self.is_running and silent > SILENT_SECONDS:
            reasons = (f"it has not reported for {silent:.0f} s",)
        name = f"worker {self.number}: "
        return Health.of((name + reason for reason in reasons), (name + note for note in self._health.notes))

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def describe_exit(code: int) -> str:
    """Return how a process has ended, as a sentence goes on after its name."""
    if code >= 0:
        return f"has ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


# --- source files ----------------------------------------------------------------------------------


class FileWatcher:
    """Compares the ``.py`` files of a folder with what they were at the last look.

    It reads the times of the files, since notifications of the system would need a package for each system.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._scan()

    def find_changes(self) -> list[str]:
        """Return the files that were written, added or removed since the last call, as paths below the folder."""
        before, self._files = self._files, self._scan()
        changed = {path for path, state in before.items() ^ self._files.items()}
        return sorted(os.path.relpath(path, self._folder) for path in changed)

    def _scan(self) -> dict[str, tuple[int, int]]:
        """Return time and size of each file; a file that is replaced may be missing for a moment."""
        files: dict[str, tuple[int, int]] = {}
        for folder, below, names in os.walk(self._folder):
            if VENV_FILE in names:
                below.clear()
                continue
            below[:] = [name for name in below if name not in IGNORED_FOLDERS and not name.startswith(".")]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - a Path for each file takes most of the time
                    try:
                        state = os.stat(path)  # noqa: PTH116
                    except OSError:
                        continue
                    files[path] = state.st_mtime_ns, state.st_size
        return files
