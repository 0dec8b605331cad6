"""How far a run has come, source by source and stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.join_waiters import pairs_queue, parked_queue
from mongoq.pipeline.graph.source import Source
from mongoq.pipeline.graph.stage import Stage
from mongoq.pipeline.run.counts import PipelineCounts, SourceCounts, StageCounts
from mongoq.protocol.history.stats import QueueStats

__all__ = ["Progress", "SourceProgress", "StageProgress", "progress_of"]

COUNTED = ("moved", "done", "dropped", "screened", "retried", "dead")
"""What tallies call what became of an item."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage has come: what this run has settled, and what is in its queues, whoever works on it.

    Attributes:
        stage: its name.
        queues: those it takes items from.
        waiting: items in them that are ready, or whose leases are over.
        scheduled: items in them that wait for a date, such as that of their next run.
        reserved: items in them that somebody works on, or has reserved to do so.
        running: runs of the handler under way in this run of the pipeline.
        unpaired: items that wait for their partners, where it joins.
        moved: items that went on to another queue.
        done: items whose way has ended here.
        dropped: items that the handler dropped.
        screened: items that did not match ``where``, and were settled as ``otherwise`` says.
        retried: failed runs, after which the item comes again.
        dead: items that went to the error queue, those among them that could not be given to the handler; or, run at
            most once where there is none, were lost.
        seconds: since it settled its first item, until it settled its last.
        stopped: it has stopped by itself, at an item that has failed for good.
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
        """How many items have left the stage."""
        return self.moved + self.done + self.dropped + self.screened + self.dead

    @property
    def per_second(self) -> float:
        """How many items left it in a second; 0 before there were two moments."""
        return self.settled / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far a source has come in this run.

    Attributes:
        source: its name.
        queue: the one that it pushes to.
        pushed: how many records this run has pushed.
        ended: it has come to its end, and is not called again in this run.
        stopped: it has stopped by itself: it raised an error, or yielded what cannot be pushed.
    """

    source: str
    queue: str
    pushed: int = 0
    ended: bool = False
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        stages: by name, in the order in which they were declared.
        errors: how many items are in the error queues, by the queue's name; up to a second old.
        ended: the run has ended.
        sources: by name, in the order in which they were declared.
        interrupted: it was told to stop, by SIGTERM, Ctrl-C or ``stop()``; of a drain there may be something left.
    """

    stages: Mapping[str, StageProgress]
    errors: Mapping[str, int]
    ended: bool
    sources: Mapping[str, SourceProgress] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def settled(self) -> int:
        """How many items have left a stage, once for each stage."""
        return sum(stage.settled for stage in self.stages.values())


def progress_of(
    graph: Graph, tallies: PipelineCounts, stats: Mapping[str, QueueStats], *, ended: bool, interrupted: bool
) -> Progress:
    """Put together what a run has counted, and what is in the queues."""
    stages = {}
    for stage in graph.own_stages:
        own = tallies.stages.get(stage.name, StageCounts())
        depths = [stats[queue].counts for queue in _worked_off(graph, stage) if queue in stats]
        stages[stage.name] = StageProgress(
            stage=stage.name,
            queues=stage.sources,
            waiting=sum(depth.ready + depth.expired for depth in depths),
            scheduled=sum(depth.scheduled for depth in depths),
            reserved=sum(depth.reserved for depth in depths),
            running=own.running,
            unpaired=_unpaired(graph, stage, stats),
            seconds=own.seconds,
            stopped=own.stopped,
            **{name: own.endings[name] for name in COUNTED},
        )
    queues = dict.fromkeys(graph.errors_of(stage) for stage in graph.own_stages)
    errors = {queue: stats[queue].counts.total if queue in stats else 0 for queue in queues if queue is not None}
    sources = {source.name: _of_source(source, tallies) for source in graph.own_sources}
    return Progress(stages, errors, ended, sources, interrupted)


def _of_source(source: Source, tallies: PipelineCounts) -> SourceProgress:
    told = tallies.sources.get(source.name, SourceCounts())
    return SourceProgress(source.name, source.target, told.pushed, told.ended, told.stopped)


def _worked_off(graph: Graph, stage: Stage) -> tuple[str, ...]:
    return stage.sources if stage.join is None else (*stage.sources, pairs_queue(graph, stage))


def _unpaired(graph: Graph, stage: Stage, stats: Mapping[str, QueueStats]) -> int:
    queue = parked_queue(graph, stage)
    return stats[queue].counts.total if stage.join is not None and queue in stats else 0
