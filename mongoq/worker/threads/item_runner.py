# Generated from mongoq/worker/aio/item_runner.py by scripts/unasync.py. Do not edit.
"""Item runner of a consumer: calls the handler for claimed items, with jobs, and finds out their outcomes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mongoq.core.command import WakeEvent
from mongoq.core_threads.settle.apply_outcomes import commit_before_run
from mongoq.data.arguments import Duration
from mongoq.data.item import Item, delivery_hash, id_key
from mongoq.data.outcomes import Dead, Failed, Release, ResolvedOutcome
from mongoq.data.process import Local
from mongoq.errors import PayloadInvalid
from mongoq.worker.backlog import HandlerCall
from mongoq.worker.consumer import Hook, add_hooks
from mongoq.worker.coordinator import POLL_SECONDS
from mongoq.worker.failure_log import text_line
from mongoq.worker.threads.limiter import MAX_PAUSE_SECONDS

if TYPE_CHECKING:
    from mongoq.worker.threads.consumer_loop import ConsumerLoop

NEVER_ENDS = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""End of the lease of an item that has left its queue."""


class Job(Local):
    """A run as its handler sees it: ``def handle(payload, job)``.

    Attributes:
        items: the items of the run, as they were reserved; one, unless the consumer takes batches.
        lost: an event that is set when the reservation of one of them is lost: the lease was over, because the process
            or the server stood still, and another worker has the item; or this worker has given the run up, after
            ``max_time`` or at its own end, when the grace was over. What the handler returns is ignored then, so it may
            as well stop. ``job.lost.is_set()``.
        worker: name of the worker, as in ``broker.workers()``.
        returned: what the handler has returned, for context managers of ``around`` at their end; ``None`` before, and
            after an exception. The items are settled after that: an outcome such as ``Retry`` counts. If a result
            cannot be applied, it is the exception that the run fails with; in a batch the entry of the item.
    """

    _elsewhere = "it belongs to the run of its handler; hand on job.item, job.items or payloads, which can be pickled"

    def __init__(
        self,
        queue: Any,
        items: Sequence[Item[Any]],
        extended: Callable[[Iterable[Item[Any]]], None] | None = None,
        *,
        name: str | None = None,
        gone: bool = False,
        worker: str = "",
    ) -> None:
        self._queue = queue
        self._gone = gone
        self._name: str = name or queue.name
        self._extended = extended
        self.items = tuple(items)
        self.worker = worker
        self.returned: Any = None
        self._outcomes: list[ResolvedOutcome] | None = None

    @property
    def lost(self) -> threading.Event:
        """The event of a lost reservation."""
        # Most handlers never look at it, and an event with its lock takes most of the time of making a job.
        event = self.__dict__.get("_lost")
        if event is None:
            event = self.__dict__.setdefault("_lost", threading.Event())  # atomic: another thread may set the event
        return event  # type: ignore[no-any-return]

    @property
    def item(self) -> Item[Any]:
        """The item; of a batch the first one."""
        return self.items[0]

    @property
    def consumer(self) -> str:
        """Name of the consumer: the stage of a pipeline, or the queue."""
        return self._name

    @property
    def delivery_hash(self) -> str:
        """The SHA-256 of the queue, or the pipeline's stage, and the ids of the items, as 64 hex digits.

        The same in each run of the same items: for what happens outside of this queue, as the key that tells the other
        side that this was there before. An item that comes to a stage again, moved round a loop, has another one.
        """
        return delivery_hash(self._name, self.items)

    def hash_of(self, item: Item[Any]) -> str:
        """Return the delivery hash of one item of a batch: the next attempt may be in another batch."""
        return delivery_hash(self._name, [item])

    def extend(self, *, lease: Duration | None = None) -> None:
        """Let the lease end so long from now (``update``); the worker does so by itself while the handler runs.

        For a handler that is about to block the process, whose worker cannot extend then. An item that is run at most
        once has left its queue before, and has no lease: nothing is done then.

        Args:
            lease: how long, a ``timedelta`` or seconds; default the queue's.

        Raises:
            BatchIncomplete: an item was lost; its ``failed`` tells the ``ReservationLost``.
        """
        if self._gone:
            return
        extended = self._queue.extend_many(self.items, lease=lease)
        if self._extended is not None:
            self._extended(extended)


