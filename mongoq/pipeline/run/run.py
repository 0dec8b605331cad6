"""Runs of a pipeline: its stages at work, in threads or tasks of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from mongoq.aio import AsyncBroker
from mongoq.model.arguments import Duration, wait_seconds
from mongoq.model.health import Health
from mongoq.model.process import Local
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.run.consumers import find_transactional, make_engine
from mongoq.pipeline.run.progress import PipelineCounts, Progress, progress_of
from mongoq.protocol_threads.history.counters import stats
from mongoq.sync import Broker
from mongoq.worker.aio.engine import AsyncEngine
from mongoq.worker.signals import stop_on_signals
from mongoq.worker.threads.engine import Engine

SIGNAL_CHECK_SECONDS = 0.1
"""Seconds between two checks for a signal, while a caller waits for the run."""
OTHER_PROCESS_HINT = (
    "it belongs to the process that started it; another one makes the pipeline and a broker of its own, and starts that"
)


class ThreadedRun(Local):
    """Base of runs that work in a thread of this process: start, wait, stop."""

    _elsewhere = OTHER_PROCESS_HINT

    def __init__(self, name: str, *, signals: bool = True) -> None:
        self._name = name
        self._signals = signals
        self._failure: BaseException | None = None
        self._told = False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        """Return the pipeline's name and the state of the run, as text."""
        return f"<{type(self).__name__} of {self._name!r}, {'ended' if self.ended else 'at work'}>"

    def _begin(self, work: Callable[[], None]) -> None:
        """Start the thread; ``wait`` raises the error that ends it."""

        def kept() -> None:
            try:
                work()
            # Kept for wait, in the caller's thread: an error in this thread would only be printed.
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=kept, name=f"mongoq-{self._name}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True when the run has come to its end."""
        return self._thread is not None and not self._thread.is_alive()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the end of the run, and return whether it has ended: stopped, or, when draining, with nothing left.

        In the main thread SIGTERM and SIGINT stop the run in good order meanwhile, as they stop a worker, unless it was
        started with ``signals=False``.

        Args:
            timeout: longest wait, a ``timedelta`` or seconds; ``None`` for no limit.

        Raises:
            StageStopped: a stage has stopped by itself, and the run has ended; the other stages go on until the run is
                stopped, or, when draining, until nothing is left.
            ArgumentInvalid: ``timeout`` is no duration.

        Other errors are those that end a worker.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + wait_seconds(timeout)
        with stop_on_signals(self._hear, signals=self._signals):
            while self._thread is not None and not self.ended:
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    return False
                # Short joins: a signal handler runs only between them, in the main thread.
                self._thread.join(min(SIGNAL_CHECK_SECONDS, seconds_left))
        if self._failure is not None:
            self._told = True
            raise self._failure
        return True

    def stop(self) -> None:
        """Ask the run to end."""
        raise NotImplementedError

    def _hear(self) -> None:
        """Ask the run to end, on a signal."""
        self.stop()

    def __enter__(self) -> Self:
        """Enter the block of ``with``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end; raises the run's error unless ``wait`` or the block has raised one before."""
        was_reported = self._told
        self.stop()
        try:
            self.wait()
        except BaseException as ended:
            if error is None and not (was_reported and ended is self._failure):
                raise


class Run(ThreadedRun):
    """A pipeline at work in threads of this process, made by ``pipeline.start``.

    ```python
    with pipeline.start(broker) as run:
        run.wait()
    ```

    At the end of the block the run is stopped in good order, and the block waits for its end.
    """

    def __init__(
        self, graph: Graph, broker: Broker, *, grace: timedelta, heartbeat: timedelta, signals: bool = True
    ) -> None:
        super().__init__(graph.name, signals=signals)
        self._graph = graph
        self._broker = broker
        self._engine: Engine
        self._engine = make_engine(Engine, graph, broker, grace=grace, heartbeat=heartbeat)
        # In the caller's thread, so that start raises errors of the server, and not the first wait.
        self._engine.prepare(find_transactional(graph))

    def _start(self, *, drain: bool) -> Self:
        """Start the run; called once, by the method that made it."""
        self._begin(partial(self._engine.run, drain=drain))
        return self

    def _hear(self) -> None:
        self._engine.hear()

    def stop(self) -> None:
        """Claim no more items, release waiting items, and end when the running calls have ended; does not wait.

        A second call releases the items of running calls as well.
        """
        self._engine.stop()

    def health(self) -> Health:
        """Return whether the run consumes, as ``Worker.health`` does; from any thread."""
        return self._engine.health()

    def progress(self) -> Progress:
        """Return the progress: the run's own counts, and the contents of the queues (``aggregate``).

        The figures are at most a second old.
        """
        if self.ended:
            self._broker._context.stats = None  # the final figures must not come from the cache
        depths, ended = self._broker._run(stats), self.ended
        counts = PipelineCounts.of(self._engine)  # after ``ended``: the counts of an ended run must be final
        return progress_of(self._graph, counts, depths, ended=ended, interrupted=self._engine.interrupted)


