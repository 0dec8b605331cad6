"""Progress of a run: counts of its stages and sources, the contents of their queues, and a table for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from mongoq.pipeline.graph.graph import Graph
from mongoq.protocol.history.counters import QueueStats

if TYPE_CHECKING:
    from mongoq.pipeline.run.run import AsyncRun, Run

COUNTED_OUTCOMES = ("moved", "done", "dropped", "screened", "retried", "dead")
"""Names of item outcomes in counts."""
UPDATE_SECONDS = 0.25
"""Seconds between two updates."""
COLUMNS = ("stage", "waiting", "running", "settled", "a second", "retried", "errors")


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Counts of a stage.

    Attributes:
        endings: items by how they were settled.
        running: number of handler calls under way.
        first: time when its first item was settled, in seconds of one clock; ``None`` before.
        last: time when its last item was settled; ``None`` before.
        stopped: True when the stage has stopped by itself.
    """

    endings: Counter[str] = field(default_factory=Counter)
    running: int = 0
    first: float | None = None
    last: float | None = None
    stopped: bool = False

    @property
    def seconds(self) -> float:
        """Seconds from the first settled item to the last."""
        return 0.0 if self.first is None or self.last is None else self.last - self.first

    def __add__(self, other: StageCounts) -> StageCounts:
        firsts = [first for first in (self.first, other.first) if first is not None]
        lasts = [last for last in (self.last, other.last) if last is not None]
        return StageCounts(
            self.endings + other.endings,
            self.running + other.running,
            min(firsts, default=None),
            max(lasts, default=None),
            self.stopped or other.stopped,
        )


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Counts of a source: records pushed; True when it has come to its end, or has stopped by itself."""

    pushed: int = 0
    ended: bool = False
    stopped: bool = False

    def __add__(self, other: SourceCounts) -> SourceCounts:
        return SourceCounts(self.pushed + other.pushed, self.ended or other.ended, self.stopped or other.stopped)


@dataclass(frozen=True, slots=True)
class PipelineCounts:
    """Counts of all stages and sources, by name."""

    stages: dict[str, StageCounts] = field(default_factory=dict)
    sources: dict[str, SourceCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Any, *, ahead: float = 0.0) -> Self:
        """Return the counts of an engine's consumer loops and source runners.

        Their times are those of a clock that is ``ahead`` seconds ahead of the monotonic one.
        """
        counts = cls()
        for loop in engine.loops:
            endings = Counter(loop.counts.endings) + Counter(dead=loop.context.unfit)
            first, last = (None if time is None else time + ahead for time in (loop.counts.first, loop.counts.last))
            own = StageCounts(endings, len(loop.backlog.running), first, last, loop.halted is not None)
            name = loop.consumer.stage
            counts.stages[name] = counts.stages.get(name, StageCounts()) + own
        for runner in engine.source_runners:
            counts.sources[runner.plan.name] = SourceCounts(runner.pushed, runner.ended, runner.failure is not None)
        return counts

    @classmethod
    def sum(cls, parts: Iterable[PipelineCounts]) -> Self:
        """Return the sum of several counts."""
        whole = cls()
        for part in parts:
            for name, stage in part.stages.items():
                whole.stages[name] = whole.stages.get(name, StageCounts()) + stage
            for name, source in part.sources.items():
                whole.sources[name] = whole.sources.get(name, SourceCounts()) + source
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
    graph: Graph, counts: PipelineCounts, stats: Mapping[str, QueueStats], *, ended: bool, interrupted: bool
) -> Progress:
    """Combine the counts of a run and the statistics of its queues."""
    stages = {}
    for stage in graph.own_stages:
        own = counts.stages.get(stage.name, StageCounts())
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
            seconds=own.seconds,
            stopped=own.stopped,
            **{name: own.endings[name] for name in COUNTED_OUTCOMES},
        )
    queues = dict.fromkeys(graph.errors_of(stage) for stage in graph.own_stages)
    errors = {queue: stats[queue].counts.total if queue in stats else 0 for queue in queues if queue is not None}
    sources = {}
    for source in graph.own_sources:
        read = counts.sources.get(source.name, SourceCounts())
        sources[source.name] = SourceProgress(source.name, source.target, read.pushed, read.ended, read.stopped)
    return Progress(stages, errors, ended, sources, interrupted)


def show_progress(title: str, run: Run) -> None:
    """Show the table until the run ends."""
    with _live() as live:
        ended = False
        while not ended:
            ended = run.wait(UPDATE_SECONDS)
            live.update(table(title, run.progress()))


async def show_progress_async(title: str, run: AsyncRun) -> None:
    """Show the table until the run ends."""
    with _live() as live:
        ended = False
        while not ended:
            ended = await run.wait(UPDATE_SECONDS)
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
