"""Time limit of a consumer: finds calls that have run for longer than ``max_time``, and gives them up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mongoq.model.item import Item
from mongoq.model.outcomes import Failed
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer
from mongoq.worker.failure_log import FailureReporter
from mongoq.worker.handler_call import HandlerCall

__all__ = ["TimeLimit"]

logger = logging.getLogger("mongoq.worker")


@dataclass(eq=False, repr=False)
class TimeLimit:
    """Finds overdue calls for the watchdog, and gives them up if the consumer says so.

    ``cancel`` cancels the task of a call.
    """

    consumer: Consumer
    backlog: Backlog
    failures: FailureReporter
    cancel: Callable[[HandlerCall], None]

    def take_overdue(self) -> list[HandlerCall]:
        """Return the calls that have become overdue since the last check."""
        overdue = [run for run in self._find_overdue() if not run.reported]
        for run in overdue:
            run.reported = True
        return overdue

    def give_up_overdue(self) -> list[list[Item[Any]]]:
        """Give up overdue calls, if the consumer says so; returns the items left to their leases, by call."""
        if self.consumer.on_timeout == "log":
            return []
        called = [run for run in self._find_overdue() if run.where is not None]
        return [run.items for run in called if self._give_up(run) and not run.pops]

    def _find_overdue(self) -> list[HandlerCall]:
        limit = self.consumer.max_time
        if limit is None:
            return []
        late = time.monotonic() - limit.total_seconds()
        return [run for run in list(self.backlog.running) if run.started < late]

    def _give_up(self, run: HandlerCall) -> bool:
        """Give up an overdue call; returns whether it was still under way."""
        consumer, [item, *_] = self.consumer, run.items
        outcomes = consumer.resolver.failures(consumer, run.items, consumer.timeout_error()) if run.pops else None
        if not self.backlog.time_out(run, outcomes):
            return False
        cancelled = consumer.on_timeout == "cancel"
        fate = "its handler is cancelled" if cancelled else "it comes again when its lease ends"
        if outcomes is not None:
            fate = "it has failed"
        logger.error("a run of %s is given up after %s: item %s; %s", consumer.title, consumer.max_time, item.id, fate)
        if outcomes is not None and isinstance(outcomes[0], Failed):
            self.failures.log(item, outcomes[0])
        if run.job is not None:
            run.job.lost.set()
        if cancelled:
            self.cancel(run)
        return True
