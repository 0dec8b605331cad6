"""Executors: run the loops and handlers of a worker, in daemon threads or, with asyncio, in tasks.

The asynchronous one runs plain functions in threads. anyio shields the end of a worker, and calls the event loop from
threads. It does not replace the rest:

- Threads: those of anyio (and asyncio) are no daemons, so a handler that hangs would keep the process from ending; with
  them a worker also runs 29 % fewer plain functions a second.
- Limits: a consumer has as many runners as its concurrency, so no limiter is needed.
- Cancellation: a cancel scope cancels each ``await`` of a handler's clean-up again, a task group waits for tasks that
  resist, and neither clears a cancellation that a handler has left behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
import anyio.from_thread
from anyio.lowlevel import EventLoopToken, current_token

from mongoq.core.command import WakeEvent
from mongoq.drivers.sleep import rest, rest_aio
from mongoq.worker.backlog import HandlerCall
from mongoq.worker.consumer import Consumer
from mongoq.worker.run_context import RunContext
from mongoq.worker.signals import stop_on_signals

T = TypeVar("T")
_Work = Callable[[], None]


class DaemonThreads:
    """Runs functions in threads, one at a time in each. A thread is started when no idle one is left."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._closed = False

    async def run(self, function: Callable[[], T], is_over: Callable[[], bool]) -> T:
        """Run a function in a thread, in the caller's context, and return its result.

        A cancelled caller waits on, since the function goes on as well; once ``is_over``, the result is ignored.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        results: list[T] = []
        context = copy_context()

        def resolve(result: T) -> None:
            results.append(result)
            if not future.done():
                future.set_result(None)

        def work() -> None:
            result = context.run(function)
            try:
                loop.call_soon_threadsafe(resolve, result)
            except RuntimeError:  # the event loop has ended, so no caller waits
                pass

        if self._idle:
            thread = self._idle.pop()
        else:
            thread = SimpleQueue()
            threading.Thread(target=_serve, args=(thread,), name="mongoq-handler", daemon=True).start()
        thread.put(work)
        while not results:
            try:
                await future
            except BaseException as error:
                if is_over() or not isinstance(error, asyncio.CancelledError):
                    thread.put(None)  # the thread ends when the function does
                    raise
                future = loop.create_future()
        if self._closed:
            thread.put(None)
        else:
            self._idle.append(thread)
        return results[0]

    def close(self) -> None:
        """End the idle threads at once, and each busy thread when its function returns."""
        self._closed = True
        for thread in self._idle:
            thread.put(None)
        self._idle.clear()


def _serve(tasks: SimpleQueue[_Work | None]) -> None:
    while (work := tasks.get()) is not None:
        work()


class JobInThread:
    """Job of a plain function that runs in a thread of an asynchronous worker."""

    def __init__(self, job: Any, token: EventLoopToken) -> None:
        self._job = job
        self._token = token
        self.lost = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def extend(self, *, lease: Any = None) -> None:
        """Extend the lease to end this long from now; the command runs on the worker's event loop."""
        anyio.from_thread.run(partial(self._job.extend, lease=lease), token=self._token)


