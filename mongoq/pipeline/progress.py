"""How far a run has come, source by source and stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mongoq.pipeline.graph import Graph
from mongoq.pipeline.stage import Stage
from mongoq.pipeline.waiting import pairs_queue, parked_queue
from mongoq.protocol.stats import QueueStats

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


def progress_of(graph: Graph, engine: Any, stats: Mapping[str, QueueStats], *, ended: bool) -> Progress:
    """Put together what the stations and feeds of an engine have counted, and what is in the queues."""
    stages = {}
    for stage in graph.stages:
        own = [station for station in engine.stations if station.consumer.stage == stage.name]
        depths = [stats[queue].counts for queue in _worked_off(graph, stage) if queue in stats]
        counted = {name: sum(station.tally.endings[name] for station in own) for name in COUNTED}
        counted["dead"] += sum(station.context.unfit for station in own)
        stages[stage.name] = StageProgress(
            stage=stage.name,
            queues=stage.sources,
            waiting=sum(depth.ready + depth.expired for depth in depths),
            scheduled=sum(depth.scheduled for depth in depths),
            reserved=sum(depth.reserved for depth in depths),
            running=sum(len(station.backlog.running) for station in own),
            unpaired=_unpaired(graph, stage, stats),
            seconds=_seconds(own),
            stopped=any(station.halted is not None for station in own),
            **counted,
        )
    queues = dict.fromkeys(graph.errors_of(stage) for stage in graph.stages)
    errors = {queue: stats[queue].counts.total if queue in stats else 0 for queue in queues if queue is not None}
    sources = {feed.plan.name: _of_feed(feed) for feed in engine.feeds}
    return Progress(stages, errors, ended, sources, engine.interrupted)


def _of_feed(feed: Any) -> SourceProgress:
    return SourceProgress(feed.plan.name, feed.plan.queue.name, feed.pushed, feed.ended, feed.failure is not None)


def _worked_off(graph: Graph, stage: Stage) -> tuple[str, ...]:
    return stage.sources if stage.join is None else (*stage.sources, pairs_queue(graph, stage))


def _unpaired(graph: Graph, stage: Stage, stats: Mapping[str, QueueStats]) -> int:
    queue = parked_queue(graph, stage)
    return stats[queue].counts.total if stage.join is not None and queue in stats else 0


def _seconds(stations: Sequence[Any]) -> float:
    tallies = [station.tally for station in stations if station.tally.first is not None]
    if not tallies:
        return 0.0
    began, ended = min(tally.first for tally in tallies), max(tally.last for tally in tallies)
    return float(ended - began)
