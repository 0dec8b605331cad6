"""Hand-over: the next item of a sequence goes to the worker that has settled the one before it, without a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import Any

from mongoq.protocol.claim.reservation import make_marks
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.state.taker import Handed
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.limiter import Limiter


class Handover:
    """Takes the next items of sequences while the consumer would wait for a claim (``Taker``).

    While there are other items, whoever they belong to, claims take all in the order of the queue: no sequence keeps
    another one waiting.
    """

    def __init__(self, consumer: Consumer, backlog: Backlog, limiter: Limiter, coordinator: Coordinator) -> None:
        self._consumer, self._backlog = consumer, backlog
        self._limiter, self._coordinator = limiter, coordinator
        self._handed: list[Handed] = []

    @staticmethod
    def fits(consumer: Consumer) -> bool:
        """Return whether each item of a consumer runs by itself, as soon as it is claimed."""
        is_plain = consumer.claims is None and consumer.item_filter is None and not consumer.pops
        return is_plain and consumer.batch is None and consumer.rate_key is None and not consumer.probe

    @cached_property
    def context(self) -> QueueContext[Any]:
        """The queue of the consumer, whose settlements hand items over."""
        context = copy(self._consumer.context)
        context.taker = self
        return context

    def reserve(self, now: datetime) -> Mapping[str, Any] | None:
        """Return the fields that reserve an item, if the consumer has nothing to run; it may run beside others."""
        self._limiter.adopt()
        context = self._consumer.context
        self._backlog.coming = len(self._handed)  # an attempt before this one may have failed
        is_paused = context.state.paused or self._coordinator.is_paused(self._consumer)
        if is_paused or not self._backlog.has_nothing_to_run():
            return None
        self._backlog.coming += 1
        marks = make_marks(context, now, self._consumer.lease_length)
        return {**marks, "batch": marks["token"]}

    def accept(self, handed: Handed) -> None:
        """Keep an item that was reserved, for ``take_all``."""
        self._handed.append(handed)

    def take_all(self) -> Sequence[Handed]:
        """Return the items that were handed over since the last time; until ``end``, they are still to come."""
        handed, self._handed = self._handed, []
        return handed

    def end(self) -> None:
        """Record that a settlement has ended, and the backlog holds what it has handed over."""
        self._backlog.coming = 0
