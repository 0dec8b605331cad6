"""Signals that end workers: heard for as long as one runs, and by all that run in the main thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mongoq.drive.deferral import on_main_thread

__all__ = ["listening"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Listener:
    """A handler of a signal, and what stood there before, which is called too if it is another worker's."""

    def __init__(self, stop: Callable[[], object], before: Any) -> None:
        self._stop = stop
        self.before = before
        self.over = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for stop in self._stops():
            stop()

    def _stops(self) -> list[Callable[[], object]]:
        """Return what is to be called, each once, though it may listen in a block within its own."""
        earlier = self.before._stops() if isinstance(self.before, _Listener) else []
        return earlier if self.over or self._stop in earlier else [self._stop, *earlier]


@contextmanager
def listening(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT for the length of a block, where this is the main thread.

    What the event loop was told of them (``loop.add_signal_handler``) is called as well.
    """
    if not on_main_thread():
        yield
        return
    listeners = {number: _Listener(stop, signal.getsignal(number)) for number in SIGNALS}
    for number, listener in listeners.items():
        signal.signal(number, listener)
    try:
        yield
    finally:
        for number, listener in listeners.items():
            listener.over = True
            _put_back(number)


def _put_back(number: int) -> None:
    """Put back what stood there before those who listen no more."""
    present = before = signal.getsignal(number)
    while isinstance(before, _Listener) and before.over:
        before = before.before
    if before is not present and before is not None:
        signal.signal(number, before)
