"""The context that a handler runs in: variables and decimal settings of its own, and the process that it began in."""

from __future__ import annotations

import decimal
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Never, TypeVar

__all__ = ["RunContext"]

T = TypeVar("T")
CHILD_AWAIT_ERROR = RuntimeError(
    "a forked child cannot await anything: its event loop is the parent's; call os._exit before that"
)


class RunContext:
    """A copy of the context in which a worker was started, for one run: nothing that a run sets is seen by another one.

    A handler may fork the process. A child that comes back from the handler ends there: the worker's leases,
    connections and event loop are the parent's.
    """

    __slots__ = ("_context", "_process")

    def __init__(self, context: Context, process: int) -> None:
        self._context = context
        self._process = process
        context.run(_copy_decimals)

    @classmethod
    def current(cls) -> RunContext:
        """Return a copy of the caller's context."""
        return cls(copy_context(), os.getpid())

    def copy(self) -> RunContext:
        """Return a copy for one run."""
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
        """Return what to await in order to run a coroutine in this context, in the task of the caller."""
        return Steps(coroutine, self)

    def take_step(self, step: Callable[[Any], Any], value: Any) -> Any:
        """Take one step of a coroutine; return what it waits for."""
        try:
            awaited = self._context.run(step, value)
        except BaseException as error:
            ended = issubclass(type(error), StopIteration)  # ``isinstance`` asks the error for its class, too
            self.check(None if ended else error)
            raise
        self.check(CHILD_AWAIT_ERROR)
        return awaited

    def check(self, error: BaseException | None = None) -> None:
        """End this process if it is a forked child of the one that the run began in."""
        if os.getpid() != self._process:
            _end_child(error)


class Steps(Generator[Any, Any, T]):
    """A coroutine each of whose steps runs in a context of its own.

    A task for each run would do that as well, and takes five times as long.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], context: RunContext) -> None:
        self._coroutine: Any = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, T]:
        """Return itself: it has the methods of a generator."""
        return self

    def __next__(self) -> Any:
        """Take the next step; that of the base class would be a frame in the tracebacks of handlers."""
        return self._context.take_step(self._coroutine.send, None)

    def send(self, value: Any) -> Any:
        """Take the next step."""
        return self._context.take_step(self._coroutine.send, value)

    def throw(self, kind: Any, value: Any = None, _: Any = None) -> Any:
        """Take the next step with an error, such as a cancellation."""
        return self._context.take_step(self._coroutine.throw, kind if value is None else value)

    @property
    def cr_frame(self) -> Any:
        """The frame of the coroutine, for a look where a task stands."""
        return self._coroutine.cr_frame

    @property
    def cr_await(self) -> Any:
        """What the coroutine waits for."""
        return self._coroutine.cr_await


def _copy_decimals() -> None:
    """Give this context decimal settings of its own: a copied one has the very object that the original has."""
    decimal.setcontext(decimal.getcontext().copy())


def _end_child(error: BaseException | None) -> Never:
    """End a forked child, with the exit code that Python would give it; nothing of its parent's is closed."""
    code = 1
    try:
        code = _exit_code(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    code = error.code if isinstance(error, SystemExit) else error
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    if isinstance(code, BaseException):
        traceback.print_exception(code)
    else:
        sys.stderr.write(f"{code}\n")
    return 1
