"""Feed: tells open pages that numbers have changed, from one reading for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from mongoq.errors import MongoqError

READ_SECONDS = 5.0
"""Seconds between two readings, while a page is open."""
KEEP_ALIVE = ": \n\n"
CHANGED = "event: changed\ndata: \n\n"


class Feed:
    """Reads a value again and again while somebody listens, and tells each listener when it has changed.

    The first listener starts the reading, and the last one ends it. Listeners of different event loops have readings
    of their own.

    Args:
        read: coroutine function that returns the value; its errors count as a value.
        seconds: time between two readings.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Any]], *, seconds: float = READ_SECONDS) -> None:
        self._read = read
        self._seconds = seconds
        self._listeners: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    async def listen(self) -> AsyncIterator[str]:
        """Yield server-sent events: one for each change, and comments that keep the connection open."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_on(), name="mongoq-feed")
        try:
            while True:
                try:
                    await asyncio.wait_for(changed.wait(), 3 * self._seconds)
                except TimeoutError:
                    yield KEEP_ALIVE
                else:
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
            await asyncio.sleep(self._seconds)
