# Generated from mongoq/worker/aio/consumer_loop.py by scripts/unasync.py. Do not edit.
"""Consumer loop: fetches, runs and settles the items of one consumer, around a backlog that decides."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from mongoq.model.item import Item, id_key, reservation_key
from mongoq.model.outcomes import Dead, Failed, Release, ResolvedOutcome
from mongoq.protocol.flow import WakeEvent
from mongoq.worker.backlog import HandlerCall
from mongoq.worker.threads.consumer_state import POLL_SECONDS
from mongoq.worker.threads.fetcher import Fetcher
from mongoq.worker.threads.job import Job
from mongoq.worker.threads.settler import Settler

__all__ = ["ConsumerLoop"]

logger = logging.getLogger("mongoq.worker")

NEVER_ENDS = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""End of the lease of an item that has left its queue."""


class ConsumerLoop(Fetcher, Settler):
    """Claims, runs and settles the items of one consumer."""

    def start(self) -> None:
        """Start the fetch and settle loops; runners start when there is something to run."""
        self._executor.start(self._fetch, f"mongoq-fetch-{self.consumer.name}")
        if self.members[0] is self:
            self._executor.start(self._settle, f"mongoq-settle-{self.consumer.name}")

    def close(self) -> None:
        """Claim and start nothing more, and release the waiting items; running calls go on."""
        self.backlog.close()

    def end(self) -> None:
        """Have the loops end as soon as everything is settled."""
        self._ended = True
        self.backlog.settle_event.set()

    # --- runs ------------------------------------------------------------------------------------

    def _work(self) -> None:
        event = WakeEvent()
        try:
            while True:
                run = self.backlog.next_call(event)
                if run is not None:
                    self._process(run)
                elif self.backlog.closed:
                    return
                else:
                    self._executor.rest(event, POLL_SECONDS * 60)
        finally:
            self.backlog.idle.pop(event, None)

    def _process(self, run: HandlerCall) -> None:
        consumer, items = self.consumer, run.items
        verdicts = consumer.resolver.refusal(consumer, items)
        if verdicts is None and consumer.pops:
            verdicts = self._take_out(run)
        if verdicts is None:
            verdicts = self._call_handler(run)
        cancelled = run.timed_out and consumer.on_timeout == "cancel" and not run.pops
        if cancelled or not run.timed_out:
            self._report(run, verdicts)
        if self.backlog.finish(run, verdicts):
            self._report_lost(run)
        elif cancelled and not run.abandoned:
            self._fail_cancelled(run, verdicts)
        else:
            words = consumer.title, time.monotonic() - run.started, items[0].id
            logger.warning("a run of %s that was given up has ended late, after %.1f s; ignored: %s", *words)
            self.settled_by_handlers.difference_update(map(reservation_key, items))

    def _fail_cancelled(self, run: HandlerCall, verdicts: list[ResolvedOutcome]) -> None:
        """Settle the items of a cancelled call at once, instead of leaving them until their leases end."""
        for item, verdict in zip(run.items, verdicts, strict=True):
            if id_key(item.id) not in run.lost:
                self.backlog.refuse(item, self.lease(), verdict)

    def _report_lost(self, run: HandlerCall) -> None:
        """Log the loss of items that the handler has not settled itself."""
        lost = {reservation_key(item): item for item in run.items if run.lost and id_key(item.id) in run.lost}
        others = [item for key, item in lost.items() if key not in self.settled_by_handlers]
        if others:
            logger.warning("a run of %s ended after its item %s was lost; ignored", self.consumer.title, others[0].id)
        self.settled_by_handlers.difference_update(lost)

    def _call_handler(self, run: HandlerCall) -> list[ResolvedOutcome]:
        """Call the handler, and return the outcomes of the items."""
        consumer, items = self.consumer, run.items
        if consumer.takes_job:
            self._watch_reservations(run)
            extended, gone = self.backlog.split_leases, consumer.pops
            run.job = Job(consumer.queue, items, extended, name=consumer.label, gone=gone)
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        run.context = context = self._executor.context.copy()
        try:
            returned = self._executor.call(consumer, run, payload)
            if run.timed_out:
                return consumer.resolver.failures(consumer, items, self.timeout_error())
            outcomes: list[ResolvedOutcome] = context.call(consumer.resolver.outcomes, consumer, items, returned)
            return outcomes
        except BaseException as error:  # an error of a handler concerns its own call alone
            if self._coordinator.halted and not issubclass(type(error), Exception):
                raise
            return consumer.resolver.failures(consumer, items, self.timeout_error(error) if run.timed_out else error)
        finally:
            if consumer.takes_job:
                self._note_settled(run)

    # --- settled by the handler ------------------------------------------------------------------

    def _watch_reservations(self, run: HandlerCall) -> None:
        """Track the items of a call, so that an item settled by its handler is not reported as lost."""
        if not run.pops:
            self.context.broker.unsettled.update(map(reservation_key, run.items))

    def _note_settled(self, run: HandlerCall) -> None:
        if run.pops:
            return
        unsettled = self.context.broker.unsettled
        for key in map(reservation_key, run.items):
            tentative = self._driver.sessions.forget(key)
            if key not in unsettled or (tentative is not None and tentative.committed is not False):
                self.settled_by_handlers.add(key)
            unsettled.discard(key)

    def _is_settled_by_handler(self, item: Item[Any]) -> bool:
        """Return whether a running handler has settled its item, or is about to in a transaction."""
        key = reservation_key(item)
        return key not in self.context.broker.unsettled or self._driver.sessions.has_tentative(key)

    def _take_out(self, run: HandlerCall) -> list[ResolvedOutcome] | None:
        """Take the item of a call out of the queue for good; returns its outcome if that fails, else ``None``."""
        [item] = run.items
        run.pops = True
        if not self._take_for_good(item):
            return [Release()]
        run.items[:] = [self.context.preserved(item)]
        self.backlog.split_leases([item.held_until(NEVER_ENDS)])
        return None

    def _report(self, run: HandlerCall, verdicts: list[ResolvedOutcome]) -> None:
        """Log failures, each error with its traceback once, and stop the consumer after a failure for good."""
        previous: object = None
        for item, verdict in zip(run.items, verdicts, strict=True):
            if run.abandoned or (run.lost and id_key(item.id) in run.lost):
                continue  # the result of a lost item is ignored
            if isinstance(verdict, Failed):
                self._log_failure(item, verdict, traced=verdict.error is not previous)
                previous = verdict.error
                self._halt_for(item, verdict)
            elif isinstance(verdict, Dead):
                words = item.id, self.consumer.title, item.attempts, verdict.reason, self.context.settings.dead
                logger.warning("item %s of %s was declared dead in run %d: %s; it goes to queue %r", *words)

    # --- leases ----------------------------------------------------------------------------------

    def lose(self, token: Any, key: Any) -> None:
        """Record the loss of an item to another worker, and log it unless its own handler has settled it."""
        loser = self.backlog.lose(token, key)
        if loser is None:
            return
        item = loser if isinstance(loser, Item) else next(one for one in loser.items if id_key(one.id) == key)
        if isinstance(loser, HandlerCall) and loser.job is not None and self._is_settled_by_handler(item):
            self.settled_by_handlers.add(reservation_key(item))
            return
        logger.warning("item %s of queue %r is lost: it was taken, or settled, by somebody else", item.id, item.queue)
        if isinstance(loser, HandlerCall) and loser.job is not None:
            loser.job.lost.set()

    def take_overdue(self) -> list[HandlerCall]:
        """Return the calls that have exceeded ``max_time`` since the last check."""
        overdue = [run for run in self._find_overdue() if not run.reported]
        for run in overdue:
            run.reported = True
        return overdue

    def _find_overdue(self) -> list[HandlerCall]:
        limit = self.consumer.max_time
        if limit is None:
            return []
        late = time.monotonic() - limit.total_seconds()
        return [run for run in list(self.backlog.running) if run.started < late]

    def time_out(self) -> list[list[Item[Any]]]:
        """Give up overdue calls, if the consumer says so; returns the items left to their leases, by call."""
        if self.consumer.on_timeout == "log":
            return []
        called = [run for run in self._find_overdue() if run.where is not None]
        return [run.items for run in called if self._give_up(run) and not run.pops]

    def _give_up(self, run: HandlerCall) -> bool:
        """Give up an overdue call; returns whether it was still under way."""
        consumer, [item, *_] = self.consumer, run.items
        outcomes = consumer.resolver.failures(consumer, run.items, self.timeout_error()) if run.pops else None
        if not self.backlog.time_out(run, outcomes):
            return False
        cancelled = consumer.on_timeout == "cancel"
        fate = "its handler is cancelled" if cancelled else "it comes again when its lease ends"
        if outcomes is not None:
            fate = "it has failed"
        logger.error("a run of %s is given up after %s: item %s; %s", consumer.title, consumer.max_time, item.id, fate)
        if outcomes is not None and isinstance(outcomes[0], Failed):
            self._log_failure(item, outcomes[0])
        if run.job is not None:
            run.job.lost.set()
        if cancelled:
            self._executor.cancel(run)
        return True

    def timeout_error(self, cause: BaseException | None = None) -> TimeoutError:
        """Return the error of an overdue call."""
        assert self.consumer.max_time is not None
        seconds = self.consumer.max_time.total_seconds()
        error = TimeoutError(f"the handler had not ended after max_time, {seconds:g} s")
        error.__cause__ = cause
        return error
