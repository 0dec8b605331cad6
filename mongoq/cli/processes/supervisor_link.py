"""Link of a worker process to its supervisor: orders come by it, and reports go by it."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mongoq.cli.processes.worker_process import WorkerProcess

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
                    self._end_without_supervisor(process)
                    return
                self.stops_wanted = 2 if HALT in orders else self.stops_wanted
                _wake_main_thread(process)
            health, now = process.health(), time.monotonic()
            if health != reported or now > reported_at + REPORT_SECONDS:
                self.report(unready=health.reasons, notes=health.notes)
                self.report_durations(process)
                reported, reported_at = health, now

    def _end_without_supervisor(self, process: WorkerProcess) -> None:
        if process.has_ended:
            return
        logger.warning("the supervisor is gone: this worker finishes what runs, and ends")
        _wake_main_thread(process)
        deadline = time.monotonic() + process.grace + END_SECONDS
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        os._exit(1)


def _wake_main_thread(process: WorkerProcess) -> None:
    """Send SIGTERM to the main thread: the handlers there stop the worker; while it loads, the signal ends it."""
    main = threading.main_thread().ident
    if not process.has_ended and main is not None:
        signal.pthread_kill(main, signal.SIGTERM)
