"""Counter flush on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from mongoq.drivers.counter_flush import CounterFlush
from mongoq.model.process.counters import Counters
from mongoq.protocol.flow.commands import Flow

__all__ = ["AioCounterFlush"]


class AioCounterFlush(CounterFlush):
    """Writes counters from a task of the driver, started by a timer of the event loop."""

    def __init__(
        self,
        counters: Counters,
        flush: Callable[[], Flow[None]],
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        run: Callable[[Flow[None]], Awaitable[None]],
    ) -> None:
        super().__init__(counters, flush)
        self._own = own
        self._run = run
        self._timer: asyncio.TimerHandle | None = None

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._own(self.write()).add_done_callback(self._disarm_if_cancelled)

    def _disarm_if_cancelled(self, task: asyncio.Task[None]) -> None:
        """Let the next operation arm the timer again, after a task that was cancelled before its first step."""
        if task.cancelled():
            self.armed = False

    async def write(self) -> None:
        """Write the counters."""
        with self.writing():
            await self._run(self.flush())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
