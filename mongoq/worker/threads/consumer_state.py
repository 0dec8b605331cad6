# Generated from mongoq/worker/aio/consumer_state.py by scripts/unasync.py. Do not edit.
"""What the sides of a station share: what it was told, what it holds, and how it stops by itself."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from mongoq.model.item import Item
from mongoq.model.outcomes import Failed
from mongoq.protocol.flow.event import WakeEvent
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.counts import SettledCounts
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.failure_log import log_failure
from mongoq.worker.outcome_resolver import kind

__all__ = ["REST", "ConsumerState"]

logger = logging.getLogger("mongoq.worker")

REST = 1.0
"""Seconds after which a loop looks around, though nothing rings."""


class ConsumerState:
    """What the sides of a station share.

    Attributes:
        consumer: what it was told.
        backlog: what it holds.
        context: the queue, by the consumer's own settings.
        claiming: a claim may be under way, or will be.
        halted: the item that has made it stop by itself, and why.
        tally: what it has settled.
        settled_by_handlers: the reservations that handlers have settled themselves, perhaps in a transaction.
        together: whose items are settled together, its own and maybe those of others; the first of them does it.
    """

    def __init__(self, consumer: Consumer, course: Coordinator, hands: ThreadExecutor) -> None:
        self.consumer = consumer
        self.together: list[Any] = [self]
        if consumer.gathering is not None:
            self.together = consumer.gathering.joined(consumer.name, self)
        first = self.together[0]
        self.backlog = Backlog(consumer, None if first is self else first.backlog.settling)
        self.context = consumer.queue._context
        self._driver = consumer.queue._driver
        self._course = course
        self._hands = hands
        self._runners = 0
        self._ended = False
        self.claiming = True
        self.halted: tuple[Item[Any], BaseException | str | None] | None = None
        self.tally = SettledCounts()
        self.settled_by_handlers: set[Any] = set()

    def lease(self) -> timedelta:
        """Return how long its reservations last."""
        return self.consumer.lease or self.context.settings.lease

    def is_about_to_have(self) -> bool:
        """Say whether it is about to have more items."""
        return not self._course.is_hushed(self) and self.backlog.is_filling()

    def _got_over(self, what: str, error: Exception, bell: WakeEvent) -> None:
        """Rest after an error; where it is no use to try again, end."""
        pause = self._course.trouble(what, error)
        if pause is None:
            self.backlog.close()
            self._ended = True
        else:
            self._hands.rest(bell, pause)

    def _log_failure(self, item: Item[Any], verdict: Failed, *, traced: bool = True) -> None:
        """Log a failed run: the error, and what becomes of the item; ``traced`` says whether with the traceback."""
        counted = verdict.counted and not self.backlog.is_probing
        context, gone = self.context, self.consumer.pops
        log_failure(logger, context, item, verdict, self.consumer.title, counted=counted, gone=gone, traced=traced)

    def _halt_for(self, item: Item[Any], verdict: Any) -> None:
        """Take nothing more when an item has failed for good, and there is nowhere to send it."""
        if not (isinstance(verdict, Failed) and verdict.halts) or self.halted is not None:
            return
        self.halted = item, verdict.error
        words = self.consumer.title, item.id, item.queue, kind(verdict.error)
        logger.error("%s stops: item %s of queue %r has failed for good: %s", *words)
        self.backlog.close()
        for other in self._course.stations:
            if self.consumer.stage is not None and other.consumer.stage == self.consumer.stage:
                other.halted = other.halted or self.halted  # it takes items from several queues
                other.backlog.close()
        self._course.changed.ring()
