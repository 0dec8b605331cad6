"""Outcome resolver: maps the return value or exception of a handler to an outcome for each item."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from datetime import timedelta
from functools import partial
from io import IOBase
from typing import TYPE_CHECKING, Any

from mongoq.core.settle.apply_outcomes import find_problem
from mongoq.core.settle.move import Moves
from mongoq.core.state.context import context_of
from mongoq.data.arguments import Duration
from mongoq.data.encoding.error_text import name_of
from mongoq.data.item import Item
from mongoq.data.outcomes import (
    Dead,
    Done,
    Drop,
    Failed,
    Fork,
    HandlerOutcome,
    Later,
    Move,
    Outcome,
    ResolvedOutcome,
    Retry,
    make_unknown_error,
)
from mongoq.drivers.errors import as_duplicate
from mongoq.errors import MongoqError, OutcomeInvalid

if TYPE_CHECKING:
    from mongoq.worker.consumer import Consumer

AWAIT_HINT = "nobody awaits it; await it in the handler, and make the handler `async def`"
LOOP_HINT = "nothing loops over it, so it never runs; loop over it in the handler, or return list(…)"
ASYNC_LOOP_HINT = "nothing loops over it, so it never runs; loop over it with `async for` in the handler"
ENTER_HINT = "nothing enters it, so it never runs; take the decorator for context managers from the handler"
WAIT_HINT = "nobody waits for it; return its result()"
COLLECTIONS = (list, tuple, set, frozenset)


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
        if isinstance(value, AbstractContextManager | AbstractAsyncContextManager):
            steps = getattr(value, "gen", None)  # as of one that contextlib.contextmanager has made
            if inspect.isgenerator(steps) or inspect.isasyncgen(steps):
                return ENTER_HINT
        # An iterator returns itself from iter(). A mock has all methods too, but returns another object.
        if isinstance(value, Iterator) and not isinstance(value, IOBase) and iter(value) is value:
            return LOOP_HINT
        if isinstance(value, AsyncIterator) and value.__aiter__() is value:
            return ASYNC_LOOP_HINT
    except Exception:  # an object of the user may raise anything
        return None
    return None


def is_function(predicate: Callable[[Any], bool], handler: Any) -> bool:
    """Return whether a predicate such as ``inspect.isgeneratorfunction`` holds for the function that a call runs.

    This is the function behind a ``partial``, or ``__call__`` of an object.
    """
    while isinstance(handler, partial):
        handler = handler.func
    return predicate(handler) or (not inspect.isroutine(handler) and predicate(getattr(handler, "__call__", None)))  # noqa: B004


RAISED_NO_EXCEPTION = "exceptions must derive from BaseException"
"""What Python answers to ``raise mongoq.Dead(…)``."""
HandlerResult = HandlerOutcome | BaseException | None
"""Result of one item: an outcome or an exception that the handler returned, or ``None`` for success."""


class OutcomeResolver:
    """Maps the result of a call to outcomes. For a worker, any returned value is success."""

    def refusal(self, consumer: Consumer, items: Sequence[Item[Any]]) -> list[ResolvedOutcome] | None:
        """Return the outcomes of items that must not run; ``None`` to run them."""
        return None

    def outcomes(self, consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> list[ResolvedOutcome]:
        """Return the outcomes of the items of a call that has returned; in a batch, a wrong entry fails its item alone.

        Raises:
            OutcomeInvalid: the returned value cannot be an outcome, or is most likely a mistake.
        """
        if isinstance(returned, BaseException):
            return self.failures(consumer, items, returned)
        if consumer.batch is None:
            return [self._resolve(consumer, items[0], self._read(consumer, items[0], returned))]
        outcomes = []
        for item, entry in zip(items, check_entries(items, returned), strict=True):
            try:
                result: HandlerResult = entry if isinstance(entry, BaseException) else self._read(consumer, item, entry)
            except Exception as error:  # a stage encodes payloads, which runs code of their classes
                result = error
            outcomes.append(self._resolve(consumer, item, result))
        return outcomes

    def _read(self, consumer: Consumer, item: Item[Any], returned: Any) -> HandlerOutcome | None:
        """Return the outcome that a returned value means, ``None`` for success; raises ``OutcomeInvalid``."""
        check_result(returned)
        if returned is None or isinstance(returned, HandlerOutcome):
            return returned
        if consumer.batch is not None:
            problem = f"an entry for an item is None, an outcome or an exception, not {name_of(returned)}"
            raise OutcomeInvalid(problem)
        return None  # any other value means success

    def _resolve(self, consumer: Consumer, item: Item[Any], result: HandlerResult) -> ResolvedOutcome:
        match result:
            case None:
                return Done()
            case BaseException():
                return self.failure(consumer, item, result)
            case Retry():
                return self._retry(consumer, item, result.error, result.delay)
            case Fork():
                return result if result.moves else Drop()
            case Dead() | Drop() | Later() | Move():
                return result
            case _:
                raise make_unknown_error(result)

    def failure(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> ResolvedOutcome:
        """Return the outcome of an item whose run has failed: success (``success_on``), or a later run."""
        if is_success(consumer, error):
            return Done()
        if type(error) is TypeError and error.args == (RAISED_NO_EXCEPTION,):
            problem = "no exception was raised, but another value; an outcome is returned: return mongoq.Dead('…')"
            error = OutcomeInvalid(problem).with_traceback(error.__traceback__)
        return self._retry(consumer, item, error, None)

    def failures(self, consumer: Consumer, items: Sequence[Item[Any]], error: BaseException) -> list[ResolvedOutcome]:
        """Return the outcomes of all items of a failed call."""
        return [self.failure(consumer, item, error) for item in items]

    def _retry(
        self, consumer: Consumer, item: Item[Any], error: BaseException | str | None, delay: Duration | None
    ) -> Failed:
        return Failed(error, retry_delay(consumer, item) if delay is None else delay)


def resolve_result(consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> tuple[list[ResolvedOutcome], Any]:
    """Return the outcomes of a call, and what its handler has returned, with errors in place of impossible results.

    Without this, such an error is found when the item is settled, too late for what measures the call.
    """
    try:
        outcomes = consumer.resolver.outcomes(consumer, items, returned)
    except Exception as error:
        return consumer.resolver.failures(consumer, items, error), error
    has_entries = consumer.batch is not None and isinstance(returned, list | tuple)
    entries = list(returned) if has_entries else [None if consumer.batch is not None else returned] * len(items)
    has_errors, moves = False, Moves(consumer.context, context_of)
    for place, (item, outcome) in enumerate(zip(items, outcomes, strict=True)):
        problem: object = find_problem(consumer.context, item, outcome, moves, gone=consumer.pops)
        if isinstance(problem, MongoqError):
            outcomes[place] = consumer.resolver.failure(consumer, item, problem)
        elif isinstance(outcome, Failed) and not issubclass(type(entries[place]), BaseException | Retry):
            problem = outcome.error  # a pipeline has refused an entry of a batch
        if isinstance(problem, BaseException):
            entries[place], has_errors = problem, True
    if not has_errors:
        return outcomes, returned
    return outcomes, entries if consumer.batch is not None else entries[0]


def is_success(consumer: Consumer, error: object) -> bool:
    """Return whether an error counts as success. Classes may define ``__instancecheck__``, which may raise anything."""
    try:
        return isinstance(error, consumer.success_on) or isinstance(as_duplicate(error), consumer.success_on)
    except BaseException:
        return False


def retry_delay(consumer: Consumer, item: Item[Any]) -> timedelta:
    """Return the delay of a failed item's next run."""
    return consumer.retry.delay(max(item.attempts, 1))


