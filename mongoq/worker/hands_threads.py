"""What runs the loops and handlers of a worker: threads."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mongoq.drive.deferral import on_main_thread
from mongoq.drive.wakeup import rest
from mongoq.protocol.bells import Bell
from mongoq.worker.consumer import Consumer
from mongoq.worker.run import Run

__all__ = ["ThreadHands"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ThreadHands:
    """Starts threads, and calls handlers. They are daemons: a handler that hangs does not keep the process alive."""

    asynchronous = False

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None], name: str) -> None:
        """Run a loop in a thread of its own; an error that ends it ends the worker."""
        thread = threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    def ring(self, bell: Bell) -> None:
        """Ring a bell from any thread."""
        bell.ring()

    @contextmanager
    def signals(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` on SIGTERM and SIGINT for the length of a block, where this is the main thread."""
        if not on_main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: stop()) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def rest(self, bell: Bell, seconds: float) -> None:
        """Wait until the bell rings, or for so many seconds."""
        rest(bell, seconds)
        bell.rung = False

    def shielded(self, work: Callable[[], None]) -> None:
        """Do something to its end."""
        work()

    def call(self, consumer: Consumer, run: Run, payload: Any) -> Any:
        """Call the handler, and return what it returns."""
        run.where = threading.get_ident()
        return consumer.handler(payload) if run.job is None else consumer.handler(payload, run.job)

    def close(self, seconds: float) -> None:
        """Wait so long for all threads to end, and leave behind what does not: nobody can end a thread."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
