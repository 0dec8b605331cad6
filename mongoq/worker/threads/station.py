# Generated from mongoq/worker/aio/station.py by scripts/unasync.py. Do not edit.
"""One consumer at work: loops that claim, run and settle, around a backlog that decides."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Dead, Failed, Outcome, Release
from mongoq.protocol.bells import Bell
from mongoq.worker.judging import kind
from mongoq.worker.run import Run
from mongoq.worker.threads.claims import Claims
from mongoq.worker.threads.job import Job
from mongoq.worker.threads.settlements import Settlements
from mongoq.worker.threads.stand import REST

__all__ = ["Station"]

logger = logging.getLogger("mongoq.worker")

NEVER = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""When the lease of an item ends that is no longer there."""


class Station(Claims, Settlements):
    """Claims, runs and settles the items of one consumer."""

    def start(self) -> None:
        """Start the loops; runners start when there is something to run."""
        self._hands.start(self._fetch, f"mongoq-fetch-{self.consumer.name}")
        if self.together[0] is self:
            self._hands.start(self._settle, f"mongoq-settle-{self.consumer.name}")

    def close(self) -> None:
        """Claim and start nothing more, and give back what was not started; what runs goes on."""
        self.backlog.close()

    def end(self) -> None:
        """Let the loops end as soon as everything is settled."""
        self._ended = True
        self.backlog.settling.ring()

    # --- runs ------------------------------------------------------------------------------------

    def _work(self) -> None:
        bell = Bell()
        try:
            while True:
                run = self.backlog.next(bell)
                if run is not None:
                    self._ran(run)
                elif self.backlog.closed:
                    return
                else:
                    self._hands.rest(bell, REST * 60)
        finally:
            self.backlog.idle.pop(bell, None)

    def _ran(self, run: Run) -> None:
        consumer, items = self.consumer, run.items
        verdicts = consumer.judge.refusal(consumer, items)
        if verdicts is None and consumer.pops:
            verdicts = self._popped(run)
        if verdicts is None:
            verdicts = self._called(run)
        self._report(items, verdicts)
        if not self.backlog.finish(run, verdicts):
            logger.warning("a run of %s that was given up has ended; ignored: %s", consumer.title, items[0].id)
        elif run.lost:
            logger.warning("a run of %s ended after its item %s was lost; ignored", consumer.title, items[0].id)

    def _called(self, run: Run) -> list[Outcome | None]:
        """Call the handler, and say what becomes of the items."""
        consumer, items = self.consumer, run.items
        if consumer.takes_job:
            extended, gone = self.backlog.extended_apart, consumer.pops
            run.job = Job(consumer.queue, items, extended, name=consumer.label, gone=gone)
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        run.context = context = self._hands.context.copy()
        try:
            returned = self._hands.call(consumer, run, payload)
            return context.call(consumer.judge.outcomes, consumer, items, returned)
        except BaseException as error:  # whatever a handler raises is its run's alone
            if self._course.halted and not issubclass(type(error), Exception):
                raise
            return consumer.judge.failures(consumer, items, error)

    def _popped(self, run: Run) -> list[Outcome | None] | None:
        """Take the item of a run out of the queue for good; returns what becomes of it if that fails."""
        [item] = run.items
        run.pops = True
        if not self._is_taken_for_good(item):
            return [Release()]
        run.items[:] = [self.context.preserved(item)]
        self.backlog.extended_apart([item.held_until(NEVER)])
        return None

    def _report(self, items: list[Item[Any]], verdicts: list[Outcome | None]) -> None:
        """Log what has failed, by the type of the error: its text may tell what is nobody's business."""
        for item, verdict in zip(items, verdicts, strict=True):
            if isinstance(verdict, Failed):
                spent = self.context.settings.is_spent(item.attempts) and not self.backlog.is_probing
                level, which = (logging.WARNING, ", its last") if spent else (logging.INFO, "")
                words = item.id, self.consumer.title, item.attempts, which, kind(verdict.error)
                logger.log(level, "item %s of %s has failed in run %d%s: %s", *words)
                self._halt_for(item, verdict)
            elif isinstance(verdict, Dead):
                logger.info("item %s of queue %r was declared dead in run %d", item.id, item.queue, item.attempts)

    # --- leases ----------------------------------------------------------------------------------

    def lose(self, token: Any, key: Any) -> None:
        """Take note that somebody else has an item."""
        loser = self.backlog.lose(token, key)
        if loser is None:
            return
        item = loser if isinstance(loser, Item) else next(one for one in loser.items if id_key(one.id) == key)
        logger.warning("item %s of queue %r is lost: it was taken, or settled, by somebody else", item.id, item.queue)
        if isinstance(loser, Run) and loser.job is not None:
            loser.job.lost.set()

    def overdue(self) -> list[Run]:
        """Return the runs that have taken too long since the last look."""
        limit = self.consumer.max_time
        if limit is None:
            return []
        late = time.monotonic() - limit.total_seconds()
        runs = [run for run in list(self.backlog.running) if run.started < late and not run.told]
        for run in runs:
            run.told = True
        return runs
