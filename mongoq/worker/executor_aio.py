"""What runs the loops and handlers of an asynchronous worker: tasks, and threads for plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from threading import get_ident
from typing import Any

from mongoq.drivers.sleep import rest_aio
from mongoq.protocol.flow.event import WakeEvent
from mongoq.worker.consumer import Consumer
from mongoq.worker.daemon_threads import DaemonThreads, JobInThread
from mongoq.worker.handler_call import HandlerCall
from mongoq.worker.run_context import RunContext
from mongoq.worker.signals import listening

__all__ = ["AioExecutor"]


class AioExecutor:
    """Starts tasks, and calls handlers.

    Attributes:
        context: the context in which the worker was started.
    """

    asynchronous = True

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._runners: set[asyncio.Task[None]] = set()
        self._threads = DaemonThreads()
        self._loop = asyncio.get_running_loop()
        self.context = RunContext.current()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str, *, calls_handlers: bool = False) -> None:
        """Run a loop in a task of its own, which may be one that runs handlers; its error ends the worker."""
        task = asyncio.create_task(self._guard(work), name=name)
        for tasks in (self._tasks, self._runners) if calls_handlers else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        task.add_done_callback(partial(self._start_again, work, name, calls_handlers=calls_handlers))

    def _start_again(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        task: asyncio.Task[None],
        *,
        calls_handlers: bool,
    ) -> None:
        """Start a loop again whose task was cancelled before its first step: nothing has guarded it yet."""
        if task.cancelled() and not self._closing:
            self.start(work, name, calls_handlers=calls_handlers)

    def abandon(self) -> None:
        """Cancel those that run handlers."""
        self._closing = True
        for task in self._runners:
            task.cancel()

    async def _guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Go on after a cancellation that is not ours: a handler may have left it behind, or the loop is ending."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                return await work()
            except asyncio.CancelledError:
                if self._closing:
                    raise
                task.uncancel()
            except Exception as error:
                return self._on_failure(error)

    def ring(self, bell: WakeEvent) -> None:
        """Ring a bell from any thread."""
        self._loop.call_soon_threadsafe(bell.ring)

    def signals(self, stop: Callable[[], None], *, wanted: bool) -> AbstractContextManager[None]:
        """Call ``stop`` on SIGTERM and SIGINT for the length of a block, where this is the main thread."""
        return listening(lambda: self._loop.call_soon_threadsafe(stop), signals=wanted)

    def cancel(self, run: HandlerCall) -> None:
        """Cancel a coroutine function that runs; a plain one cannot be."""
        if isinstance(run.where, asyncio.Task):
            run.where.cancel()

    async def rest(self, bell: WakeEvent, seconds: float) -> None:
        """Wait until the bell rings, or for so many seconds."""
        await rest_aio(bell, seconds)
        bell.rung = False

    async def shield(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something to its end, though the caller is cancelled meanwhile."""
        await asyncio.shield(asyncio.create_task(work()))

    async def call(self, consumer: Consumer, run: HandlerCall, payload: Any) -> Any:
        """Call the handler, a plain function in a thread, and return what it returns."""
        if consumer.asynchronous:
            run.where = asyncio.current_task()
            arguments = (payload,) if run.job is None else (payload, run.job)
            try:
                return await run.context.step(_await_handler(consumer.handler, arguments))
            finally:
                await self._clear_cancellation()
        if run.job is not None:
            run.job = JobInThread(run.job, self._loop)
        arguments = (payload,) if run.job is None else (payload, run.job)
        returned, error = await self._threads.run(partial(_run_in_thread, run, consumer.handler, arguments))
        if error is not None:
            raise error
        return returned

    async def _clear_cancellation(self) -> None:
        """Take back the cancellation that a handler has left behind, which would meet the next run."""
        task = asyncio.current_task()
        assert task is not None
        if self._closing or not task.cancelling():
            return
        try:
            await asyncio.sleep(0)  # it comes here if it has not come yet
        except asyncio.CancelledError:
            if self._closing:
                raise
        while task.cancelling():
            task.uncancel()

    async def close(self, seconds: float) -> None:
        """Wait so long for all tasks to end; then cancel what is left, and leave behind what will not be cancelled."""
        self._closing = True
        self._threads.close()
        for patience in (seconds, 1.0):
            deadline = self._loop.time() + patience
            while self._tasks and (left := deadline - self._loop.time()) > 0:
                await asyncio.wait(self._tasks, timeout=left)
            for task in self._tasks:
                task.cancel()


async def _await_handler(handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return await handler(*arguments)


def _run_in_thread(
    run: HandlerCall, handler: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, None] | tuple[None, BaseException]:
    """Return what the handler returns or raises: a future cannot carry every exception to a task."""
    run.where = get_ident()
    try:
        return run.context.call(handler, *arguments), None
    except BaseException as error:
        return None, error