class ThreadExecutor:
    """Starts loops as daemon threads, and calls handlers. A handler that hangs does not keep the process alive.

    Attributes:
        context: context in which the worker was started; each call runs in a copy.
        loop: ``None``: there is no event loop.
    """

    asynchronous = False
    loop = None

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._threads: list[threading.Thread] = []
        self._runners: set[threading.Thread] = set()
        self.context = RunContext.current()

    def start(self, work: Callable[[], None], name: str, *, calls_handlers: bool = False) -> None:
        """Run a loop in its own thread; its error ends the worker. ``abandon`` leaves loops that ``calls_handlers``."""
        thread = threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        if calls_handlers:
            self._runners.add(thread)

    def abandon(self) -> None:
        """Stop waiting for the threads that call handlers: Python cannot end a thread."""
        self._threads = [thread for thread in self._threads if thread not in self._runners]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._on_failure(error)

    def set_event(self, event: WakeEvent) -> None:
        event.set()

    def signals(self, stop: Callable[[], None], *, wanted: bool) -> AbstractContextManager[None]:
        return stop_on_signals(stop, signals=wanted)

    def cancel(self, run: HandlerCall) -> None:
        """Do nothing: a thread cannot be cancelled."""

    def rest(self, event: WakeEvent, seconds: float) -> None:
        """Wait until the event is set, at most ``seconds``, and clear it."""
        rest(event, seconds)
        event.was_set = False

    def shield(self, work: Callable[[], None]) -> None:
        work()

    def call(self, consumer: Consumer, run: HandlerCall, payload: Any) -> Any:
        run.where = threading.get_ident()
        arguments = (payload,) if run.job is None else (payload, run.job)
        try:
            return run.context.call(consumer.handler, *arguments)
        finally:
            run.ended = True

    def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` for all threads to end; threads that still run are left behind."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class AioExecutor:
    """Starts loops as tasks, and calls handlers.

    Attributes:
        context: context in which the worker was started; each call runs in a copy.
        loop: event loop of the worker.
    """

    asynchronous = True

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._abandoned = self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._runners: set[asyncio.Task[None]] = set()
        self._threads = DaemonThreads()
        self.loop = asyncio.get_running_loop()
        self.context = RunContext.current()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str, *, calls_handlers: bool = False) -> None:
        """Run a loop in its own task; its error ends the worker. ``abandon`` cancels loops that ``calls_handlers``."""
        task = asyncio.create_task(self._guard(work), name=name)
        for tasks in (self._tasks, self._runners) if calls_handlers else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def start_again(task: asyncio.Task[None]) -> None:
            # The worker has not asked for this cancellation: a handler has left it behind, or the event loop is ending.
            # Then the loops that call no handlers are needed until ``close``: they give back the items.
            if task.cancelled() and not (self._abandoned if calls_handlers else self._closing):
                self.start(work, name, calls_handlers=calls_handlers)

        task.add_done_callback(start_again)

    def abandon(self) -> None:
        """Cancel the tasks that call handlers."""
        self._abandoned = True
        for task in self._runners:
            task.cancel()

    async def _guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._on_failure(error)

    def set_event(self, event: WakeEvent) -> None:
        """Set a wake event from any thread."""
        self.loop.call_soon_threadsafe(event.set)

    def signals(self, stop: Callable[[], None], *, wanted: bool) -> AbstractContextManager[None]:
        """Call ``stop`` on SIGTERM and SIGINT for the length of a block; only on the main thread."""
        return stop_on_signals(lambda: self.loop.call_soon_threadsafe(stop), signals=wanted)

    def cancel(self, run: HandlerCall) -> None:
        """Cancel the call of a coroutine function; a plain function in a thread cannot be cancelled."""
        if isinstance(run.where, asyncio.Task):
            run.where.cancel()

    async def rest(self, event: WakeEvent, seconds: float) -> None:
        """Wait until the event is set, at most ``seconds``, and clear it."""
        await rest_aio(event, seconds)
        event.was_set = False

    async def shield(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work to its end, however often the caller is cancelled meanwhile; the caller is cancelled then."""
        task, cancelled = asyncio.create_task(work()), None
        with anyio.CancelScope(shield=True):  # a scope of anyio cancels again and again
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
        task.result()
        if cancelled is not None:
            raise cancelled

    async def call(self, consumer: Consumer, run: HandlerCall, payload: Any) -> Any:
        """Call the handler and return its result; a plain function runs in a thread."""
        if run.job is not None and not consumer.asynchronous:
            run.job = JobInThread(run.job, current_token())
        arguments = (payload,) if run.job is None else (payload, run.job)
        if consumer.asynchronous:
            run.where = asyncio.current_task()
            try:
                return await run.context.step(_await_handler(consumer.handler, arguments))
            finally:
                run.ended = True
                await self._clear_cancellation()

        def work() -> tuple[Any, BaseException | None]:
            run.where = threading.get_ident()
            try:
                return run.context.call(consumer.handler, *arguments), None
            except BaseException as error:  # a future cannot carry every exception to a task
                return None, error
            finally:
                run.ended = True

        returned, error = await self._threads.run(work, lambda: self._abandoned)
        if error is not None:
            raise error
        return returned

    async def _clear_cancellation(self) -> None:
        """Clear a cancellation that a handler has left behind: it would hit the next call in this task."""
        task = asyncio.current_task()
        assert task is not None
        if self._abandoned or not task.cancelling():
            return
        try:
            await asyncio.sleep(0)  # a cancellation that was requested and not delivered yet is raised here
        except asyncio.CancelledError:
            if self._abandoned:
                raise
        while task.cancelling():
            task.uncancel()

    async def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` for all tasks to end, then cancel the rest; tasks that resist are left behind.

        A caller that is cancelled meanwhile waits on: it leaves no task behind that would have ended in this time.
        """
        self._abandoned = self._closing = True
        self._threads.close()
        cancelled: asyncio.CancelledError | None = None
        # Tasks that are cancelled after their time get one more second to clean up.
        for patience in (seconds, 1.0):
            deadline = self.loop.time() + patience
            while self._tasks and (seconds_left := deadline - self.loop.time()) > 0:
                try:
                    await asyncio.wait(self._tasks, timeout=seconds_left)
                except asyncio.CancelledError as error:
                    cancelled = error
            for task in self._tasks:
                task.cancel()
        if cancelled is not None:
            raise cancelled


async def _await_handler(handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return await handler(*arguments)
