"""Readings of async generators."""

from __future__ import annotations

import asyncio
from typing import Any

from mongoq.drivers.sleep import rest_aio
from mongoq.worker.run_context import RunContext
from mongoq.worker.sources.reader import POLL_SECONDS, SourceReader

__all__ = ["AsyncSourceReader"]


class AsyncSourceReader(SourceReader):
    """An async generator that is read in a task of its own; told to end, it is cancelled where it waits."""

    _task: asyncio.Task[None] | None = None
    _closing = False

    def start(self, context: RunContext) -> None:
        """Begin to read, in this context."""
        self._began_in = context
        self._task = asyncio.create_task(self._begin(context), name=f"mongoq-read-{self._name}")
        self._task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        """Take note of the end; read from the start again when the task was cancelled before its first step."""
        if task.cancelled() and not self._closed and self._began_in is not None:
            self.start(self._began_in)
        else:
            self._end()

    async def _begin(self, context: RunContext) -> None:
        await context.step(self._read_all())

    def close(self) -> None:
        """Let the generator be closed where it stands; what it yields from now on is ignored."""
        first = not self._closed
        super().close()
        if first and not self._closing and self._task is not None:
            self._task.cancel()

    async def _read_all(self) -> None:
        generator: Any = None
        try:
            generator = self._handler(self._position)
            async for record in generator:
                if not self._add(record):
                    break
                while self._is_ahead():
                    await rest_aio(self._room_event, POLL_SECONDS)
                    self._room_event.rung = False
                if self._is_closed():
                    break
        except BaseException as error:
            self._record_failure(error)
        self._closing = True
        try:
            if generator is not None:
                await generator.aclose()
        except BaseException as error:
            self._log_close_error(error)
