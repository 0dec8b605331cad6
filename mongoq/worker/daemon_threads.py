"""Threads for the plain functions of an asynchronous worker.

They are daemons, unlike the threads of asyncio and anyio: a handler that hangs must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["DaemonThreads", "JobInThread"]

T = TypeVar("T")
_Work = Callable[[], None]


class DaemonThreads:
    """Runs functions in threads, one at a time in each. A thread is started when no idle one is left."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, in the caller's context, and return its result.

        When the caller is cancelled, the function goes on and its result is ignored.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def resolve(result: T) -> None:
            if not done.done():
                done.set_result(result)

        def work() -> None:
            result = context.run(function)
            try:
                loop.call_soon_threadsafe(resolve, result)
            except RuntimeError:  # the event loop has ended, so no caller waits
                pass

        thread = self._idle.pop() if self._idle else self._start_thread()
        thread.put(work)
        try:
            result = await done
        except BaseException:
            thread.put(None)  # the thread ends when the function does
            raise
        if self._closed:
            thread.put(None)
        else:
            self._idle.append(thread)
        return result

    def close(self) -> None:
        """End the idle threads at once, and each busy thread when its function returns."""
        self._closed = True
        for thread in self._idle:
            thread.put(None)
        self._idle.clear()

    def _start_thread(self) -> SimpleQueue[_Work | None]:
        tasks: SimpleQueue[_Work | None] = SimpleQueue()
        threading.Thread(target=_serve, args=(tasks,), name="mongoq-handler", daemon=True).start()
        return tasks


def _serve(tasks: SimpleQueue[_Work | None]) -> None:
    while (work := tasks.get()) is not None:
        work()


class JobInThread:
    """Job of a plain function that runs in a thread of an asynchronous worker."""

    def __init__(self, job: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        self.lost = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def extend(self, *, lease: Any = None) -> None:
        """Extend the lease to end this long from now; the command runs on the worker's event loop."""
        asyncio.run_coroutine_threadsafe(self._job.extend(lease=lease), self._loop).result()
