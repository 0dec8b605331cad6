"""Plans of sources: the options of a source, checked when it is declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, count, duration
from mongoq.worker.lazy_results import is_function
from mongoq.worker.sources.reader import SourceReader
from mongoq.worker.sources.reader_aio import AsyncSourceReader

__all__ = ["MAX_BATCH", "SourcePlan", "source_plan"]

MAX_BATCH = 10_000
"""Maximum number of records in a batch."""
MIN_LEASE = timedelta(milliseconds=100)
"""Shortest lease: the runner extends a lease three times before it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class SourcePlan:
    """Options of a source for the engine; durations are ``timedelta``.

    Attributes:
        name: name of the source.
        id: id of the source's control document.
        queue: handle of the target queue, with the codec of its payloads.
        handler: generator function, called with the position.
        asynchronous: True if the handler is an async generator function.
        batch: maximum number of records per transaction.
        every: time from the end of a call to the next call; ``None`` to call once.
        lease: time for which the source stays with a process that has died.
    """

    name: str
    id: str
    queue: Any
    handler: Callable[..., Any]
    asynchronous: bool
    batch: int
    every: timedelta | None
    lease: timedelta

    def open_reader(self, position: Any, notify: Callable[[], None]) -> SourceReader:
        """Return a reader of one call of the handler, not started; it calls ``notify`` when its state changes."""
        kind = AsyncSourceReader if self.asynchronous else SourceReader
        return kind(self.name, self.handler, position, self.queue._context, batch=self.batch, notify=notify)


def source_plan(
    name: str,
    id: str,
    queue: Any,
    handler: Any,
    *,
    batch: int,
    every: Duration | None,
    lease: Duration,
    coroutines: bool,
) -> SourcePlan:
    """Check the options and return a plan; ``coroutines`` allows async generator functions."""
    return SourcePlan(
        name=name,
        id=id,
        queue=queue,
        handler=handler,
        asynchronous=_check_handler(handler, coroutines=coroutines),
        batch=_batch(batch),
        every=None if every is None else duration(every, "every", zero=False),
        lease=_lease(lease),
    )


def _batch(value: Any) -> int:
    number = count(value, "batch")
    if number > MAX_BATCH:
        raise ArgumentInvalid("batch", f"{MAX_BATCH:,} at most, not {number:,}")
    return number


def _lease(value: Any) -> timedelta:
    length = duration(value, "lease", zero=False)
    if length < MIN_LEASE:
        raise ArgumentInvalid("lease", f"a tenth of a second or longer, not {value!r}")
    return length


def _check_handler(handler: Any, *, coroutines: bool) -> bool:
    """Check a handler, and return whether it is an async generator function."""
    if not callable(handler):
        raise ArgumentInvalid("handler", f"a generator function, not {type(handler).__name__}")
    name = getattr(handler, "__qualname__", None) or type(handler).__name__
    asynchronous = is_function(inspect.isasyncgenfunction, handler)
    if not (asynchronous or is_function(inspect.isgeneratorfunction, handler)):
        kind = "a coroutine function" if is_function(inspect.iscoroutinefunction, handler) else "a plain function"
        raise ArgumentInvalid(
            "handler", f"{name} is {kind}, and a source is a generator; let it yield mongoq.Record(…)"
        )
    if asynchronous and not coroutines:
        raise ArgumentInvalid("handler", f"{name} is an async generator; start_async and drain_async run it")
    if not _takes_position(handler):
        raise ArgumentInvalid("handler", f"{name} is to take (position), and nothing else")
    return asynchronous


def _takes_position(handler: Any) -> bool:
    try:
        inspect.signature(handler).bind(None)
    except (TypeError, ValueError):
        return False
    return True
