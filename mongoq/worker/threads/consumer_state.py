# Generated from mongoq/worker/aio/consumer_state.py by scripts/unasync.py. Do not edit.
"""State of a consumer loop, shared by its fetcher, runners and settler."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from mongoq.model.item import Item
from mongoq.model.outcomes import Failed
from mongoq.protocol.flow import WakeEvent
from mongoq.worker.backlog import Backlog, SettledCounts
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.failure_log import log_failure
from mongoq.worker.outcome_resolver import error_kind

__all__ = ["POLL_SECONDS", "ConsumerState"]

logger = logging.getLogger("mongoq.worker")

POLL_SECONDS = 1.0
"""Seconds after which a loop checks its state again, even without a wake-up."""


class ConsumerState:
    """Shared state of the fetcher, the runners and the settler of one consumer.

    Attributes:
        consumer: options of the consumer.
        backlog: items held, from claim to settlement.
        context: the queue, with the consumer's own settings.
        claiming: True while a claim is under way or may follow; False after the fetch loop has ended.
        halted: item whose failure stopped the consumer, and its error; ``None`` while it works.
        counts: counts of settled items.
        settled_by_handlers: keys of reservations that handlers have settled themselves, perhaps in a transaction.
        members: consumer loops whose items are settled together, this one included; the first one settles.
    """

    def __init__(self, consumer: Consumer, coordinator: Coordinator, executor: ThreadExecutor) -> None:
        self.consumer = consumer
        self.members: list[Any] = [self]
        if consumer.settle_group is not None:
            self.members = consumer.settle_group.join(consumer.name, self)
        first = self.members[0]
        self.backlog = Backlog(consumer, None if first is self else first.backlog.settle_event)
        self.context = consumer.queue._context
        self._driver = consumer.queue._driver
        self._coordinator = coordinator
        self._executor = executor
        self._runners = 0
        self._ended = False
        self.claiming = True
        self.halted: tuple[Item[Any], BaseException | str | None] | None = None
        self.counts = SettledCounts()
        self.settled_by_handlers: set[Any] = set()

    def lease(self) -> timedelta:
        """Return the length of the consumer's reservations."""
        return self.consumer.lease or self.context.settings.lease

    def is_expecting_items(self) -> bool:
        """Return whether more items are about to come to this consumer."""
        return not self._coordinator.is_paused(self) and self.backlog.is_filling()

    def _back_off(self, what: str, error: Exception, event: WakeEvent) -> None:
        """Rest after an error; end the loops if another try is useless."""
        pause = self._coordinator.report_error(what, error)
        if pause is None:
            self.backlog.close()
            self._ended = True
        else:
            self._executor.rest(event, pause)

    def _log_failure(self, item: Item[Any], verdict: Failed, *, traced: bool = True) -> None:
        """Log a failed run: the error and the next step of the item; ``traced`` adds the traceback."""
        counted = verdict.counted and not self.backlog.is_probing
        context, gone = self.context, self.consumer.pops
        log_failure(logger, context, item, verdict, self.consumer.title, counted=counted, gone=gone, traced=traced)

    def _halt_for(self, item: Item[Any], verdict: Any) -> None:
        """Stop the consumer if an item has failed for good and has no queue to go to."""
        if not (isinstance(verdict, Failed) and verdict.halts) or self.halted is not None:
            return
        self.halted = item, verdict.error
        words = self.consumer.title, item.id, item.queue, error_kind(verdict.error)
        logger.error("%s stops: item %s of queue %r has failed for good: %s", *words)
        self.backlog.close()
        for other in self._coordinator.loops:
            if self.consumer.stage is not None and other.consumer.stage == self.consumer.stage:
                other.halted = other.halted or self.halted  # a stage may take items from several queues
                other.backlog.close()
        self._coordinator.changed.set()