def check_entries(items: Sequence[Item[Any]], returned: Any) -> Sequence[Any]:
    """Return the list that a batch handler returned, one entry per item; raises ``OutcomeInvalid`` otherwise."""
    if returned is None:
        return [None] * len(items)
    if not isinstance(returned, list | tuple):
        close_lazy(returned)
        raise OutcomeInvalid(f"a batch handler returns None or a list, an entry per item, not {name_of(returned)}")
    if len(returned) != len(items):
        close_lazy(returned)
        raise OutcomeInvalid(f"a batch of {len(items)} items got {len(returned)} outcomes; return one per item")
    return returned


def check_result(returned: Any) -> None:
    """Refuse a handler's result that is most likely a mistake; raises ``OutcomeInvalid``."""
    if returned is None:
        return
    if isinstance(returned, Outcome) and not isinstance(returned, HandlerOutcome):
        raise OutcomeInvalid(f"a {name_of(returned)} was returned; return a Move, Fork, Drop, Later, Retry or Dead")
    if isinstance(returned, type) and issubclass(returned, Outcome | BaseException):
        raise OutcomeInvalid(f"the class {returned.__name__} was returned; return {returned.__name__}(…)")
    for value in _values_of(returned):  # a lazy value, or a list that holds one
        hint = _hint(value)
        if hint is not None:
            close_lazy(returned)
            where = "" if value is returned else f" in a {type(returned).__name__}"
            raise OutcomeInvalid(f"a {type(value).__name__} was returned{where}, and {hint}")


def error_kind(error: BaseException | str | None) -> str:
    """Return the name of an error in logs: its type, since its text may hold private data."""
    return name_of(error) if isinstance(error, BaseException) else "Retry"
