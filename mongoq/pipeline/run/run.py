"""Runs of a pipeline: its stages at work, in threads or tasks of this process, and their progress."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from mongoq import QueueStats
from mongoq.aio import AsyncBroker
from mongoq.data.arguments import Duration, wait_seconds
from mongoq.data.process import Health, Local
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.run.consumers import find_transactional, make_engine
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
        self._engine: Engine = make_engine(Engine, graph, broker, grace=grace, heartbeat=heartbeat)
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
        depths, ended = self._broker.stats(), self.ended
        counts = count_parts(self._engine)  # after ``ended``: the counts of an ended run must be final
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

    def __init__(self, graph: Graph, broker: AsyncBroker, engine: AsyncEngine, work: Coroutine[Any, Any, None]) -> None:
        self._graph = graph
        self._broker = broker
        self._engine = engine
        self._told = False
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
        return cls(graph, broker, engine, engine.run(drain=drain, signals=signals))

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
        counts = count_parts(self._engine)  # after ``ended``: the counts of an ended run must be final
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


# --- progress ------------------------------------------------------------------------------------

COUNTED_OUTCOMES = ("moved", "done", "dropped", "screened", "retried", "dead")
"""Names of item outcomes in counts."""
UPDATE_SECONDS = 0.25
"""Seconds between two updates."""
COLUMNS = ("stage", "waiting", "running", "settled", "a second", "retried", "errors")


@dataclass(frozen=True, slots=True)
class PartCounts:
    """Counts of a stage or a source.

    Attributes:
        endings: items by how they were settled; of a source its records, as ``pushed``.
        running: number of handler calls under way.
        first: time when its first item was settled, in seconds of one clock; ``None`` before.
        last: time when its last item was settled; ``None`` before.
        ended: True when a source has come to its end.
        stopped: True when it has stopped by itself.
    """

    endings: Counter[str] = field(default_factory=Counter)
    running: int = 0
    first: float | None = None
    last: float | None = None
    ended: bool = False
    stopped: bool = False

    def __add__(self, other: PartCounts) -> PartCounts:
        return PartCounts(
            self.endings + other.endings,
            self.running + other.running,
            min((first for first in (self.first, other.first) if first is not None), default=None),
            max((last for last in (self.last, other.last) if last is not None), default=None),
            self.ended or other.ended,
            self.stopped or other.stopped,
        )


Counts = dict[str, PartCounts]
"""Counts of all stages and sources of a run, by name; a stage and a source never have the same name."""


def count_parts(engine: Any, *, ahead: float = 0.0) -> Counts:
    """Return the counts of an engine's consumer loops and source runners.

    Their times are those of a clock that is ``ahead`` seconds ahead of the monotonic one.
    """
    parts: list[Counts] = []
    for loop in engine.loops:
        endings = Counter(loop.counts.endings) + Counter(dead=loop.context.unfit)
        first, last = (None if time is None else time + ahead for time in (loop.counts.first, loop.counts.last))
        part = PartCounts(endings, len(loop.backlog.running), first, last, stopped=loop.halted is not None)
        parts.append({loop.consumer.stage: part})
    for runner in engine.source_runners:
        part = PartCounts(Counter(pushed=runner.pushed), ended=runner.ended, stopped=runner.failure is not None)
        parts.append({runner.plan.name: part})
    return sum_counts(parts)


def sum_counts(several: Iterable[Counts]) -> Counts:
    """Return the sum of several counts."""
    whole: Counts = {}
    for counts in several:
        for name, part in counts.items():
            whole[name] = whole.get(name, PartCounts()) + part
    return whole


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of a stage: items that this run has settled, and items in its queues, whichever process works on them.

    Attributes:
        stage: name of the stage.
        queues: queues that it takes items from.
        waiting: items in them that are ready, or whose leases are over.
        scheduled: items in them that wait for a date, such as that of their next run.
        blocked: items in them that wait for the ones before them in their sequences.
        reserved: items in them that a worker has reserved.
        running: handler calls under way in this run of the pipeline.
        unpaired: items of a join that wait for their partners.
        moved: items that went on to another queue.
        done: items whose way has ended here.
        dropped: items that the handler dropped.
        screened: items that did not match ``where``, and were settled by ``otherwise``.
        retried: failed runs after which the item comes again.
        dead: items that went to the error queue, including items that could not be given to the handler. At most once
            and without an error queue, these items were lost.
        seconds: time from its first settled item to its last.
        stopped: True when it has stopped by itself, at an item that has failed for good.
    """

    stage: str
    queues: tuple[str, ...]
    waiting: int = 0
    scheduled: int = 0
    blocked: int = 0
    reserved: int = 0
    running: int = 0
    unpaired: int = 0
    moved: int = 0
    done: int = 0
    dropped: int = 0
    screened: int = 0
    retried: int = 0
    dead: int = 0
    seconds: float = 0.0
    stopped: bool = False

    @property
    def settled(self) -> int:
        """Number of items that have left the stage."""
        return self.moved + self.done + self.dropped + self.screened + self.dead

    @property
    def per_second(self) -> float:
        """Items that left the stage per second; 0 until two items were settled at different times."""
        return self.settled / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of a source in this run.

    Attributes:
        source: name of the source.
        queue: queue that it pushes to.
        pushed: number of records that this run has pushed.
        ended: True when it has come to its end, and is not called again in this run.
        stopped: True when it has stopped by itself: it raised an error, or yielded a record that cannot be pushed.
    """

    source: str
    queue: str
    pushed: int = 0
    ended: bool = False
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run.

    Attributes:
        stages: by name, in the order of their declaration.
        errors: number of items in each error queue, by the queue's name; up to a second old.
        ended: True when the run has ended.
        sources: by name, in the order of their declaration.
        interrupted: True when the run was stopped by SIGTERM, Ctrl-C or ``stop()``; after an interrupted drain, items
            may be left.
    """

    stages: Mapping[str, StageProgress]
    errors: Mapping[str, int]
    ended: bool
    sources: Mapping[str, SourceProgress] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def settled(self) -> int:
        """Number of items that have left a stage, counted once for each stage."""
        return sum(stage.settled for stage in self.stages.values())


