# Generated from mongoq/worker/aio/item_runner.py by scripts/unasync.py. Do not edit.
"""Item runner of a consumer: calls the handler for claimed items, and finds out their outcomes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mongoq.errors import PayloadInvalid
from mongoq.model.item import Item, id_key
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import Dead, Failed, Release, ResolvedOutcome
from mongoq.protocol.flow import WakeEvent
from mongoq.protocol.settle.apply_outcomes import commit_before_run
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import POLL_SECONDS, Coordinator
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.failure_log import FailureReporter, hide_text, text_line
from mongoq.worker.handler_call import HandlerCall, HandlerSettlements
from mongoq.worker.hooks import Hook, add_hooks
from mongoq.worker.limiter import MAX_PAUSE_SECONDS, Limiter
from mongoq.worker.threads.job import Job

logger = logging.getLogger("mongoq.worker")

NEVER_ENDS = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""End of the lease of an item that has left its queue."""


@dataclass(eq=False, repr=False)
class ItemRunner:
    """Runs the waiting items of a backlog, and returns them to it with their outcomes, to be settled."""

    consumer: Consumer
    backlog: Backlog
    settlements: HandlerSettlements
    failures: FailureReporter
    coordinator: Coordinator
    executor: ThreadExecutor
    limiter: Limiter
    _started: int = field(default=0, init=False)
    _hooks: Sequence[Hook] = field(default=(), init=False)

    def __post_init__(self) -> None:
        # The consumer with the hooks of an instrumentation; without one it is the same object.
        self._hooked = self.consumer

    def update_hooks(self) -> None:
        """Enter the hooks of an instrumentation in later calls; it may begin, change and end while the worker runs."""
        observer = self.consumer.queue._driver.observer
        hooks = () if observer is None else observer.find_hooks()
        if hooks != self._hooks:
            self._hooks = hooks
            self._hooked = add_hooks(self.consumer, hooks)

    def wake(self, number: int) -> None:
        """Wake this many idle runners; missing ones are started, within the concurrency of the consumer."""
        missing = self.backlog.wake(number)
        for _ in range(min(missing, self.consumer.concurrency - self._started)):
            self._started += 1
            self.executor.start(self._run, f"mongoq-run-{self.consumer.name}-{self._started}", calls_handlers=True)

    def _run(self) -> None:
        event = WakeEvent()
        try:
            while True:
                run = self.backlog.next_call(event)
                if run is not None:
                    self._process(run)
                elif self.backlog.closed:
                    return
                else:
                    self.executor.rest(event, POLL_SECONDS * 60)
        finally:
            self.backlog.idle.pop(event, None)

    def _process(self, run: HandlerCall) -> None:
        consumer, items = self.consumer, run.items
        self.limiter.adopt()
        outcomes = consumer.resolver.refusal(consumer, items)
        if outcomes is None and consumer.pops:
            outcomes = self._take_out(run)
        if outcomes is None and self.limiter.has_rate:
            outcomes = self._wait_for_slots(run)
        if outcomes is None:
            outcomes = self._call_handler(run)
        cancelled = run.timed_out and consumer.on_timeout == "cancel" and not run.pops
        if cancelled or not run.timed_out:
            outcomes = self.backlog.judge(run, outcomes)
            self._report(run, outcomes)
        if self.backlog.finish(run, outcomes):
            self._report_lost(run)
        elif cancelled and not run.abandoned:
            self._fail_cancelled(run, outcomes)
        else:
            seconds = run.seconds
            words, fields = (consumer.title, seconds, items[0].id), self._fields(items[0], duration=seconds)
            text = "a run of %s that was given up has ended late, after %.1f s; ignored: %s"
            logger.warning(text, *words, extra=fields)
            self.settlements.discard(items)

    # --- the call --------------------------------------------------------------------------------

    def _call_handler(self, run: HandlerCall) -> list[ResolvedOutcome]:
        """Call the handler, and return the outcomes of the items."""
        consumer, items = self._hooked, run.items
        if consumer.takes_job:
            self.settlements.watch(run)
            extended, gone = self.backlog.split_leases, consumer.pops
            name, worker = consumer.label, self.coordinator.worker
            run.job = Job(consumer.queue, items, extended, name=name, gone=gone, worker=worker)
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        run.context = context = self.executor.context.copy()
        try:
            returned = self.executor.call(consumer, run, payload)
            if run.timed_out:
                return consumer.resolver.failures(consumer, items, consumer.timeout_error())
            outcomes = run.outcomes
            return outcomes or context.call(consumer.resolver.outcomes, consumer, items, returned)
        except BaseException as error:  # an error of a handler concerns its own call alone
            if self.coordinator.halted and not issubclass(type(error), Exception):
                raise
            error = consumer.timeout_error(error) if run.timed_out else error
            return consumer.resolver.failures(consumer, items, error)
        finally:
            if consumer.takes_job:
                self.settlements.record(run)

    def _wait_for_slots(self, run: HandlerCall) -> list[ResolvedOutcome] | None:
        """Wait until the rate of the queue allows the call; returns outcomes if it is not to start any more.

        An item that has left its queue starts late rather than never.
        """
        event, limiter = WakeEvent(), self.limiter
        with limiter.at_gate(run):
            while (wait := limiter.start(run)) > 0:
                if run.abandoned or (not run.pops and (self.backlog.closed or run.lost)):
                    return [Release() for _ in run.items]
                if wait == math.inf:
                    try:
                        taken = self.consumer.queue._run_flow(limiter.take_for(run, self.fail))
                    except Exception as error:
                        taken = self.coordinator.report_error("claim", error) or POLL_SECONDS
                    if not isinstance(taken, int | float):
                        if not run.pops:
                            return [taken]
                        taken = POLL_SECONDS
                    wait = taken
                self.executor.rest(event, min(wait, MAX_PAUSE_SECONDS))
        run.started = time.monotonic()
        return None

    # --- items that run at most once -------------------------------------------------------------

    def _take_out(self, run: HandlerCall) -> list[ResolvedOutcome] | None:
        """Take the item of a call out of the queue for good; returns its outcome if that fails, else ``None``."""
        [item] = run.items
        run.pops = True
        if not self._take_for_good(item):
            return [Release()]
        run.items[:] = [self.consumer.context.preserve_payload(item)]
        self.backlog.split_leases([item.held_until(NEVER_ENDS)])
        return None

    def _take_for_good(self, item: Item[Any]) -> bool:
        """Take an item that runs at most once out of its queue; returns whether this worker certainly did."""
        consumer = self.consumer
        try:
            failed = consumer.queue._run(commit_before_run, [item])
        except BaseException as error:  # a handler that has ended may still cancel the task that awaits this
            if self.coordinator.halted and not isinstance(error, Exception):
                raise
            failed = {id_key(item.id): error}
        if failed:
            errors = [hide_text(error, self.coordinator.log_errors) for error in failed.values()]
            words, fields = (item.id, consumer.title, errors), self._fields(item)
            logger.warning("item %s of %s is not run, since it may be gone: %r", *words, extra=fields)
        return not failed

    # --- failures --------------------------------------------------------------------------------

    def fail(self, item: Item[Any], error: Exception) -> ResolvedOutcome:
        """Return the outcome of an item that fails without a run, and log it."""
        outcome = self.consumer.resolver.failure(self.consumer, item, error)
        self.failures.report(item, outcome)
        return outcome

    def refuse(self, invalid: PayloadInvalid) -> None:
        """Fail an item that does not fit the model and has no dead queue to go to, without a run."""
        item: Any = invalid.item
        consumer = self.consumer
        if consumer.pops and not self._take_for_good(item):
            words = item.id, consumer.title, hide_text(invalid, self.coordinator.log_errors)
            logger.error("item %s of %s cannot be run: %s", *words, extra=self._fields(item))
            self.backlog.refuse(item, consumer.lease_length, Release())
            return
        outcome = consumer.resolver.failure(consumer, item, invalid)
        self.backlog.refuse(item, consumer.lease_length, outcome)
        self.failures.report(item, outcome)

    def _fail_cancelled(self, run: HandlerCall, outcomes: list[ResolvedOutcome]) -> None:
        """Settle the items of a cancelled call at once, instead of leaving them until their leases end."""
        for item, outcome in zip(run.items, outcomes, strict=True):
            if id_key(item.id) not in run.lost:
                self.backlog.refuse(item, self.consumer.lease_length, outcome)

    def _report(self, run: HandlerCall, outcomes: list[ResolvedOutcome]) -> None:
        """Log failures, each error with its traceback once, and stop the consumer after a failure for good."""
        previous: object = None
        for item, outcome in zip(run.items, outcomes, strict=True):
            if run.abandoned or (run.lost and id_key(item.id) in run.lost):
                continue  # the result of a lost item is ignored
            if isinstance(outcome, Failed):
                seconds = run.seconds
                self.failures.report(item, outcome, traced=outcome.error is not previous, duration=seconds)
                previous = outcome.error
            elif isinstance(outcome, Dead):
                self._log_dead(item, outcome, run.seconds)

    def _log_dead(self, item: Item[Any], outcome: Dead, seconds: float) -> None:
        reason = text_line(outcome.reason or "no reason given") if self.coordinator.log_errors == "message" else "Dead"
        words = item.id, self.consumer.title, item.attempts, reason, self.consumer.context.settings.dead
        fields = self._fields(item, duration=seconds)
        logger.warning("item %s of %s was declared dead in run %d: %s; it goes to queue %r", *words, extra=fields)

    def _fields(self, item: Item[Any], *, duration: float | None = None) -> dict[str, Any]:
        return log_fields(item, worker=self.coordinator.worker, duration=duration)

    def _report_lost(self, run: HandlerCall) -> None:
        """Log the loss of items that the handler has not settled itself."""
        if not run.lost:
            return
        lost_items = [item for item in run.items if id_key(item.id) in run.lost]
        unsettled = [item for item in lost_items if item not in self.settlements]
        if unsettled:
            words = self.consumer.title, unsettled[0].id
            fields = self._fields(unsettled[0], duration=run.seconds)
            logger.warning("a run of %s ended after its item %s was lost; ignored", *words, extra=fields)
        self.settlements.discard(lost_items)
