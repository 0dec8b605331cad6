"""Deferred signals: a handler that could raise in the middle of a command runs after the reply."""

from __future__ import annotations

# the C functions behind ``signal``: the wrappers make enums of all numbers, and cost more than the rest of this file
import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_SIGNAL_NUMBERS = tuple(int(getattr(signal, name)) for name in _SIGNAL_NAMES if hasattr(signal, name))
Handler = Callable[[int, FrameType | None], Any]


_last_handlers: tuple[Any, ...] = ()
_python_handlers: tuple[tuple[int, Handler], ...] = ()
"""The handlers in Python, with their numbers, among those that were ``_last_handlers`` last."""


class DeferredSignals:
    """Defers signal handlers from its creation to ``end``, which runs the deferred handlers; they may raise.

    For the main thread, ``thread``. A signal that comes a second time goes through at once, since the command may hang.
    """

    __slots__ = ("_handlers", "_pending")

    thread = threading.main_thread().ident

    def __init__(self) -> None:
        global _last_handlers, _python_handlers  # read and written on the main thread alone
        handlers = tuple(map(_signal.getsignal, _SIGNAL_NUMBERS))
        if handlers != _last_handlers:
            callable_handlers = (
                (number, handler)
                for number, handler in zip(_SIGNAL_NUMBERS, handlers, strict=True)
                if callable(handler)
            )
            _last_handlers, _python_handlers = handlers, tuple(callable_handlers)
        self._handlers = _python_handlers
        self._pending: dict[int, FrameType | None] = {}
        try:
            for number, _ in self._handlers:
                _signal.signal(number, self._note)
        except BaseException:  # one that was not put off yet has raised
            self._end_all()
            raise

    def end(self) -> None:
        """Restore the signal handlers, and run the deferred ones."""
        try:
            for number, handler in self._handlers:
                _signal.signal(number, handler)
        except BaseException:  # one that was given back has raised
            self._end_all()
            raise
        if self._pending:
            self._run(dict(self._handlers))

    def _end_all(self) -> None:
        try:
            _restore_all(list(self._handlers))
        finally:
            self._run(dict(self._handlers))

    def _run(self, handlers: dict[int, Handler]) -> None:
        """Run all deferred handlers, even if one raises."""
        while self._pending:
            number = next(iter(self._pending))
            frame = self._pending.pop(number)
            try:
                handlers[number](number, frame)
            finally:
                self._run(handlers)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._pending:
            dict(self._handlers)[number](number, frame)
        self._pending[number] = frame


def _restore_all(rest: list[tuple[int, Handler]]) -> None:
    """Restore all signal handlers, even if one that is restored raises."""
    if rest:
        try:
            _signal.signal(*rest[-1])
            rest.pop()
        finally:
            _restore_all(rest)


def on_main_thread() -> bool:
    """Return whether this is the thread in which Python runs signal handlers."""
    return threading.get_ident() == DeferredSignals.thread


def _after_fork() -> None:
    DeferredSignals.thread = threading.get_ident()  # the forked child's only thread is its main one


os.register_at_fork(after_in_child=_after_fork)