def progress_of(
    graph: Graph, counts: Counts, stats: Mapping[str, QueueStats], *, ended: bool, interrupted: bool
) -> Progress:
    """Combine the counts of a run and the statistics of its queues."""
    stages = {}
    for stage in graph.own_stages:
        own = counts.get(stage.name, PartCounts())
        owned = stage.sources if stage.join is None else (*stage.sources, graph.pairs_queue(stage))
        depths = [stats[queue].counts for queue in owned if queue in stats]
        parked = None if stage.join is None else stats.get(graph.waiting_queue(stage))
        stages[stage.name] = StageProgress(
            stage=stage.name,
            queues=stage.sources,
            # Expired items are ready for the next claim.
            waiting=sum(depth.ready + depth.expired for depth in depths),
            scheduled=sum(depth.scheduled for depth in depths),
            blocked=sum(depth.blocked for depth in depths),
            reserved=sum(depth.reserved for depth in depths),
            running=own.running,
            unpaired=0 if parked is None else parked.counts.total,
            seconds=0.0 if own.first is None or own.last is None else own.last - own.first,
            stopped=own.stopped,
            **{name: own.endings[name] for name in COUNTED_OUTCOMES},
        )
    queues = dict.fromkeys(graph.errors_of(stage) for stage in graph.own_stages)
    errors = {queue: stats[queue].counts.total if queue in stats else 0 for queue in queues if queue is not None}
    sources = {}
    for source in graph.own_sources:
        own = counts.get(source.name, PartCounts())
        progress = SourceProgress(source.name, source.target, own.endings["pushed"], own.ended, own.stopped)
        sources[source.name] = progress
    return Progress(stages, errors, ended, sources, interrupted)


def show_progress(title: str, run: Run) -> None:
    """Show the table until the run ends."""
    with _live() as live:
        while not run.wait(UPDATE_SECONDS):
            live.update(table(title, run.progress()))
        live.update(table(title, run.progress()))


async def show_progress_async(title: str, run: AsyncRun) -> None:
    """Show the table until the run ends."""
    with _live() as live:
        while not await run.wait(UPDATE_SECONDS):
            live.update(table(title, await run.progress()))
        live.update(table(title, await run.progress()))


def _live() -> Any:
    try:
        # Optional package, imported only for progress=True.
        from rich.live import Live
    except ModuleNotFoundError as error:
        hint = "progress=True needs rich: install mongoq-driver[progress] (pip install '.[progress]')"
        raise ModuleNotFoundError(hint, name="rich") from error
    return Live(refresh_per_second=4)


def table(title: str, progress: Progress) -> Any:
    """Return a table with a row for each source and each stage."""
    from rich.markup import escape
    from rich.table import Table

    view = Table(title=escape(title))
    for place, column in enumerate(COLUMNS):
        view.add_column(column, justify="right" if place else "left")
    for source in progress.sources.values():
        state = " (stopped)" if source.stopped else " (ended)" if source.ended else ""
        view.add_row(escape(source.source) + state, "", "", f"{source.pushed:,}", "", "", "")
    for stage in progress.stages.values():
        # Reserved items include the running ones, which have a column of their own.
        waiting = stage.waiting + stage.scheduled + stage.blocked + stage.reserved - stage.running
        numbers = max(waiting, 0), stage.running, stage.settled, round(stage.per_second), stage.retried, stage.dead
        view.add_row(
            escape(stage.stage) + (" (stopped)" if stage.stopped else ""), *(f"{number:,}" for number in numbers)
        )
    return view
