"""A source: a pure description of what makes items from elsewhere, and where they go."""

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
    """One source, as it was told; nothing is checked before the graph is.

    Attributes:
        name: unique within the pipeline; the handler's unless told.
        target: the queue that it pushes to.
        handler: a generator function, called with the position that was stored last.
        batch: how many records are pushed in one transaction, at most.
        every: how long after its end it is called again; ``None``: it is not.
        lease: how long it stays with a process that has died.
    """

    name: Any
    target: Any
    handler: Callable[..., Any]
    batch: int = BATCH
    every: Duration | None = None
    lease: Duration = LEASE
