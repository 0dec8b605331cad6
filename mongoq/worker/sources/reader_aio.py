"""Source readers of async generators."""

from __future__ import annotations

import asyncio
from typing import Any

from mongoq.drivers.sleep import rest_aio
from mongoq.worker.run_context import RunContext
from mongoq.worker.sources.reader import POLL_SECONDS, SourceReader

__all__ = ["AsyncSourceReader"]


class AsyncSourceReader(SourceReader):
    """Reads an async generator in its own task; ``close`` cancels the task at its current await."""

    _task: asyncio.Task[None] | None = None
    _closing = False

    def start(self, context: RunContext) -> None:
        """Start reading, in this context."""
        self._began_in = context
        self._task = asyncio.create_task(self._begin(context), name=f"mongoq-read-{self._name}")
        self._task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        """Record the end of the task; start again if it was cancelled before its first step."""
        if task.cancelled() and not self._closed and self._began_in is not None:
            self.start(self._began_in)
        else:
            self._end()

    async def _begin(self, context: RunContext) -> None:
        await context.step(self._read_all())

    def close(self) -> None:
        """Have the generator closed at its current await; later records are ignored."""
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
                    self._room_event.was_set = False
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
