"""Signals that stop workers: handled while a worker runs, for all workers of the main thread.

Not by ``anyio.open_signal_receiver``: that one takes a signal from the handlers that were installed before, and from
other workers of the same event loop, and does not restore them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mongoq.drivers.signals import on_main_thread
from mongoq.errors import ArgumentInvalid

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Listener:
    """Signal handler that also calls the handler installed before it.

    Attributes:
        before: earlier handler: a function, another listener, or a number of the ``signal`` module.
        ended: True after the end of its block; the listener does nothing then.
        raised: first error of an earlier handler; the block raises it at its end.
    """

    def __init__(self, stop: Callable[[], object], before: Any) -> None:
        self._stop = stop
        self.before = before
        self.ended = False
        self.raised: BaseException | None = None
        self._process = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        stops, below = self._stops(), self.before
        while isinstance(below, _Listener):  # the handler that was installed before all listeners
            below = below.before
        if self._process != os.getpid():
            # A child that a handler has forked. Ctrl-C reaches it as well, while the handler may go on; SIGTERM is
            # meant for the child, as by ``Process.terminate()``.
            if number == signal.SIGINT:
                return
            stops = []
        if not stops:  # or the program has installed this listener again after the end of its block
            signal.signal(number, below)
            signal.raise_signal(number)
            return
        for stop in stops:
            stop()
        if callable(below) and not _is_default(below):
            try:
                below(number, frame)
            except BaseException as error:  # such as SystemExit: the worker ends in good order first
                self.raised = self.raised or error

    def _stops(self) -> list[Callable[[], object]]:
        """Return the functions to call, each once, even if one listens in nested blocks."""
        earlier = self.before._stops() if isinstance(self.before, _Listener) else []
        return earlier if self.ended or self._stop in earlier else [self._stop, *earlier]


def _is_default(handler: Any) -> bool:
    """Return whether a handler is the Ctrl-C handler of a plain program, of ``asyncio.run``, or of PySpark.

    These interrupt the main thread, or cancel all jobs of the session: the worker could not end in good order.
    """
    if handler is signal.default_int_handler or str(getattr(handler, "__module__", "")).startswith("pyspark."):
        return True
    function = handler.func if isinstance(handler, functools.partial) else None
    return isinstance(getattr(function, "__self__", None), asyncio.Runner)


def check_signals(signals: Any) -> None:
    """Raise ``ArgumentInvalid`` unless the option ``signals`` is a bool."""
    if not isinstance(signals, bool):
        raise ArgumentInvalid("signals", f"a bool, not {type(signals).__name__}")


@contextmanager
def stop_on_signals(stop: Callable[[], object], *, signals: bool = True) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT for the length of a block; only on the main thread.

    Handlers installed before are called as well, callbacks of the event loop (``loop.add_signal_handler``) included.
    An error of an earlier handler is raised at the end of the block. A handler that was not installed from Python
    (``signal.getsignal`` returns ``None``) can be neither called nor restored, and stays.
    """
    if not (signals and on_main_thread()):
        yield
        return
    installed = {number: signal.getsignal(number) for number in SIGNALS}
    listeners = {number: _Listener(stop, before) for number, before in installed.items() if before is not None}
    for number, listener in listeners.items():
        signal.signal(number, listener)
    try:
        yield
    finally:
        for number, listener in listeners.items():
            listener.ended = True
            present = before = signal.getsignal(number)
            while isinstance(before, _Listener) and before.ended:
                before = before.before
            if before is not present and before is not None:  # of listeners that have ended
                signal.signal(number, before)
    for listener in listeners.values():
        if listener.raised is not None:
            raise listener.raised
