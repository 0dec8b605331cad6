# Generated from mongoq/worker/aio/settler.py by scripts/unasync.py. Do not edit.
"""Settler of a consumer: settles all finished items since the last time, in as few commands as possible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mongoq.errors import BrokerClosed, MongoqError, ReservationLost
from mongoq.model.item import Item, id_key
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import Failed, name_ending
from mongoq.protocol.settle.apply_outcomes import (
    ItemOutcome,
    apply_outcomes_at_most_once,
    apply_outcomes_of_queues,
)
from mongoq.protocol.settle.exchange import PutOff
from mongoq.protocol.state.context import QueueContext, context_of
from mongoq.protocol.state.taker import Handed
from mongoq.worker.backlog import Backlog, SettledCounts
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import POLL_SECONDS, Coordinator
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.failure_log import FailureReporter, hide_text
from mongoq.worker.handler_call import HandlerSettlements
from mongoq.worker.handover import Handover

logger = logging.getLogger("mongoq.worker")

PUT_OFF_REST_SECONDS = 0.05
"""Seconds after which outcomes that were put off are tried again, even without a wake-up."""
MAX_LOGGED_IDS = 5
"""Maximum number of item ids in a log line."""


@dataclass(eq=False, repr=False)
class Settler:
    """Settles the items of a backlog that have outcomes; the first settler of a settle group does it for all of them.

    Attributes:
        is_first: True if this settler settles, for its group or for itself.
    """

    consumer: Consumer
    backlog: Backlog
    settlements: HandlerSettlements
    counts: SettledCounts
    failures: FailureReporter
    coordinator: Coordinator
    executor: ThreadExecutor
    handover: Handover | None
    take_over: Callable[[Sequence[Handed]], None]

    def __post_init__(self) -> None:
        group = self.consumer.settle_group
        self._members: Collection[Settler] = [self] if group is None else group.join(self.consumer.name, self)
        self.is_first = next(iter(self._members)) is self
        self._ended = False

    @property
    def _context(self) -> QueueContext[Any]:
        return self.consumer.context if self.handover is None else self.handover.context

    def is_expecting_items(self) -> bool:
        return not self.coordinator.is_paused(self.consumer) and self.backlog.is_filling()

    def end(self) -> None:
        """Have the loop end as soon as everything is settled."""
        self._ended = True
        self.backlog.settle_event.set()

    def run(self) -> None:
        """Settle the finished items of all members of the group, until the loops end."""
        event = self.backlog.settle_event
        backlogs = [member.backlog for member in self._members]
        while True:
            # Cleared before the outcomes are taken: an outcome that comes in between sets it again.
            event.was_set = False
            parts = [(member, outcomes) for member in self._members if (outcomes := member.backlog.take_outcomes())]
            if parts:
                if self._settle_batch(parts):
                    self.executor.rest(event, PUT_OFF_REST_SECONDS)
                if self._ended and any(member.outcomes for member in backlogs):
                    return  # the last try failed after the end; the leases bring these items back
            elif self._ended or all(member.is_over for member in backlogs):
                return
            else:
                self.executor.rest(event, POLL_SECONDS)

    def _settle_batch(self, parts: list[tuple[Settler, list[ItemOutcome]]]) -> bool:
        """Settle outcomes, and return whether all of them were put off."""
        try:
            failed = self._apply_outcomes(parts)
        except BaseException as error:
            for member, outcomes in parts:
                member.backlog.restore(outcomes)
            if not isinstance(error, Exception):
                raise
            self._back_off(error)
            return False
        if not failed:
            self.coordinator.report_recovery("settle")
        again = [entry for member, outcomes in parts for entry in member._apply_results(outcomes, failed)]
        errors = [error for error in again if error is not None]
        if errors:
            self._back_off(errors[0])
        put_off = sum(isinstance(error, PutOff) for error in failed.values())
        return put_off == sum(len(outcomes) for _, outcomes in parts)

    def _back_off(self, error: Exception) -> None:
        """Rest after an error; end the loop if another try is useless."""
        pause = self.coordinator.report_error("settle", error)
        if pause is None:
            self.backlog.close()
            self._ended = True
        else:
            self.executor.rest(self.backlog.settle_event, pause)

    def _apply_results(self, outcomes: list[ItemOutcome], failed: Mapping[Any, Exception]) -> list[Exception | None]:
        """Record the results of a settlement; returns one entry per retry: the server's error, or ``None``."""
        if not failed:
            self.backlog.put_off = 0
            self._drop_settled(outcomes)
            return []
        self.backlog.put_off = sum(isinstance(failed.get(id_key(item.id)), PutOff) for item, _ in outcomes)
        again = self._sort_results(outcomes, failed)
        if again:
            self.backlog.restore([outcome for outcome, _ in again])
        return [error for _, error in again]

    def _sort_results(
        self, outcomes: list[ItemOutcome], failed: Mapping[Any, Exception]
    ) -> list[tuple[ItemOutcome, Exception | None]]:
        """Drop settled and lost items; returns the outcomes to settle again, with the server's error if any."""
        again: list[tuple[ItemOutcome, Exception | None]] = []
        settled: list[ItemOutcome] = []
        lost_items: list[Item[Any]] = []
        unknown: list[Any] = []
        for item, outcome in outcomes:
            error = failed.get(id_key(item.id))
            if error is None:
                settled.append((item, outcome))
            elif isinstance(error, PutOff):
                again.append(((item, outcome), None))
            elif isinstance(error, ReservationLost):
                lost_items.append(item)
                if error.certain:
                    level = logging.DEBUG if item in self.settlements else logging.WARNING
                    self._log(level, "item %s of queue %r was not settled: %s", item, error)
                else:
                    unknown.append(item.id)
            elif not isinstance(error, MongoqError) or isinstance(error, BrokerClosed):
                again.append(((item, outcome), error))
            elif isinstance(outcome, Failed):
                self._log(logging.ERROR, "item %s of queue %r is left to its lease: %s", item, error)
                lost_items.append(item)
            else:
                self._log(logging.ERROR, "the outcome of item %s of queue %r is impossible: %s", item, error)
                failure = self.consumer.resolver.failure(self.consumer, item, error)
                self.failures.report(item, failure)
                again.append(((item, failure), None))
        if unknown:
            self._report_unknown(unknown)
        self.backlog.drop(lost_items)
        self.settlements.discard(lost_items)
        self._drop_settled(settled)
        return again

    def _log(self, level: int, text: str, item: Item[Any], error: Exception) -> None:
        shown = hide_text(error, self.coordinator.log_errors)
        logger.log(level, text, item.id, item.queue, shown, extra=log_fields(item, worker=self.coordinator.worker))

    def _report_unknown(self, ids: list[Any]) -> None:
        """Log one line for all items of a command whose reply was lost: no item is lost, and the worker goes on."""
        named = ", ".join(map(str, ids[:MAX_LOGGED_IDS])) + ("…" if len(ids) > MAX_LOGGED_IDS else "")
        logger.warning(
            "a reply was lost, and whether %d items of queue %r were settled here cannot be told; none is lost: %s",
            *(len(ids), self.consumer.context.name, named),
            extra=log_fields(queue=self.consumer.context.name, worker=self.coordinator.worker),
        )

    def _apply_outcomes(self, parts: list[tuple[Settler, list[ItemOutcome]]]) -> Mapping[Any, Exception]:
        """Send the outcomes, and return the errors of items that were not settled, by ``id_key``."""
        consumer = self.consumer
        if consumer.pops:
            [(_, outcomes)] = parts
            settle = consumer.queue._observed(apply_outcomes_at_most_once)
            flow = settle(consumer.context, outcomes, context_of)
        else:
            settle_parts = consumer.queue._observed(apply_outcomes_of_queues)
            flow = settle_parts([(member._context, outcomes) for member, outcomes in parts], context_of)
        try:
            failed: Mapping[Any, Exception] = consumer.queue._run_flow(flow)
        finally:
            for member, _ in parts:
                if member.handover is not None:
                    if handed := member.handover.take_all():
                        member.take_over(handed)
                    member.handover.end()
        return failed

    def _drop_settled(self, outcomes: list[ItemOutcome]) -> None:
        """Drop settled items, and count them by result."""
        items = [item for item, _ in outcomes]
        self.backlog.drop(items)
        self.settlements.discard(items)
        self.coordinator.settled += len(outcomes)
        is_spent, pops = self.consumer.context.settings.is_spent, self.consumer.pops
        self.counts.add([name_ending(outcome, spent=pops or is_spent(item.attempts)) for item, outcome in outcomes])
        if not self.backlog.held:
            self.coordinator.emptied.set()
