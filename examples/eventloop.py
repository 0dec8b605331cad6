"""A run of a pipeline by asyncio, for a program without: on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import wraps
from typing import Any

import mongoq

__all__ = ["RunOnLoop", "as_coroutine", "run_on_loop"]

Call = Callable[[Coroutine[Any, Any, Any]], Any]


class RunOnLoop:
    """The methods of a ``mongoq.AsyncRun``, to be called from another thread."""

    def __init__(self, run: mongoq.AsyncRun, call: Call) -> None:
        self._run = run
        self._call = call

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._run.ended

    def stop(self) -> None:
        """Ask the run to stop in good order; do not wait."""

        async def stop() -> None:
            self._run.stop()

        self._call(stop())

    def wait(self) -> bool:
        """Wait for the end of the run; raise the error that ended it."""
        return bool(self._call(self._run.wait()))

    def progress(self) -> mongoq.Progress:
        """Return the progress of the run."""
        progress: mongoq.Progress = self._call(self._run.progress())
        return progress


@contextmanager
def run_on_loop(pipeline: mongoq.Pipeline, uri: str, namespace: str, *, grace: float) -> Iterator[RunOnLoop]:
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
    """Run an event loop in a thread for the block; yield a function that runs a coroutine there."""
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
    """Return a handler as a coroutine function. asyncio calls plain ones in a thread, since they may block."""

    @wraps(handler)
    async def handle(*arguments: Any, **named: Any) -> Any:
        return handler(*arguments, **named)

    return handle
