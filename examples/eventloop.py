"""A run of a pipeline by asyncio, for a program without: on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import wraps
from typing import Any

import mongoq

__all__ = ["RunOnLoop", "as_coroutine", "started_on_loop"]

Call = Callable[[Coroutine[Any, Any, Any]], Any]


class RunOnLoop:
    """The methods of a ``mongoq.AsyncRun``, to be called from another thread."""

    def __init__(self, run: mongoq.AsyncRun, call: Call) -> None:
        self._run = run
        self._call = call

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self._run.ended

    def stop(self) -> None:
        """End in good order; it does not wait."""

        async def stop() -> None:
            self._run.stop()

        self._call(stop())

    def wait(self) -> bool:
        """Wait for its end; raises what has ended it."""
        return bool(self._call(self._run.wait()))

    def progress(self) -> mongoq.Progress:
        """Return how far it has come."""
        progress: mongoq.Progress = self._call(self._run.progress())
        return progress


@contextmanager
def started_on_loop(pipeline: mongoq.Pipeline, uri: str, namespace: str, *, grace: float) -> Iterator[RunOnLoop]:
    """Run a pipeline on the ``database.collection`` of a server, over a connection of its own."""
    database, _, collection = namespace.partition(".")
    with _event_loop() as call:
        stack = AsyncExitStack()
        try:
            connecting = mongoq.connect_async(uri, database=database, collection=collection)
            broker = call(stack.enter_async_context(connecting))
            run = call(stack.enter_async_context(pipeline.start_async(broker, grace=grace)))
            yield RunOnLoop(run, call)
        finally:
            call(stack.aclose())


@contextmanager
def _event_loop() -> Iterator[Call]:
    """Run an event loop meanwhile, and hand out what calls something there and waits for the answer."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="event-loop", daemon=True)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def as_coroutine(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler as a coroutine function. asyncio calls a plain one in a thread, lest it wait for something."""

    @wraps(handler)
    async def handle(*arguments: Any, **named: Any) -> Any:
        return handler(*arguments, **named)

    return handle
