"""Lazy results: generators, coroutines and the like, returned by a handler and never run by anything."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import partial
from io import IOBase
from typing import Any

from mongoq.errors import OutcomeInvalid

__all__ = ["close_lazy", "is_function", "refuse_lazy"]

AWAIT_HINT = "nobody awaits it; await it in the handler, and make the handler `async def`"
LOOP_HINT = "nothing loops over it, so it never runs; loop over it in the handler, or return list(…)"
ASYNC_LOOP_HINT = "nothing loops over it, so it never runs; loop over it with `async for` in the handler"
ENTER_HINT = "nothing enters it, so it never runs; take the decorator for context managers from the handler"
WAIT_HINT = "nobody waits for it; return its result()"
COLLECTIONS = (list, tuple, set, frozenset)


def refuse_lazy(returned: Any) -> None:
    """Refuse a lazy value, or a list that holds one, and close it.

    Raises:
        OutcomeInvalid: the text says how to do the work instead.
    """
    for value in _values_of(returned):
        hint = _hint(value)
        if hint is not None:
            close_lazy(returned)
            where = "" if value is returned else f" in a {type(returned).__name__}"
            raise OutcomeInvalid(f"a {type(value).__name__} was returned{where}, and {hint}")


def close_lazy(returned: Any) -> None:
    """Close a generator, a coroutine or a list of them, so that Python does not warn about a missing await."""
    for value in _values_of(returned):
        if inspect.isgenerator(value) or inspect.iscoroutine(value):
            with suppress(Exception):  # the value may be running already, or raise while it is closed
                value.close()


def _values_of(returned: Any) -> Iterable[Any]:
    return returned if isinstance(returned, COLLECTIONS) else (returned,)


def _hint(value: Any) -> str | None:
    """Return the advice against returning a lazy value; ``None`` for any other value."""
    if inspect.isawaitable(value):
        return AWAIT_HINT
    if isinstance(value, Future):
        return WAIT_HINT
    try:
        if isinstance(value, AbstractContextManager | AbstractAsyncContextManager) and _is_generated(value):
            return ENTER_HINT
        # An iterator returns itself from iter(). A mock has all methods too, but returns another object.
        if isinstance(value, Iterator) and not isinstance(value, IOBase) and iter(value) is value:
            return LOOP_HINT
        if isinstance(value, AsyncIterator) and value.__aiter__() is value:
            return ASYNC_LOOP_HINT
    except Exception:  # an object of the user may raise anything
        return None
    return None


def _is_generated(manager: Any) -> bool:
    """Return whether a context manager was made from a generator, for example by ``contextlib.contextmanager``."""
    steps = getattr(manager, "gen", None)
    return inspect.isgenerator(steps) or inspect.isasyncgen(steps)


def is_function(predicate: Callable[[Any], bool], handler: Any) -> bool:
    """Return whether a predicate such as ``inspect.isgeneratorfunction`` holds for the function that a call runs.

    This is the function behind a ``partial``, or ``__call__`` of an object.
    """
    while isinstance(handler, partial):
        handler = handler.func
    return predicate(handler) or (not inspect.isroutine(handler) and predicate(getattr(handler, "__call__", None)))  # noqa: B004
