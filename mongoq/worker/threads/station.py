# Generated from mongoq/worker/aio/station.py by scripts/unasync.py. Do not edit.
"""One consumer at work: loops that claim, run and settle, around a backlog that decides."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from mongoq.errors import MongoqError, ReservationLost
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Failed
from mongoq.protocol.bells import Bell
from mongoq.protocol.taking import take_alone, take_beside
from mongoq.protocol.verdicts import carried_out
from mongoq.worker.backlog import Backlog, Verdict
from mongoq.worker.consumer import Consumer
from mongoq.worker.course import Course
from mongoq.worker.hands_threads import ThreadHands
from mongoq.worker.judging import failure, failures, outcomes
from mongoq.worker.run import Run
from mongoq.worker.threads.job import Job

__all__ = ["Station"]

logger = logging.getLogger("mongoq.worker")

REST = 1.0
"""Seconds after which a loop looks around, though nothing rings."""
MOST = 1_000
"""Items of one claim."""


class Station:
    """Claims, runs and settles the items of one consumer."""

    def __init__(self, consumer: Consumer, course: Course, hands: ThreadHands) -> None:
        self.consumer = consumer
        self.backlog = Backlog(consumer)
        self.context = consumer.queue._context
        self._driver = consumer.queue._driver
        self._course = course
        self._hands = hands
        self._runners = 0
        self._ended = False

    def start(self) -> None:
        """Start the loops; runners start when there is something to run."""
        self._hands.start(self._fetch, f"mongoq-fetch-{self.consumer.name}")
        self._hands.start(self._settle, f"mongoq-settle-{self.consumer.name}")

    def close(self) -> None:
        """Claim and start nothing more, and give back what was not started; what runs goes on."""
        self.backlog.close()

    def end(self) -> None:
        """Let the loops end as soon as everything is settled."""
        self._ended = True
        self.backlog.settling.ring()

    # --- claims ----------------------------------------------------------------------------------

    def _fetch(self) -> None:
        while not self.backlog.closed:
            try:
                self._fetched()
            except Exception as error:
                self._course_pause(error, self.backlog.fetching)

    def _course_pause(self, error: Exception, bell: Bell) -> None:
        pause = self._course.trouble(error)
        if pause is None:
            self.backlog.close()
        else:
            self._hands.rest(bell, pause)

    def _fetched(self) -> None:
        n = 0 if self._course.is_hushed(self) else min(self.backlog.room(), MOST)
        if n == 0:
            self._hands.rest(self.backlog.fetching, self.backlog.pause(REST))
            return
        lease = self.consumer.lease or self.context.settings.lease
        claim = take_beside(self.context, n, lease, wait=math.inf, over=self._is_interrupted)
        taken = self._driver.run(claim)
        self._course.well()
        if taken is None:
            return
        self._accept(taken.items, asked=n)
        if taken.lapsed and not (taken.items and self._course.is_tired()):
            self._run_alone()

    def _is_interrupted(self) -> bool:
        return self.backlog.closed or self._course.is_hushed(self)

    def _accept(self, items: list[Item[Any]], *, asked: int) -> None:
        if not items:
            return
        lease = self.consumer.lease or self.context.settings.lease
        enough = self.backlog.put(items, lease, asked=asked, back=self._course.is_hushed(self))
        if self._course.is_hushed(self):  # by now; who has the worker waits for what may have been started
            self.backlog.release_waiting()
            return
        missing = self.backlog.wake(enough)
        for _ in range(min(missing, self.consumer.concurrency - self._runners)):
            self._runners += 1
            self._hands.start(self._work, f"mongoq-run-{self.consumer.name}-{self._runners}")

    def _run_alone(self) -> None:
        """Run what may have killed a worker by itself: nothing else of this worker runs, or waits for a run.

        A crash then is its own fault, and counts as such.
        """
        if not self._course.hush(self):
            return  # another consumer is at it; this one's turn comes
        try:
            self._quiet()
            while not self.backlog.closed and not self._course.is_tired():
                lease = self.consumer.lease or self.context.settings.lease
                told = self._driver.run(take_alone(self.context, lease))
                if told is None:
                    return
                item, lapsed = told
                if lapsed:
                    logger.warning("item %s of queue %r may have killed a worker; it runs alone", item.id, item.queue)
                self._accept([item], asked=1)
                self._quiet()
                if not lapsed:
                    return
        finally:
            self._course.unhush()

    def _quiet(self) -> None:
        """Wait until this worker holds nothing."""
        while self._course.holds_anything() and not self._course.halted:
            self._hands.rest(self._course.emptied, REST / 10)

    # --- runs ------------------------------------------------------------------------------------

    def _work(self) -> None:
        bell = Bell()
        while True:
            run = self.backlog.next(bell)
            if run is not None:
                self._ran(run)
            elif self.backlog.closed:
                return
            else:
                self._hands.rest(bell, REST * 60)

    def _ran(self, run: Run) -> None:
        consumer, items = self.consumer, run.items
        if consumer.takes_job:
            run.job = Job(consumer.queue, items)
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        try:
            verdicts = outcomes(consumer, items, self._hands.call(consumer, run, payload))
        except BaseException as error:  # whatever a handler raises is its run's alone
            if self._course.halted and not isinstance(error, Exception):
                raise
            verdicts = failures(consumer, items, error)
            self._report(run, error, verdicts)
        if not self.backlog.finish(run, verdicts) or run.lost:
            logger.warning("a run of queue %r ended after its item %s was lost; ignored", consumer.name, items[0].id)

    def _report(self, run: Run, error: BaseException, verdicts: list[Any]) -> None:
        told = verdicts[0]
        if told is None:
            return
        level = logging.INFO if isinstance(error, Exception) else logging.ERROR
        logger.log(
            level,
            "item %s of queue %r has failed in run %d: %s",
            run.items[0].id,
            self.consumer.name,
            run.items[0].attempts,
            type(error).__name__,
        )

    # --- settlements -----------------------------------------------------------------------------

    def _settle(self) -> None:
        backlog = self.backlog
        while True:
            verdicts = backlog.take_verdicts()
            if verdicts:
                self._settled(verdicts)
            elif self._ended or (backlog.closed and not backlog.held):
                return
            else:
                self._hands.rest(backlog.settling, REST)

    def _settled(self, verdicts: list[Verdict]) -> None:
        try:
            failed = self._driver.run(carried_out(self.context, verdicts, _resolved))
        except Exception as error:
            self.backlog.again(verdicts)
            self._course_pause(error, self.backlog.settling)
            return
        if not failed:
            self._course.well()
            self._let_go([item for item, _ in verdicts])
            return
        again = self._sorted(verdicts, dict(failed))
        if again:
            self.backlog.again([verdict for verdict, _ in again])
            errors = [error for _, error in again if error is not None]
            if errors:
                self._course_pause(errors[0], self.backlog.settling)

    def _sorted(self, verdicts: list[Verdict], failed: dict[Any, Exception]) -> list[tuple[Verdict, Exception | None]]:
        """Let go of what was settled or lost; returns what is to be settled again, with the server's error if any."""
        again: list[tuple[Verdict, Exception | None]] = []
        gone = []
        for item, outcome in verdicts:
            error = failed.get(id_key(item.id))
            if error is None:
                gone.append(item)
            elif isinstance(error, ReservationLost):
                logger.warning("item %s of queue %r was not settled: %s", item.id, item.queue, error)
                gone.append(item)
            elif not isinstance(error, MongoqError):
                again.append(((item, outcome), error))
            elif isinstance(outcome, Failed):
                logger.error("item %s of queue %r is left to its lease: %s", item.id, item.queue, error)
                gone.append(item)
            else:
                logger.error("what became of item %s of queue %r cannot be: %s", item.id, item.queue, error)
                again.append(((item, failure(self.consumer, item, error)), None))
        self._let_go(gone)
        return again

    def _let_go(self, items: list[Item[Any]]) -> None:
        self.backlog.settled(items)
        self._course.settled += len(items)
        if not self.backlog.held:
            self._course.emptied.ring()

    # --- leases ----------------------------------------------------------------------------------

    def lose(self, token: Any, key: Any) -> None:
        """Take note that somebody else has an item."""
        loser = self.backlog.lose(token, key)
        if loser is None:
            return
        item = loser if isinstance(loser, Item) else next(one for one in loser.items if id_key(one.id) == key)
        logger.warning("item %s of queue %r is lost: another worker has it by now", item.id, item.queue)
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


def _resolved(to: Any) -> Any:
    return getattr(to, "_context", to)
