"""What the queries of a pipeline are called where they hold items."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.stage import Stage

__all__ = ["consumer_of", "path_of"]

LONGEST = 120
"""Bytes of the name of a consumer."""
DIGITS = 16


def consumer_of(graph: Graph, stage: Stage, source: str) -> str:
    """Return the name under which a stage on frames reads one of its queues: ``PIPELINE/STAGE/QUEUE``.

    One that is too long is cut, and one that another might have as well is not left at that: a hash tells them apart.
    """
    parts = [str(graph.name), str(stage.name), source]
    name = "/".join(parts)
    if len(name.encode()) <= LONGEST and not any("/" in part for part in parts):
        return name
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]
    return f"{name.encode()[: LONGEST - DIGITS - 1].decode(errors='ignore')}~{digest}"


def path_of(checkpoint: str | None, graph: Graph, stage: Stage, source: str) -> str:
    """Return the folder of a stage on frames at one of its queues, below that of the run.

    Raises:
        ArgumentInvalid: the run has none.
    """
    if checkpoint is None:
        needed = (
            f"stage {stage.name!r} takes frames, and needs a folder that Spark can write to, the same at each start"
        )
        raise ArgumentInvalid("checkpoint", needed)
    return f"{checkpoint.rstrip('/')}/{quote(consumer_of(graph, stage, source), safe='')}"