class ItemRunner:
    """Runs the waiting items of a backlog, and returns them to it with their outcomes, to be settled."""

    def __init__(self, loop: ConsumerLoop) -> None:
        self._consumer, self._backlog, self._limiter = loop.consumer, loop.backlog, loop.limiter
        self._coordinator, self._executor = loop.coordinator, loop.executor
        # The consumer with the hooks of an instrumentation; without one it is the same object.
        self._hooked = loop.consumer
        self._hooks: Sequence[Hook] = ()
        self._started = 0

    def update_hooks(self) -> None:
        """Enter the hooks of an instrumentation in later calls; it may begin, change and end while the worker runs."""
        observer = self._consumer.queue._driver.observer
        hooks = () if observer is None else observer.find_hooks()
        if hooks != self._hooks:
            self._hooks = hooks
            self._hooked = add_hooks(self._consumer, hooks)

    def wake(self, number: int) -> None:
        """Wake this many idle runners; missing ones are started, within the concurrency of the consumer."""
        missing = self._backlog.wake(number)
        for _ in range(min(missing, self._consumer.concurrency - self._started)):
            self._started += 1
            self._executor.start(self._run, f"mongoq-run-{self._consumer.name}-{self._started}", calls_handlers=True)

    def _run(self) -> None:
        event = WakeEvent()
        try:
            while True:
                run = self._backlog.next_call(event)
                if run is not None:
                    self._process(run)
                elif self._backlog.closed:
                    return
                else:
                    self._executor.rest(event, POLL_SECONDS * 60)
        finally:
            self._backlog.idle.pop(event, None)

    def _process(self, run: HandlerCall) -> None:
        consumer, backlog, items = self._consumer, self._backlog, run.items
        self._limiter.adopt()
        outcomes = consumer.resolver.refusal(consumer, items)
        if outcomes is None and consumer.pops:
            run.pops = True
            outcomes = self._take_out(items)
        if outcomes is None and self._limiter.has_rate:
            outcomes = self._wait_for_slots(run)
        if outcomes is None:
            outcomes = self._call_handler(run)
        cancelled = run.timed_out and consumer.on_timeout == "cancel" and not run.pops
        if cancelled or not run.timed_out:
            outcomes = backlog.judge(run, outcomes)
            previous: object = None
            for item, outcome in () if run.abandoned else zip(items, outcomes, strict=True):
                if run.lost and id_key(item.id) in run.lost:
                    continue  # the result of a lost item is ignored
                if isinstance(outcome, Failed):
                    traced = outcome.error is not previous  # each error with its traceback once
                    self._coordinator.report_failure(consumer, item, outcome, traced=traced, duration=run.seconds)
                    previous = outcome.error
                elif isinstance(outcome, Dead):
                    is_hidden = self._coordinator.log_errors == "type"
                    reason = "Dead" if is_hidden else text_line(outcome.reason or "no reason given")
                    words = item.id, consumer.title, item.attempts, reason, consumer.context.settings.dead
                    text = "item %s of %s was declared dead in run %d: %s; it goes to queue %r"
                    self._warn(text, *words, item=item, duration=run.seconds)
        if backlog.finish(run, outcomes):
            if run.lost:
                lost = [item for item in items if id_key(item.id) in run.lost]
                if unsettled := [item for item in lost if not backlog.is_settled_by_handler(item)]:
                    text, item = "a run of %s ended after its item %s was lost; ignored", unsettled[0]
                    self._warn(text, consumer.title, item.id, item=item, duration=run.seconds)
                backlog.forget_settled(lost)
        elif cancelled and not run.abandoned:  # settled at once, instead of being left until the leases end
            kept = [entry for entry in zip(items, outcomes, strict=True) if id_key(entry[0].id) not in run.lost]
            backlog.refuse(kept, consumer.lease_length)
        else:
            seconds, text = run.seconds, "a run of %s that was given up has ended late, after %.1f s; ignored: %s"
            self._warn(text, consumer.title, seconds, items[0].id, item=items[0], duration=seconds)
            backlog.forget_settled(items)

    def _call_handler(self, run: HandlerCall) -> list[ResolvedOutcome]:
        """Call the handler, and return the outcomes of the items."""
        consumer, items, resolver = self._hooked, run.items, self._hooked.resolver
        if consumer.takes_job:
            self._backlog.watch(run)
            name, gone, worker = consumer.label, consumer.pops, self._coordinator.worker
            extended = self._backlog.split_leases
            run.job = Job(consumer.queue, items, extended, name=name, gone=gone, worker=worker)
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        run.context = context = self._executor.context.copy()
        try:
            returned = self._executor.call(consumer, run, payload)
            if run.timed_out:
                return resolver.failures(consumer, items, consumer.timeout_error())
            return run.outcomes or context.call(resolver.outcomes, consumer, items, returned)
        except BaseException as error:  # an error of a handler concerns its own call alone
            if self._coordinator.halted and not issubclass(type(error), Exception):
                raise
            return resolver.failures(consumer, items, consumer.timeout_error(error) if run.timed_out else error)
        finally:
            if consumer.takes_job:
                self._backlog.record_settled(run)

    def _wait_for_slots(self, run: HandlerCall) -> list[ResolvedOutcome] | None:
        """Wait until the rate of the queue allows the call; returns outcomes if it is not to start any more.

        An item that has left its queue starts late rather than never.
        """
        event, limiter = WakeEvent(), self._limiter
        with limiter.at_gate(run):
            while (wait := limiter.start(run)) > 0:
                if run.abandoned or (not run.pops and (self._backlog.closed or run.lost)):
                    return [Release() for _ in run.items]
                if wait == math.inf:
                    try:
                        taken = self._consumer.queue._run_given(limiter.take_for, run, self.fail)
                    except Exception as error:
                        taken = self._coordinator.report_error("claim", error) or POLL_SECONDS
                    if not isinstance(taken, int | float):
                        if not run.pops:
                            return [taken]
                        taken = POLL_SECONDS
                    wait = taken
                self._executor.rest(event, min(wait, MAX_PAUSE_SECONDS))
        run.started = time.monotonic()
        return None

    def _take_out(self, items: list[Item[Any]]) -> list[ResolvedOutcome] | None:
        """Take an item that runs at most once out of its queue; returns its outcome unless this worker certainly did.

        The list holds the item with its payload as it was then.
        """
        [item] = items
        try:
            failed = self._consumer.queue._run(commit_before_run, [item])
        except BaseException as error:  # a handler that has ended may still cancel the task that awaits this
            if self._coordinator.halted and not isinstance(error, Exception):
                raise
            failed = {id_key(item.id): error}
        if failed:
            errors = [self._coordinator.hide(error) for error in failed.values()]
            text = "item %s of %s is not run, since it may be gone: %r"
            self._warn(text, item.id, self._consumer.title, errors, item=item)
            return [Release()]
        items[:] = [self._consumer.context.preserve_payload(item)]
        self._backlog.split_leases([item.held_until(NEVER_ENDS)])
        return None

    # --- failures --------------------------------------------------------------------------------

    def fail(self, item: Item[Any], error: Exception) -> ResolvedOutcome:
        """Return the outcome of an item that fails without a run, and log it."""
        outcome = self._consumer.resolver.failure(self._consumer, item, error)
        self._coordinator.report_failure(self._consumer, item, outcome)
        return outcome

    def refuse(self, invalid: PayloadInvalid) -> None:
        """Fail an item that does not fit the model and has no dead queue to go to, without a run."""
        item: Any = invalid.item
        consumer = self._consumer
        released = self._take_out([item]) if consumer.pops else None
        if released is not None:
            text = "item %s of %s cannot be run: %s"
            self._coordinator.log(logging.ERROR, text, item.id, consumer.title, invalid, item=item)
        [outcome] = released or [consumer.resolver.failure(consumer, item, invalid)]
        self._backlog.refuse([(item, outcome)], consumer.lease_length)
        self._coordinator.report_failure(consumer, item, outcome)

    def _warn(self, text: str, *words: object, item: Item[Any], duration: float | None = None) -> None:
        self._coordinator.log(logging.WARNING, text, *words, item=item, duration=duration)
