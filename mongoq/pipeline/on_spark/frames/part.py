"""A frame stage at one of its queues, as its tasks need it; it is sent to them."""

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
    """A frame stage at one of its queues. Its function stays on the driver, because it may hold unpicklable objects.

    Attributes:
        place: location of the queues.
        graph: the pipeline with this stage alone, without its function.
        source: name of the queue.
        consumer: name under which the queue is read.
        path: folder of the outcomes of a batch's items.
    """

    place: Location
    graph: Graph
    source: str
    consumer: str
    path: str

    @classmethod
    def of(cls, place: Location, graph: Graph, stage: Stage, source: str, *, path: str) -> Self:
        """Return the part, without the objects that stay on the driver."""
        bare = replace(stage, handler=absent, frame=None)
        lone = replace(graph, stages=(bare,), sources=(), inputs=None, outputs=())
        return cls(place, lone, source, consumer_of(graph, stage, source), path)

    @property
    def stage(self) -> Stage:
        """The stage, without its function."""
        return self.graph.stages[0]

    @property
    def name(self) -> str:
        """Name of the stage."""
        return str(self.stage.name)
