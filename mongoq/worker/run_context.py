"""Run contexts: context variables and decimal settings of one handler call, and the process that it began in."""

from __future__ import annotations

import decimal
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Never, TypeVar

T = TypeVar("T")
CHILD_AWAIT_ERROR = RuntimeError(
    "a forked child cannot await anything: its event loop is the parent's; call os._exit before that"
)


class RunContext:
    """Copy of the context in which a worker was started, for one call: calls do not see each other's settings.

    A handler may fork the process. A child that returns from the handler ends there: the worker's leases,
    connections and event loop belong to the parent.
    """

    __slots__ = ("_context", "_process")

    def __init__(self, context: Context, process: int) -> None:
        self._context = context
        self._process = process
        # Its own decimal settings: a copied context shares the object of the original.
        context.run(lambda: decimal.setcontext(decimal.getcontext().copy()))

    @classmethod
    def current(cls) -> RunContext:
        return cls(copy_context(), os.getpid())

    def copy(self) -> RunContext:
        return RunContext(self._context.copy(), self._process)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in this context."""
        try:
            result = self._context.run(function, *arguments)
        except BaseException as error:
            self.check(error)
            raise
        self.check()
        return result

    def step(self, coroutine: Coroutine[Any, Any, T]) -> Steps[T]:
        """Return an awaitable that runs a coroutine in this context, in the task of the caller."""
        return Steps(coroutine, self)

    def take_step(self, step: Callable[[Any], Any], value: Any) -> Any:
        """Take one step of a coroutine, and return the object that it waits for."""
        try:
            awaited = self._context.run(step, value)
        except BaseException as error:
            ended = issubclass(type(error), StopIteration)  # ``isinstance`` would read ``__class__`` of a user's error
            self.check(None if ended else error)
            raise
        self.check(CHILD_AWAIT_ERROR)
        return awaited

    def check(self, error: BaseException | None = None) -> None:
        """End this process if it is a forked child of the one that the run began in."""
        if os.getpid() != self._process:
            _end_child(error)


class ForkGuard:
    """Block that ends a forked child: only the process that has entered the block goes on after it.

    A child inherits what its parent has begun around the block, such as a session, and must not end it.
    """

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        """Remember the process."""
        self._process = os.getpid()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End a child, with the exit code that Python would give it."""
        if os.getpid() != self._process:
            _end_child(error)


class Steps(Generator[Any, Any, T]):
    """Awaitable that runs each step of a coroutine in a given context.

    A task per call would do the same, and takes five times as long.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], context: RunContext) -> None:
        self._coroutine: Any = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, T]:
        """Return self, which has the methods of a generator."""
        return self

    def __next__(self) -> Any:
        """Take the next step. The base class's method would add a frame to the tracebacks of handlers."""
        return self._context.take_step(self._coroutine.send, None)

    def send(self, value: Any) -> Any:
        return self._context.take_step(self._coroutine.send, value)

    def throw(self, kind: Any, value: Any = None, _: Any = None) -> Any:
        """Raise an error, for example a cancellation, at the coroutine's await."""
        return self._context.take_step(self._coroutine.throw, kind if value is None else value)

    @property
    def cr_frame(self) -> Any:
        """Frame of the coroutine; the watchdog reads it to find where a task stands."""
        return self._coroutine.cr_frame

    @property
    def cr_await(self) -> Any:
        """Awaitable that the coroutine waits for; the watchdog follows it."""
        return self._coroutine.cr_await


def _end_child(error: BaseException | None) -> Never:
    """End a forked child with the exit code that Python would give it. Resources of the parent are not closed."""
    code: Any = error.code if isinstance(error, SystemExit) else error
    try:
        if code is not None and not isinstance(code, int):
            if isinstance(code, BaseException):
                traceback.print_exception(code)
            else:
                sys.stderr.write(f"{code}\n")
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(0 if code is None else code & 0xFF if isinstance(code, int) else 1)
