"""Counts of the stages and sources of a run: of one process, or summed over several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

__all__ = ["PipelineCounts", "SourceCounts", "StageCounts"]


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
    def of(cls, engine: Any) -> Self:
        """Return the counts of an engine's consumer loops and source runners; times are on the monotonic clock."""
        told = cls()
        for station in engine.loops:
            name = station.consumer.stage
            told.stages[name] = told.stages.get(name, StageCounts()) + _of_station(station)
        for feed in engine.source_runners:
            told.sources[feed.plan.name] = SourceCounts(feed.pushed, feed.ended, feed.failure is not None)
        return told

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

    def later(self, seconds: float) -> PipelineCounts:
        """Return the same counts with times on a clock that is ``seconds`` ahead."""
        stages = {
            name: replace(one, first=one.first + seconds, last=one.last + seconds)
            if one.first is not None and one.last is not None
            else one
            for name, one in self.stages.items()
        }
        return PipelineCounts(stages, dict(self.sources))


def _of_station(station: Any) -> StageCounts:
    endings, unfit = Counter(station.counts.endings), station.context.unfit
    if unfit:
        endings["dead"] += unfit
    return StageCounts(
        endings,
        len(station.backlog.running),
        station.counts.first,
        station.counts.last,
        station.halted is not None,
    )
