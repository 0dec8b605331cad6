"""A run: the items that one call of a handler takes, and what is known of it while it goes on."""

from __future__ import annotations

from typing import Any

from mongoq.model.item import Item

__all__ = ["HandlerCall"]


class HandlerCall:
    """One call of a handler.

    Attributes:
        items: what it takes; one, unless the consumer takes batches.
        started: on the monotonic clock.
        context: what its handler runs in; set when that is called.
        where: the number of the thread it runs in, or its task.
        job: what the handler was given beside the payload, if it takes that.
        lost: which of its items somebody else has by now, by ``id_key``.
        pops: its item leaves its queue for good, or has left: who does not find it there tells nothing by that.
        abandoned: its worker has given its items back, and nobody waits for its end.
        reported: that it takes too long was logged.
        timed_out: it took longer than its consumer allows; its leases are extended no more.
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
