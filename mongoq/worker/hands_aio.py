"""What runs the loops and handlers of an asynchronous worker: tasks, and threads for plain functions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, get_ident
from typing import Any

from anyio import CapacityLimiter, from_thread, to_thread

from mongoq.drive.deferral import on_main_thread
from mongoq.drive.wakeup import rest_aio
from mongoq.protocol.bells import Bell
from mongoq.worker.consumer import Consumer
from mongoq.worker.run import Run

__all__ = ["AioHands"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class AioHands:
    """Starts tasks, and calls handlers."""

    asynchronous = True

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._limiters: dict[Consumer, CapacityLimiter] = {}
        self._loop = asyncio.get_running_loop()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a loop in a task of its own."""
        task = asyncio.create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ring(self, bell: Bell) -> None:
        """Ring a bell from any thread."""
        self._loop.call_soon_threadsafe(bell.ring)

    @contextmanager
    def signals(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` on SIGTERM and SIGINT for the length of a block, where this is the main thread."""
        if not on_main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            self._loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                signal.signal(number, handler)

    async def rest(self, bell: Bell, seconds: float) -> None:
        """Wait until the bell rings, or for so many seconds."""
        await rest_aio(bell, seconds)
        bell.rung = False

    async def call(self, consumer: Consumer, run: Run, payload: Any) -> Any:
        """Call the handler, a plain function in a thread, and return what it returns."""
        arguments = (payload,) if run.job is None else (payload, run.job)
        if consumer.asynchronous:
            run.where = asyncio.current_task()
            return await consumer.handler(*arguments)
        limiter = self._limiters.get(consumer)
        if limiter is None:
            limiter = self._limiters[consumer] = CapacityLimiter(consumer.concurrency)
        if run.job is not None:
            run.job = job = _JobInThread(run.job)
            arguments = (payload, job)
        return await to_thread.run_sync(
            partial(_called, run, consumer.handler, arguments), abandon_on_cancel=True, limiter=limiter
        )

    async def ended(self, seconds: float) -> bool:
        """Wait so long for all tasks to end; says whether they did."""
        deadline = self._loop.time() + seconds
        while self._tasks and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        return not self._tasks

    async def abandon(self) -> None:
        """Cancel what is left, and wait a moment for it; a handler that will not be cancelled is left behind."""
        for task in self._tasks:
            task.cancel()
        await self.ended(1.0)


def _called(run: Run, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    run.where = get_ident()
    return handler(*arguments)


class _JobInThread:
    """The job of a plain function that runs in a thread of an asynchronous worker."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.lost = Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def extend(self, *, lease: Any = None) -> None:
        """Let the lease end so long from now."""
        from_thread.run(partial(self._job.extend, lease=lease))
