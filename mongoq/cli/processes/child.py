"""Child of a supervisor: a worker process, what it reports, and when it has to start or to end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mongoq.cli.processes.supervisor_link import LINK_VARIABLE
from mongoq.model.health import Health
from mongoq.monitoring.durations import RunDurations
from mongoq.pipeline.pipeline import DRAIN_GRACE_SECONDS

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.25, 30.0
"""Seconds before a restart, after the first crash in a row and at most."""
MAX_CRASHES = 5
"""Crashes in a row after which a supervisor gives up."""
STABLE_SECONDS = 30.0
"""Seconds at work after which a crash is the first one of a new row."""
SILENT_SECONDS = 10.0
"""Seconds without a report after which a process counts as frozen."""
NOT_STARTED = "it has not started"


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
        self._unready: Sequence[str] = (NOT_STARTED,)
        self._notes: Sequence[str] = ()
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

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None else self._process.pid

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
        self._unready, self._was_ready = (NOT_STARTED,), False
        self.kill_at, self.lasting, self.stopping = None, False, False

    def fileno(self) -> int:
        """Return the number of the link, for ``select``; -1 if there is none."""
        return -1 if self._link is None else self._link.fileno()

    def order(self, order: bytes) -> None:
        """Send an order; a process that is about to end may not take it any more."""
        if self._link is not None:
            with suppress(OSError):
                self._link.send(order)

    def kill(self) -> None:
        """Kill the process; its items come back when their leases end."""
        if self._process is not None:
            self._process.kill()

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
                self._take(json.loads(line))

    def _take(self, report: dict[str, object]) -> None:
        self._reported = time.monotonic()
        self.lasting = self.lasting or bool(report.get("lasting"))
        grace, unready, notes = report.get("grace"), report.get("unready"), report.get("notes")
        if self._durations is not None and isinstance(durations := report.get("durations"), list):
            self._durations.add(durations)
        if isinstance(grace, float):
            self.grace = grace
        if isinstance(unready, list):
            self._unready = unready
            self._was_ready = self._was_ready or not unready
        if isinstance(notes, list):
            self._notes = notes

    def take_exit_code(self) -> int | None:
        """Return the exit code of a process that has ended, once; negative for a signal. ``None`` while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self.read_reports()
            self._close_link()
            self._process, self.kill_at = None, None
            self._unready, self._notes = (NOT_STARTED,), ()
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
        reasons = self._unready
        if self.is_running and silent > SILENT_SECONDS:
            reasons = (f"it has not reported for {silent:.0f} s",)
        name = f"worker {self.number}: "
        return Health.of((name + reason for reason in reasons), (name + note for note in self._notes))

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
