"""Names of the queries of a pipeline, under which they hold items."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.stage import Stage

__all__ = ["consumer_of", "path_of"]

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
