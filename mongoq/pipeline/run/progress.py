"""Progress of a run, source by source and stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mongoq.pipeline.graph.graph import Graph, Source, Stage
from mongoq.pipeline.graph.routes import pairs_queue, waiting_queue
from mongoq.pipeline.run.counts import PipelineCounts, SourceCounts, StageCounts
from mongoq.protocol.history.stats import QueueStats

__all__ = ["Progress", "SourceProgress", "StageProgress", "progress_of"]

COUNTED = ("moved", "done", "dropped", "screened", "retried", "dead")
"""Names of item outcomes in counts."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of a stage: items that this run has settled, and items in its queues, whichever process works on them.

    Attributes:
        stage: name of the stage.
        queues: queues that it takes items from.
        waiting: items in them that are ready, or whose leases are over.
        scheduled: items in them that wait for a date, such as that of their next run.
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
        depths = [stats[queue].counts for queue in _queues_of_stage(graph, stage) if queue in stats]
        stages[stage.name] = StageProgress(
            stage=stage.name,
            queues=stage.sources,
            # Expired items are ready for the next claim.
            waiting=sum(depth.ready + depth.expired for depth in depths),
            scheduled=sum(depth.scheduled for depth in depths),
            reserved=sum(depth.reserved for depth in depths),
            running=own.running,
            unpaired=_count_unpaired(graph, stage, stats),
            seconds=own.seconds,
            stopped=own.stopped,
            **{name: own.endings[name] for name in COUNTED},
        )
    queues = dict.fromkeys(graph.errors_of(stage) for stage in graph.own_stages)
    errors = {queue: stats[queue].counts.total if queue in stats else 0 for queue in queues if queue is not None}
    sources = {source.name: _of_source(source, counts) for source in graph.own_sources}
    return Progress(stages, errors, ended, sources, interrupted)


def _of_source(source: Source, counts: PipelineCounts) -> SourceProgress:
    told = counts.sources.get(source.name, SourceCounts())
    return SourceProgress(source.name, source.target, told.pushed, told.ended, told.stopped)


def _queues_of_stage(graph: Graph, stage: Stage) -> tuple[str, ...]:
    return stage.sources if stage.join is None else (*stage.sources, pairs_queue(graph, stage))


def _count_unpaired(graph: Graph, stage: Stage, stats: Mapping[str, QueueStats]) -> int:
    queue = waiting_queue(graph, stage)
    return stats[queue].counts.total if stage.join is not None and queue in stats else 0
