"""Executor of a threaded worker: runs loops and handlers in daemon threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from mongoq.core.command import WakeEvent
from mongoq.drivers.sleep import rest
from mongoq.worker.consumer import Consumer
from mongoq.worker.handler_call import HandlerCall
from mongoq.worker.run_context import RunContext
from mongoq.worker.signals import stop_on_signals


class ThreadExecutor:
    """Starts loops as daemon threads, and calls handlers. A handler that hangs does not keep the process alive.

    Attributes:
        context: context in which the worker was started; each call runs in a copy.
        loop: ``None``: there is no event loop.
    """

    asynchronous = False
    loop = None

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._threads: list[threading.Thread] = []
        self._runners: set[threading.Thread] = set()
        self.context = RunContext.current()

    def start(self, work: Callable[[], None], name: str, *, calls_handlers: bool = False) -> None:
        """Run a loop in its own thread; its error ends the worker. ``abandon`` leaves loops that ``calls_handlers``."""
        thread = threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        if calls_handlers:
            self._runners.add(thread)

    def abandon(self) -> None:
        """Stop waiting for the threads that call handlers: Python cannot end a thread."""
        self._threads = [thread for thread in self._threads if thread not in self._runners]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._on_failure(error)

    def set_event(self, event: WakeEvent) -> None:
        event.set()

    def signals(self, stop: Callable[[], None], *, wanted: bool) -> AbstractContextManager[None]:
        return stop_on_signals(stop, signals=wanted)

    def cancel(self, run: HandlerCall) -> None:
        """Do nothing: a thread cannot be cancelled."""

    def rest(self, event: WakeEvent, seconds: float) -> None:
        """Wait until the event is set, at most ``seconds``, and clear it."""
        rest(event, seconds)
        event.was_set = False

    def shield(self, work: Callable[[], None]) -> None:
        work()

    def call(self, consumer: Consumer, run: HandlerCall, payload: Any) -> Any:
        run.where = threading.get_ident()
        arguments = (payload,) if run.job is None else (payload, run.job)
        return run.context.call(consumer.handler, *arguments)

    def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` for all threads to end; threads that still run are left behind."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
