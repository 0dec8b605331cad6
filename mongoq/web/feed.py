"""Feed: signals to open pages that numbers have changed, from one reading for all of them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

STREAM_SECONDS = 5.0
"""Seconds after which a stream of events ends; the browser then asks for the next one.

A server that is told to end waits for open streams, and ``uvicorn`` tells an app only after that.
"""
CLOSING_SECONDS = 0.5
"""Seconds until an open stream notices that it is to end."""
OPENING = "retry: 1000\nid: {}\ndata: \n\n"
"""First event: milliseconds after which the browser asks for the next stream, and the version that it then names."""
CHANGED = "event: changed\nid: {}\ndata: \n\n"
"""Event that says that numbers have changed; its id is the version of the value."""


class Feed:
    """Reads a value again and again while there are listeners, and wakes each of them when it has changed.

    The first listener starts the reading, and the last one ends it. Each value has a version, so that a listener who
    comes back hears of a change that has happened between two streams.

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
        self._last: Any = None
        self._run = secrets.token_hex(4)  # versions of another process say nothing about this one
        self._number = 0

    @property
    def version(self) -> str:
        """Version of the last value."""
        return f"{self._run}-{self._number}"

    def close(self) -> None:
        """End all event streams within half a second; from any thread. A server that ends waits for its connections."""
        self._closed = True

    async def listen(self, seen: str | None = None) -> AsyncGenerator[str, None]:
        """Yield server-sent events, one for each change, for some seconds; the browser then asks for the next stream.

        Args:
            seen: version that the listener has heard of, in the stream before this one.
        """
        changed = asyncio.Event()
        self._listeners.add(changed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_on(), name="mongoq-feed")
        ends = time.monotonic() + STREAM_SECONDS
        try:
            version = self.version
            yield OPENING.format(version)
            if seen and seen != version:
                yield CHANGED.format(version)
            while not self._closed and time.monotonic() < ends:
                try:
                    await asyncio.wait_for(changed.wait(), CLOSING_SECONDS)
                except TimeoutError:
                    continue
                changed.clear()
                yield CHANGED.format(self.version)
        finally:
            self._listeners.discard(changed)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _read_on(self) -> None:
        while True:
            try:
                value = await self._read()
            except Exception as error:  # mostly because the server is away
                value = type(error).__name__
            if value != self._last and self._last is not None:
                self._number += 1
                for listener in self._listeners:
                    listener.set()
            self._last = value
            await asyncio.sleep(self._pause())
