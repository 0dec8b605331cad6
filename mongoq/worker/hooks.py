"""Hooks around handlers: context managers that a worker enters before each call of a handler, and leaves after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import replace
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.worker.consumer import Consumer, Handler, label_of
from mongoq.worker.outcome_resolver import is_function, resolve_result
from mongoq.worker.run_context import ForkGuard

Hook = Callable[..., AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Function or class that is called with the job of each run, and returns a context manager."""


def add_hooks(consumer: Consumer, hooks: Sequence[Hook]) -> Consumer:
    """Return a consumer with a handler that runs inside these hooks, the first one outermost.

    Without hooks it is the same consumer, so that a worker without any pays nothing. So is a side of a join, which
    calls no handler of a user.

    Raises:
        ArgumentInvalid: a hook makes asynchronous context managers, and the handler is a plain function.
    """
    if not (hooks and consumer.has_hooks):
        return consumer
    for hook in hooks if not consumer.asynchronous else ():
        if is_asynchronous(hook):
            problem = f"{label_of(hook)} makes asynchronous context managers, and the handler of {consumer.title}"
            hint = "make the handler a coroutine function, or the context manager a plain one"
            raise ArgumentInvalid("around", f"{problem} is a plain function; {hint}")
    handler = _hook_coroutine(consumer, hooks) if consumer.asynchronous else _hook_plain(consumer, hooks)
    return replace(consumer, handler=handler, takes_job=True)


def check_hook(hook: Any, *, coroutines: bool) -> None:
    """Refuse what cannot be a hook; ``coroutines`` allows asynchronous context managers.

    Raises:
        ArgumentInvalid: the text says what to change.
    """
    if not callable(hook):
        raise ArgumentInvalid("around", f"a function from the job to a context manager, not {type(hook).__name__}")
    if is_function(inspect.isgeneratorfunction, hook):
        raise ArgumentInvalid("around", f"{label_of(hook)} is a generator; decorate it with contextlib.contextmanager")
    if is_function(inspect.isasyncgenfunction, hook):
        hint = "decorate it with contextlib.asynccontextmanager"
        raise ArgumentInvalid("around", f"{label_of(hook)} is an asynchronous generator; {hint}")
    if is_function(inspect.iscoroutinefunction, hook):
        hint = "let it return a context manager, and decorate a generator with contextlib.asynccontextmanager"
        raise ArgumentInvalid("around", f"{label_of(hook)} is a coroutine function; {hint}")
    if not coroutines and is_asynchronous(hook):
        hint = "this worker runs threads and takes plain ones; an AsyncWorker takes both"
        raise ArgumentInvalid("around", f"{label_of(hook)} makes asynchronous context managers; {hint}")
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        raise ArgumentInvalid("around", f"{label_of(hook)} is to take the job, and nothing else") from None
    except ValueError:  # some functions written in C have no signature
        pass


def is_asynchronous(hook: Any) -> bool:
    """Return whether a hook is known to make asynchronous context managers only."""
    if isinstance(hook, type):
        return hasattr(hook, "__aenter__") and not hasattr(hook, "__enter__")
    return is_function(inspect.isasyncgenfunction, inspect.unwrap(hook))


def _hook_plain(consumer: Consumer, hooks: Sequence[Hook]) -> Handler:
    """Return a plain function that calls the handler inside hooks, all of which run in its thread.

    It returns ``None`` if a hook has suppressed an exception.
    """

    def handle(payload: Any, job: Any) -> Any:
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook(job))  # type: ignore[arg-type]  # another kind raises TypeError
            with ForkGuard():
                returned = consumer.handler(payload, job) if consumer.takes_job else consumer.handler(payload)
            return _resolve(consumer, job, returned)
        job._outcomes = None  # type: ignore[unreachable]  # a hook may suppress an exception
        return None

    return handle


def _hook_coroutine(consumer: Consumer, hooks: Sequence[Hook]) -> Handler:
    """Return the same as a coroutine function; all hooks run in its task."""

    async def handle(payload: Any, job: Any) -> Any:
        async with AsyncExitStack() as stack:
            for hook in hooks:
                manager: Any = hook(job)
                if hasattr(type(manager), "__aenter__"):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
            with ForkGuard():
                returned = await (consumer.handler(payload, job) if consumer.takes_job else consumer.handler(payload))
            return _resolve(consumer, job, returned)
        job._outcomes = None  # type: ignore[unreachable]  # a hook may suppress an exception
        return None

    return handle


def _resolve(consumer: Consumer, job: Any, returned: Any) -> Any:
    """Find the outcomes of the call while the hooks can see its errors; returns ``job.returned``."""
    if job._outcomes is None:  # the innermost one does it
        job._outcomes, job.returned = resolve_result(consumer, job.items, returned)
    return job.returned
