"""Feed: tells open pages that numbers have changed, from one reading for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from mongoq.errors import MongoqError

STREAM_SECONDS = 20.0
"""Seconds after which a stream of events ends; the browser then asks for the next one."""
CLOSING_SECONDS = 0.5
"""Seconds until an open stream notices that it is to end."""
RETRY = "retry: 1000\n\n"
"""First event of a stream: milliseconds after which the browser asks for the next stream."""
CHANGED = "event: changed\ndata: \n\n"


class Feed:
    """Reads a value again and again while somebody listens, and tells each listener when it has changed.

    The first listener starts the reading, and the last one ends it. Listeners of different event loops have readings
    of their own.

    Args:
        read: coroutine function that returns the value; its errors count as a value.
        pause: returns the seconds until the next reading.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Any]], pause: Callable[[], float]) -> None:
        self._read = read
        self._pause = pause
        self._listeners: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        """End all event streams within half a second; from any thread. A server that ends waits for its connections."""
        self._closed = True

    async def listen(self) -> AsyncIterator[str]:
        """Yield server-sent events: one for each change, and a comment at the end of the stream.

        A stream ends after some seconds, and the browser asks for the next one: a server that is told to end waits for
        open streams.
        """
        changed = asyncio.Event()
        self._listeners.add(changed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_on(), name="mongoq-feed")
        ends = time.monotonic() + STREAM_SECONDS
        yield RETRY
        try:
            while not self._closed and time.monotonic() < ends:
                try:
                    await asyncio.wait_for(changed.wait(), CLOSING_SECONDS)
                except TimeoutError:
                    continue
                changed.clear()
                yield CHANGED
        finally:
            self._listeners.discard(changed)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _read_on(self) -> None:
        last: Any = None
        while True:
            try:
                value = await self._read()
            except (MongoqError, OSError, RuntimeError) as error:
                value = repr(error)
            except Exception as error:  # of the driver: the server is away
                value = type(error).__name__
            if value != last and last is not None:
                for listener in self._listeners:
                    listener.set()
            last = value
            await asyncio.sleep(self._pause())
