"""What runs the loops and handlers of an asynchronous worker: tasks, and threads for plain functions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from mongoq.drive.deferral import on_main_thread
from mongoq.drive.wakeup import rest_aio
from mongoq.protocol.bells import Bell
from mongoq.worker.consumer import Consumer
from mongoq.worker.daemon_threads import DaemonThreads, JobInThread
from mongoq.worker.run import Run

__all__ = ["AioHands"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class AioHands:
    """Starts tasks, and calls handlers."""

    asynchronous = True

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = DaemonThreads()
        self._loop = asyncio.get_running_loop()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a loop in a task of its own; an error that ends it ends the worker."""
        task = asyncio.create_task(self._guarded(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._failed(error)

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

    async def shielded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something to its end, though the caller is cancelled meanwhile."""
        await asyncio.shield(asyncio.create_task(work()))

    async def call(self, consumer: Consumer, run: Run, payload: Any) -> Any:
        """Call the handler, a plain function in a thread, and return what it returns."""
        if consumer.asynchronous:
            run.where = asyncio.current_task()
            return await (consumer.handler(payload) if run.job is None else consumer.handler(payload, run.job))
        if run.job is not None:
            run.job = JobInThread(run.job, self._loop)
        arguments = (payload,) if run.job is None else (payload, run.job)
        returned, error = await self._threads.run(partial(_called, run, consumer.handler, arguments))
        if error is not None:
            raise error
        return returned

    async def close(self, seconds: float) -> None:
        """Wait so long for all tasks to end; then cancel what is left, and leave behind what will not be cancelled."""
        self._threads.close()
        for patience in (seconds, 1.0):
            deadline = self._loop.time() + patience
            while self._tasks and (left := deadline - self._loop.time()) > 0:
                await asyncio.wait(self._tasks, timeout=left)
            for task in self._tasks:
                task.cancel()


def _called(
    run: Run, handler: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, None] | tuple[None, BaseException]:
    """Return what the handler returns or raises: a future cannot carry every exception to a task."""
    run.where = get_ident()
    try:
        return handler(*arguments), None
    except BaseException as error:
        return None, error
