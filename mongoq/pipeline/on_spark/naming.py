"""What the queries of a pipeline are called where they hold items."""

from __future__ import annotations

import hashlib

from mongoq.pipeline.graph import Graph
from mongoq.pipeline.stage import Stage

__all__ = ["consumer_of"]

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
