"""Signals put off: a handler that would raise in the middle of a command runs when its reply is there."""

from __future__ import annotations

# the C functions behind ``signal``: the wrappers make enums of all numbers, and cost more than the rest of this file
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["deferred_signals", "on_main_thread"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
Handler = Callable[[int, FrameType | None], Any]


def on_main_thread() -> bool:
    """Say whether this is the thread in which Python runs the handlers of signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let handlers of signals only take note within the block; at its end those that were meant run, and may raise.

    For the main thread. A signal that comes a second time goes through at once, since the command may hang.
    """
    handlers: dict[int, Handler] = {}
    noted: dict[int, FrameType | None] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if number in noted:
            handlers[number](number, frame)
        noted[number] = frame

    try:
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                _signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            _signal.signal(number, handler)
        for number, frame in noted.items():
            handlers[number](number, frame)
