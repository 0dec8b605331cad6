"""Lease keeper: a thread in the driver's process that extends a query's leases, since no worker does during a batch.

End of a query's driver-side process: Spark sends SIGTERM, or SIGHUP when its JVM ends. The cleanup runs in a thread
that waits for it, because a signal handler may interrupt any code.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from bson import ObjectId

from mongoq.protocol.coordination import streams
from mongoq.protocol.coordination.streams import ForeignLease, StreamRun, TakenOver
from mongoq.protocol.settle.by_token import cut_ids, extend_held
from mongoq.sync import Broker

__all__ = ["LeaseKeeper", "at_the_end"]

END_SECONDS = 2.0
"""Seconds after which the process ends in any case."""
TERMINATED = 128 + signal.SIGTERM


def at_the_end(last: Callable[[], None]) -> None:
    """Call ``last`` when a signal ends the process, within two seconds; no effect if another handler is installed."""
    # signal.signal works in the main thread only; another handler is the application's own and stays.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    told: SimpleQueue[int] = SimpleQueue()  # a SimpleQueue, because its put is reentrant: a signal may interrupt it

    def wait() -> None:
        told.get()
        limit = threading.Timer(END_SECONDS, os._exit, (TERMINATED,))
        limit.daemon = True
        limit.start()
        try:
            last()
        finally:
            os._exit(TERMINATED)

    def handle(number: int, _frame: Any) -> None:
        told.put(number)

    threading.Thread(target=wait, name="mongoq-ending", daemon=True).start()
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGHUP, handle)


logger = logging.getLogger("mongoq.spark")

TURNS = 4
"""Extensions of the run's lease within its length."""
STOP_SECONDS = 2.0
"""Seconds that giving back the run may take when it ends."""


class LeaseKeeper:
    """Extends the lease of a run, and the leases of its items, until the run ends or is lost.

    A daemon thread, which ends with its process. After a network error it tries again at the next turn; there are
    several turns within a lease.

    Attributes:
        lost: lease of the process that has the run instead; ``None`` until the run is lost.
    """

    def __init__(self, broker: Broker, run: StreamRun, lease: timedelta) -> None:
        self.lost: ForeignLease | None = None
        self._broker = broker
        self._run = run
        self._lease = lease
        self._pause = min(run.length, lease).total_seconds() / TURNS
        self._token: ObjectId | None = None
        self._due = 0.0
        self._extended = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mongoq-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True after ``end`` was called."""
        return self._ended.is_set()

    def end(self) -> None:
        """End the thread, and give the run back at once for other processes, if this takes less than two seconds.

        Several threads may call it; each call returns when this is done.
        """
        self._ended.set()
        self._thread.join(STOP_SECONDS)

    def _work(self) -> None:
        while not self._ended.wait(self._pause):
            try:
                self._turn()
            except TakenOver as taken:
                self.lost = taken.held
                return
            except Exception as error:
                logger.warning("leases of consumer %r could not be extended just now: %r", self._run.consumer, error)
        try:
            self._broker._run(streams.give_back, self._run)
        except Exception as error:
            logger.debug("the run of consumer %r was not given back: %r", self._run.consumer, error)

    def _turn(self) -> None:
        self._keep_run()
        claim = self._run.claim
        if claim is None or claim.ids is None:
            return
        # At a third of the lease: after one failed extension there is time for another.
        third = self._lease.total_seconds() / 3
        if claim.token != self._token:  # claimed since the last turn
            self._token, self._due = claim.token, time.monotonic() + third
        if time.monotonic() < self._due:
            return
        for chunk in cut_ids(claim.ids):
            self._broker._run(extend_held, claim.token, chunk, self._lease)
            # Between two commands: the process may have only two seconds left.
            if self._ended.is_set():
                return
            # Extending many items takes time: the lease of the run itself must not end meanwhile.
            if time.monotonic() - self._extended > self._pause:
                self._keep_run()
        self._due = time.monotonic() + third

    def _keep_run(self) -> None:
        self._broker._run(streams.extend_lease, self._run)
        self._extended = time.monotonic()
