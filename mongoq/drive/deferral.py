"""Signals put off: a handler that would raise in the middle of a command runs when its reply is there."""

from __future__ import annotations

# the C functions behind ``signal``: the wrappers make enums of all numbers, and cost more than the rest of this file
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Deferral", "on_main_thread"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
Handler = Callable[[int, FrameType | None], Any]


def on_main_thread() -> bool:
    """Say whether this is the thread in which Python runs the handlers of signals."""
    return threading.current_thread() is threading.main_thread()


class Deferral:
    """A block in which handlers of signals only take note; at its end those that were meant run, and may raise.

    For the main thread. A signal that comes a second time goes through at once, since the command may hang.
    """

    __slots__ = ("_handlers", "_noted")

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._noted: dict[int, FrameType | None] = {}

    def __enter__(self) -> None:
        """Put off the signals that have a handler in Python."""
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, self._note)

    def __exit__(self, *error: object) -> None:
        """Give the signals back to their handlers, and run those that were put off."""
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)
        self._run()

    def _run(self) -> None:
        """Run what was put off, all of it, though one may raise."""
        while self._noted:
            number = next(iter(self._noted))
            frame = self._noted.pop(number)
            try:
                self._handlers[number](number, frame)
            finally:
                self._run()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._noted:
            self._handlers[number](number, frame)
        self._noted[number] = frame
