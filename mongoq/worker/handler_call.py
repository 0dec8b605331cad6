"""Handler calls: the items of one run, and its state while it goes on."""

from __future__ import annotations

from typing import Any

from mongoq.model.item import Item

__all__ = ["HandlerCall"]


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
        reported: True after the log line about ``max_time``.
        timed_out: True after ``max_time`` when the consumer gives such calls up; their leases are not extended.
    """

    __slots__ = (
        "abandoned",
        "context",
        "items",
        "job",
        "lost",
        "pops",
        "reported",
        "started",
        "timed_out",
        "where",
    )

    def __init__(self, items: list[Item[Any]], started: float) -> None:
        self.items = items
        self.started = started
        self.context: Any = None
        self.where: Any = None
        self.job: Any = None
        self.lost: set[Any] = set()
        self.abandoned = self.pops = self.reported = self.timed_out = False