class AsyncRun(Local):
    """A pipeline at work in tasks of this event loop, made by ``pipeline.start_async``.

    ```python
    async with pipeline.start_async(broker) as run:
        await run.wait()
    ```

    At the end of the block the run is stopped in good order, and the block waits for its end.
    """

    _elsewhere = OTHER_PROCESS_HINT

    def __init__(
        self, graph: Graph, broker: AsyncBroker, engine: AsyncEngine, *, drain: bool, signals: bool = True
    ) -> None:
        self._graph = graph
        self._broker = broker
        self._engine = engine
        self._told = False
        work = engine.run(drain=drain, signals=signals)
        self._task = asyncio.create_task(work, name=f"mongoq-{graph.name}")

    @classmethod
    async def start(
        cls,
        graph: Graph,
        broker: AsyncBroker,
        *,
        drain: bool,
        grace: timedelta,
        heartbeat: timedelta,
        signals: bool = True,
    ) -> Self:
        """Check the server, waiting for one that does not answer, and begin."""
        # Here and not in __init__, because the checks of the server have to be awaited.
        engine = make_engine(AsyncEngine, graph, broker, grace=grace, heartbeat=heartbeat)
        await engine.prepare(find_transactional(graph))
        return cls(graph, broker, engine, drain=drain, signals=signals)

    def __repr__(self) -> str:
        """Return the pipeline's name and the state of the run, as text."""
        return f"<{type(self).__name__} of {self._graph.name!r}, {'ended' if self.ended else 'at work'}>"

    @property
    def ended(self) -> bool:
        """True when the run has come to its end."""
        return self._task.done()

    async def wait(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 - it goes on afterwards
        """Wait for the end of the run, and return whether it has ended, as ``Run.wait`` does."""
        seconds = None if timeout is None else wait_seconds(timeout)
        # asyncio.wait, because wait_for would cancel the run at the timeout.
        await asyncio.wait([self._task], timeout=seconds)
        if not self.ended:
            return False
        self._told = True
        self._task.result()
        return True

    def stop(self) -> None:
        """Ask the run to end, as ``Run.stop`` does."""
        self._engine.stop()

    def health(self) -> Health:
        """Return whether the run consumes, as ``Worker.health`` does; from any thread."""
        return self._engine.health()

    async def progress(self) -> Progress:
        """Return the progress, as ``Run.progress`` does."""
        if self.ended:
            self._broker._context.stats = None  # the final figures must not come from the cache
        depths, ended = await self._broker.stats(), self.ended
        counts = PipelineCounts.of(self._engine)  # after ``ended``: the counts of an ended run must be final
        return progress_of(self._graph, counts, depths, ended=ended, interrupted=self._engine.interrupted)

    async def __aenter__(self) -> Self:
        """Enter the block of ``async with``."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end; raises the run's error unless ``wait`` or the block has raised one before."""
        was_reported = self._told
        self.stop()
        try:
            await self.wait()
        except asyncio.CancelledError:
            self._task.cancel()  # releases its items; a task that is left behind would go on with a closed broker
            await asyncio.wait([self._task])
            raise
        except Exception:
            if error is None and not was_reported:
                raise


class StartingAsync:
    """A pipeline about to start: ``await`` it, or use it as ``async with``."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, AsyncRun]]) -> None:
        self._start = start
        self._run: AsyncRun | None = None

    def __await__(self) -> Generator[Any, None, AsyncRun]:
        """Start the run."""
        return self._start().__await__()

    async def __aenter__(self) -> AsyncRun:
        """Start the run; it is stopped at the end of the block."""
        self._run = await self._start()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the run, and wait for its end."""
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)
