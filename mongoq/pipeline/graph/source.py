"""A source as plain data: the generator that makes items, and the queue that they go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mongoq.model.arguments import Duration

__all__ = ["BATCH", "LEASE", "Source"]

BATCH = 1_000
LEASE = 30


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One source as it was declared; values are checked with the graph.

    Attributes:
        name: unique within the pipeline; default the handler's name.
        target: queue that it pushes to.
        handler: generator function; called with the position that was stored last.
        batch: records of one transaction, at most.
        every: pause between two calls; ``None``: it is called once.
        lease: how long the source stays with a process that has died.
    """

    name: Any
    target: Any
    handler: Callable[..., Any]
    batch: int = BATCH
    every: Duration | None = None
    lease: Duration = LEASE
