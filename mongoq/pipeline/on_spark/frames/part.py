"""A frame stage at one of its queues, as its tasks need it; it is sent to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import quote

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.on_spark.serialization import absent
from mongoq.spark.raw_options import Location

__all__ = ["FramePart", "consumer_of", "path_of"]

LONGEST = 120
"""Bytes of a consumer's name, at most."""
DIGITS = 16


def consumer_of(graph: Graph, stage: Stage, source: str) -> str:
    """Return the name under which a frame stage reads one of its queues: ``PIPELINE/STAGE/QUEUE``.

    A name that is too long is cut. A cut name, and a name that another stage might have as well, gets a hash.
    """
    parts = [str(graph.name), str(stage.name), source]
    name = "/".join(parts)
    if len(name.encode()) <= LONGEST and not any("/" in part for part in parts):
        return name
    # The hash is of the parts, so that a slash in one of them does not make two stages equal.
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]
    return f"{name.encode()[: LONGEST - DIGITS - 1].decode(errors='ignore')}~{digest}"


def path_of(checkpoint: str | None, graph: Graph, stage: Stage, source: str) -> str:
    """Return the folder of a frame stage at one of its queues, below the folder of the run.

    Raises:
        ArgumentInvalid: the run has no folder.
    """
    if checkpoint is None:
        needed = (
            f"stage {stage.name!r} takes frames, and needs a folder that Spark can write to, the same at each start"
        )
        raise ArgumentInvalid("checkpoint", needed)
    return f"{checkpoint.rstrip('/')}/{quote(consumer_of(graph, stage, source), safe='')}"


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
