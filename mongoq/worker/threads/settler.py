# Generated from mongoq/worker/aio/settler.py by scripts/unasync.py. Do not edit.
"""Settler of a consumer: settles all finished items since the last time, in as few commands as possible."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mongoq.core.claim.judge import make_marks
from mongoq.core.settle.apply_outcomes import ItemOutcome
from mongoq.core.settle.exchange import PutOff
from mongoq.core.state.context import Handed, context_of
from mongoq.core_threads.settle.apply_outcomes import apply_outcomes_at_most_once, apply_outcomes_of_queues
from mongoq.data.item import Item, id_key
from mongoq.data.outcomes import Failed, ResolvedOutcome, name_ending
from mongoq.errors import BrokerClosed, MongoqError, ReservationLost
from mongoq.worker.coordinator import POLL_SECONDS

if TYPE_CHECKING:
    from mongoq.worker.threads.consumer_loop import ConsumerLoop

PUT_OFF_REST_SECONDS = 0.05
"""Seconds after which outcomes that were put off are tried again, even without a wake-up."""
MAX_LOGGED_IDS = 5
"""Maximum number of item ids in a log line."""


class Settler:
    """Settles the items of a backlog that have outcomes; the first settler of a settle group does it for all of them.

    It also takes the next items of sequences while the consumer would wait for a claim (``Taker``): such an item goes
    to the worker that has settled the one before it, without a claim. While there are other items, whoever they belong
    to, claims take all in the order of the queue: no sequence keeps another one waiting.

    Attributes:
        is_first: True if this settler settles, for its group or for itself.
    """

    def __init__(self, loop: ConsumerLoop) -> None:
        self._loop, self._backlog, self._coordinator = loop, loop.backlog, loop.coordinator
        self._consumer = consumer = loop.consumer
        group = consumer.settle_group
        self._members: Collection[Settler] = [self] if group is None else group.join(consumer.name, self)
        self.is_first = next(iter(self._members)) is self
        self._ended = False
        self._context = consumer.context
        self._handed: list[Handed] = []
        # Each item runs by itself, as soon as it is claimed.
        is_plain = consumer.claims is None and consumer.item_filter is None and not consumer.pops
        if is_plain and consumer.batch is None and consumer.rate_key is None and not consumer.probe:
            self._context = copy(consumer.context)
            self._context.taker = self

    def is_expecting_items(self) -> bool:
        return not self._coordinator.is_paused(self._consumer) and self._backlog.is_filling()

    def end(self) -> None:
        """Have the loop end as soon as everything is settled."""
        self._ended = True
        self._backlog.settle_event.set()

    def run(self) -> None:
        """Settle the finished items of all members of the group, until the loops end."""
        event, rest = self._backlog.settle_event, self._loop.executor.rest
        backlogs = [member._backlog for member in self._members]
        while True:
            # Cleared before the outcomes are taken: an outcome that comes in between sets it again.
            event.was_set = False
            parts = [(member, outcomes) for member in self._members if (outcomes := member._backlog.take_outcomes())]
            if parts:
                pause = self._settle(parts)
                if pause:
                    rest(event, pause)
                if self._ended and any(backlog.outcomes for backlog in backlogs):
                    return  # the last try failed after the end; the leases bring these items back
            elif self._ended or all(backlog.is_over for backlog in backlogs):
                return
            else:
                rest(event, POLL_SECONDS)

    def _settle(self, parts: list[tuple[Settler, list[ItemOutcome]]]) -> float:
        """Settle outcomes, and return the seconds to rest: after an error, or when all of them were put off."""
        queue = self._consumer.queue
        try:
            try:
                if self._consumer.pops:
                    [(_, own)] = parts
                    failed = queue._run_given(apply_outcomes_at_most_once, self._context, own, context_of)
                else:
                    by_queue = [(member._context, outcomes) for member, outcomes in parts]
                    failed = queue._run_given(apply_outcomes_of_queues, by_queue, context_of)
            finally:
                for member, _ in parts:
                    if member._handed:
                        handed, member._handed = member._handed, []
                        member._loop.take_over(handed)
                    member._backlog.coming = 0
        except BaseException as error:
            for member, outcomes in parts:
                member._backlog.restore(outcomes)
            if not isinstance(error, Exception):
                raise
            return self._report_error(error)
        if not failed:
            self._coordinator.report_recovery("settle")
        errors = [error for member, outcomes in parts for error in member._record_results(outcomes, failed)]
        if errors:
            return self._report_error(errors[0])
        put_off = sum(isinstance(error, PutOff) for error in failed.values())
        return PUT_OFF_REST_SECONDS if put_off == sum(len(outcomes) for _, outcomes in parts) else 0.0

    def _report_error(self, error: Exception) -> float:
        """Report a server's error, and return the seconds to rest; end the loop if another try is useless."""
        pause = self._coordinator.report_error("settle", error)
        if pause is None:
            self._backlog.close()
            self._ended = True
        return pause or 0.0

    def _record_results(self, outcomes: list[ItemOutcome], failed: Mapping[Any, Exception]) -> list[Exception]:
        """Drop settled and lost items, and put back the others, to settle them again; returns errors of the server."""
        backlog, settled, gone = self._backlog, outcomes, [item for item, _ in outcomes]
        errors: list[Exception] = []
        backlog.put_off = 0
        if failed:
            settled, gone = [], []
            again, unknown = list[ItemOutcome](), list[Any]()
            for item, outcome in outcomes:
                error = failed.get(id_key(item.id))
                if error is None:
                    settled.append((item, outcome))
                    gone.append(item)
                elif isinstance(error, PutOff):
                    backlog.put_off += 1
                    again.append((item, outcome))
                elif not isinstance(error, MongoqError) or isinstance(error, BrokerClosed):
                    errors.append(error)
                    again.append((item, outcome))
                elif isinstance(error, ReservationLost) and not error.certain:
                    unknown.append(item.id)
                    gone.append(item)
                elif failure := self._fail(item, outcome, error):
                    again.append((item, failure))
                else:
                    gone.append(item)
            if unknown:  # no item is lost, and the worker goes on
                text = "a reply was lost, and whether %d items of queue %r were settled here cannot be told; "
                text += "none is lost: %s"
                named = ", ".join(map(str, unknown[:MAX_LOGGED_IDS])) + ("…" if len(unknown) > MAX_LOGGED_IDS else "")
                words = len(unknown), self._consumer.name, named
                self._coordinator.log(logging.WARNING, text, *words, queue=self._consumer.name)
            backlog.restore(again)
        backlog.drop(gone)
        self._coordinator.settled += len(settled)
        is_spent, pops = self._consumer.context.settings.is_spent, self._consumer.pops
        endings = [name_ending(outcome, spent=pops or is_spent(item.attempts)) for item, outcome in settled]
        self._loop.counts.add(endings)
        if not backlog.held:
            self._coordinator.emptied.set()
        return errors

    def _fail(self, item: Item[Any], outcome: ResolvedOutcome, error: MongoqError) -> ResolvedOutcome | None:
        """Log that an outcome cannot be applied; returns another one for the item, ``None`` to settle it no more."""
        consumer, coordinator = self._consumer, self._coordinator
        level, failure = logging.ERROR, None
        if isinstance(error, ReservationLost):
            text = "item %s of queue %r was not settled: %s"
            level = logging.DEBUG if self._backlog.is_settled_by_handler(item) else logging.WARNING
        elif isinstance(outcome, Failed):
            text = "item %s of queue %r is left to its lease: %s"
        else:
            text = "the outcome of item %s of queue %r is impossible: %s"
            failure = consumer.resolver.failure(consumer, item, error)
        coordinator.log(level, text, item.id, item.queue, error, item=item)
        if failure is not None:
            coordinator.report_failure(consumer, item, failure)
        return failure

    # --- hand-over of sequences ------------------------------------------------------------------

    def reserve(self, now: datetime) -> Mapping[str, Any] | None:
        """Return the fields that reserve an item, if the consumer has nothing to run; it may run beside others."""
        loop, context = self._loop, self._consumer.context
        loop.limiter.adopt()
        self._backlog.coming = len(self._handed)  # an attempt before this one may have failed
        is_paused = context.state.paused or self._coordinator.is_paused(self._consumer)
        if is_paused or not self._backlog.has_nothing_to_run():
            return None
        self._backlog.coming += 1
        marks = make_marks(context, now, self._consumer.lease_length)
        return {**marks, "batch": marks["token"]}

    def accept(self, handed: Handed) -> None:
        """Keep an item that was reserved; it is taken over when the settlement has ended."""
        self._handed.append(handed)
