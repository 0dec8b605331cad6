"""A frame stage at one of its queues: all that its tasks have to know, and may travel to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.stage import Stage
from mongoq.pipeline.on_spark.naming import consumer_of
from mongoq.pipeline.on_spark.serialization import absent
from mongoq.spark.raw_options import Location

__all__ = ["FramePart"]


@dataclass(frozen=True, slots=True, eq=False)
class FramePart:
    """A frame stage at one of its queues. Its function stays on the driver: it may hold what cannot travel.

    Attributes:
        place: where the queues are.
        graph: the pipeline, of which the stage alone is left, without its function.
        source: the queue.
        consumer: the name under which it is read.
        path: where what is to become of the items of a batch is written.
    """

    place: Location
    graph: Graph
    source: str
    consumer: str
    path: str

    @classmethod
    def of(cls, place: Location, graph: Graph, stage: Stage, source: str, *, path: str) -> Self:
        """Return it, without what stays on the driver."""
        bare = replace(stage, handler=absent, frame=None)
        lone = replace(graph, stages=(bare,), sources=(), inputs=None, outputs=())
        return cls(place, lone, source, consumer_of(graph, stage, source), path)

    @property
    def stage(self) -> Stage:
        """The stage, without its function."""
        return self.graph.stages[0]

    @property
    def name(self) -> str:
        """The stage's name."""
        return str(self.stage.name)
