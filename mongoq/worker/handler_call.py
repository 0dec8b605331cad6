"""Calls of handlers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from mongoq.data.item import Item
from mongoq.data.outcomes import ResolvedOutcome


@dataclass(slots=True, eq=False, repr=False)
class HandlerCall:
    """One call of a handler.

    Attributes:
        items: items of the call; one, unless the consumer takes batches.
        started: start time on the monotonic clock.
        context: context that the handler runs in; set right before the call.
        where: thread id or task that runs the handler; set by the executor.
        job: job passed to the handler; ``None`` if the handler takes none.
        lost: ids (``id_key``) of items that another worker has by now; set by the backlog.
        pops: True once the item leaves its queue for good: its absence from the queue is no loss then.
        abandoned: True after the worker has released the items and no longer waits for the call.
        reports: number of log lines about the time that it takes.
        timed_out: True after ``max_time`` when the consumer gives such calls up; their leases are not extended.
    """

    items: list[Item[Any]]
    started: float
    context: Any = None
    where: Any = None
    job: Any = None
    lost: set[Any] = field(default_factory=set)
    pops: bool = False
    abandoned: bool = False
    reports: int = 0
    timed_out: bool = False

    @property
    def outcomes(self) -> list[ResolvedOutcome] | None:
        """Outcomes that were found inside of hooks; ``None`` if there are none."""
        return None if self.job is None else self.job._outcomes

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started
