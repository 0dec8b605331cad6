"""End of a query's driver-side process: Spark sends SIGTERM, or SIGHUP when its JVM ends.

The cleanup runs in a thread that waits for it, because a signal handler may interrupt any code.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["at_the_end"]

PATIENCE = 2.0
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
        limit = threading.Timer(PATIENCE, os._exit, (TERMINATED,))
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
