"""Calls of handlers: one call, and the items that handlers settle themselves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mongoq.model.item import Item, reservation_key
from mongoq.model.outcomes import ResolvedOutcome
from mongoq.worker.consumer import Consumer


@dataclass(slots=True, eq=False, repr=False)
class HandlerCall:
    """One call of a handler.

    Attributes:
        items: items of the call; one, unless the consumer takes batches.
        started: start time on the monotonic clock.
        context: context that the handler runs in; set right before the call.
        where: thread id or task that runs the handler; set by the executor.
        job: job passed to the handler; ``None`` if the handler takes none.
        keys: reservation keys of the items, while their settlements are tracked.
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
    keys: Sequence[Any] = ()
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


class HandlerSettlements:
    """Tracks the items of one consumer that handlers settle themselves, perhaps in a transaction.

    The worker has lost the reservation of such an item as well, and does not log that as a loss.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._unsettled = consumer.context.broker.unsettled
        self._sessions = consumer.queue._sessions
        self._settled: set[Any] = set()

    def __contains__(self, item: Item[Any]) -> bool:
        """Return whether a handler has settled an item that the backlog still holds."""
        return reservation_key(item) in self._settled

    def watch(self, run: HandlerCall) -> None:
        """Begin to track the items of a call that is about to start."""
        if not run.pops:
            run.keys = list(map(reservation_key, run.items))
            self._unsettled.update(run.keys)

    def record(self, run: HandlerCall) -> None:
        """Record the items that the handler of a call that has ended has settled."""
        if run.pops:
            return
        for key in run.keys:
            tentative = self._sessions.take_tentative(key)
            if key not in self._unsettled or (tentative is not None and tentative.committed is not False):
                self._settled.add(key)
            self._unsettled.discard(key)

    def record_loss(self, item: Item[Any]) -> bool:
        """Return whether a running handler has settled its lost item, or is about to in a transaction."""
        key = reservation_key(item)
        if key in self._unsettled and not self._sessions.has_tentative(key):
            return False
        self._settled.add(key)
        return True

    def discard(self, items: Iterable[Item[Any]]) -> None:
        """Stop tracking items that the backlog no longer holds."""
        if self._settled:
            self._settled.difference_update(map(reservation_key, items))
