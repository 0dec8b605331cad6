# Generated from mongoq/worker/aio/consumer_loop.py by scripts/unasync.py. Do not edit.
"""Consumer loop: the parts that fetch, run and settle the items of one consumer, around a backlog that decides."""

from __future__ import annotations

import logging
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.worker.backlog import Backlog, SettledCounts
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.failure_log import FailureReporter
from mongoq.worker.handler_call import HandlerCall, HandlerSettlements
from mongoq.worker.threads.fetcher import Fetcher
from mongoq.worker.threads.item_runner import ItemRunner
from mongoq.worker.threads.settler import Settler
from mongoq.worker.time_limit import TimeLimit

__all__ = ["ConsumerLoop"]

logger = logging.getLogger("mongoq.worker")


class ConsumerLoop:
    """Works for one consumer. The path of an item: fetcher, backlog, item runner, backlog, settler.

    Attributes:
        consumer: options of the consumer.
        context: the queue, with the consumer's own settings.
        backlog: items held, from claim to settlement.
        counts: counts of settled items.
        halted: item whose failure stopped the consumer, and its error; ``None`` while it works.
        time_limit: gives up the calls that take too long.
    """

    def __init__(self, consumer: Consumer, coordinator: Coordinator, executor: ThreadExecutor) -> None:
        self.consumer = consumer
        self.context = consumer.context
        self.backlog = backlog = Backlog(consumer)
        self.counts = counts = SettledCounts()
        self.halted: tuple[Item[Any], BaseException | str | None] | None = None
        self._executor = executor
        self._settlements = settlements = HandlerSettlements(consumer)
        failures = FailureReporter(consumer, backlog, coordinator)
        self.time_limit = TimeLimit(consumer, backlog, failures, executor.cancel)
        runner = ItemRunner(consumer, backlog, settlements, failures, coordinator, executor)
        self._fetcher = Fetcher(consumer, backlog, runner, counts, coordinator, executor)
        self._settler = Settler(consumer, backlog, settlements, counts, failures, coordinator, executor)

    def start(self) -> None:
        """Start the fetch and settle loops; runners start when there is something to run."""
        self._executor.start(self._fetcher.run, f"mongoq-fetch-{self.consumer.name}")
        if self._settler.is_first:
            self._executor.start(self._settler.run, f"mongoq-settle-{self.consumer.name}")

    def end(self) -> None:
        """Claim and start nothing more, and have the loops end as soon as everything is settled."""
        self.backlog.close()
        self._settler.end()

    def lose(self, token: Any, key: Any) -> None:
        """Record the loss of an item to another worker, and log it unless its own handler has settled it."""
        loser = self.backlog.lose(token, key)
        if loser is None:
            return
        item = loser if isinstance(loser, Item) else next(one for one in loser.items if id_key(one.id) == key)
        job = loser.job if isinstance(loser, HandlerCall) else None
        if job is not None and self._settlements.record_loss(item):
            return
        logger.warning("item %s of queue %r is lost: it was taken, or settled, by somebody else", item.id, item.queue)
        if job is not None:
            job.lost.set()
