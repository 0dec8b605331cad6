# Generated from mongoq/worker/aio/station.py by scripts/unasync.py. Do not edit.
"""One consumer at work: loops that claim, run and settle, around a backlog that decides."""

from __future__ import annotations

import logging
import math
import time
from datetime import timedelta
from typing import Any

from mongoq.errors import MongoqError, PayloadInvalid, ReservationLost
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Dead, Failed, Outcome
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
    """Claims, runs and settles the items of one consumer.

    Attributes:
        consumer: what it was told.
        backlog: what it holds.
        context: the queue, by the consumer's own settings.
        claiming: a claim may be under way, or will be.
    """

    def __init__(self, consumer: Consumer, course: Course, hands: ThreadHands) -> None:
        self.consumer = consumer
        self.backlog = Backlog(consumer)
        self.context = consumer.queue._context
        self._driver = consumer.queue._driver
        self._course = course
        self._hands = hands
        self._runners = 0
        self._ended = False
        self.claiming = True

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
        self.claiming = True
        try:
            while not self.backlog.closed:
                try:
                    self._fetched()
                except PayloadInvalid as invalid:
                    self._refuse(invalid)
                except Exception as error:
                    self._got_over("claim", error, self.backlog.fetching)
        finally:
            self.claiming = False
            self.backlog.settling.ring()
            self._course.emptied.ring()

    def _refuse(self, invalid: PayloadInvalid) -> None:
        """Send back what does not fit the model, and has no dead queue to go to."""
        item: Any = invalid.item
        logger.error("item %s of queue %r cannot be run: %s", item.id, self.consumer.name, invalid)
        self.backlog.refuse(item, self.lease(), failure(self.consumer, item, invalid))

    def lease(self) -> timedelta:
        """Return how long its reservations last."""
        return self.consumer.lease or self.context.settings.lease

    def _got_over(self, what: str, error: Exception, bell: Bell) -> None:
        """Rest after an error; where it is no use to try again, end."""
        pause = self._course.trouble(what, error)
        if pause is None:
            self.backlog.close()
            self._ended = True
        else:
            self._hands.rest(bell, pause)

    def _fetched(self) -> None:
        n = 0 if self._course.is_hushed(self) else min(self.backlog.room(), MOST)
        if n == 0:
            self._hands.rest(self.backlog.fetching, self.backlog.pause(REST))
            return
        claim = take_beside(self.context, n, self.consumer.lease, over=self._is_interrupted)
        taken = self._driver.run(claim)
        self._course.well("claim")
        if taken is None:
            return
        self._accept(taken.items, asked=n)
        if taken.lapsed and not self._course.is_tired():
            self._run_alone()
        elif taken.lapsed and not taken.items:
            self._hands.rest(self.backlog.fetching, REST / 10)

    def _is_interrupted(self) -> bool:
        return self.backlog.closed or self._course.is_hushed(self)

    def _accept(self, items: list[Item[Any]], *, asked: int) -> None:
        if not items:
            return
        enough = self.backlog.put(items, self.lease(), asked=asked, back=self._course.is_hushed(self))
        if self._course.is_hushed(self):  # by now; who has the worker waits for what may have been started
            self.backlog.release_waiting()
            return
        missing = self.backlog.wake(enough)
        for _ in range(min(missing, self.consumer.concurrency - self._runners)):
            self._hands.start(self._work, f"mongoq-run-{self.consumer.name}-{self._runners + 1}", runs=True)
            self._runners += 1

    def _run_alone(self) -> None:
        """Run what may have killed a worker by itself: nothing else of this worker runs, or waits for a run.

        A crash then is its own fault, and counts as such.
        """
        if not self._course.hush(self):
            return  # another consumer is at it; this one's turn comes
        in_vain = False
        try:
            in_vain = not self._quiet(self._course.patience)
            while not (in_vain or self.backlog.closed or self._course.is_tired()):
                told = self._driver.run(take_alone(self.context, self.consumer.lease))
                if told is None:
                    return
                item, lapsed = told
                if lapsed:
                    logger.warning("item %s of queue %r may have killed a worker; it runs alone", item.id, item.queue)
                self._accept([item], asked=1)
                self._quiet(math.inf)
                if not lapsed:
                    return
        finally:
            self._course.unhush(in_vain=in_vain)

    def _quiet(self, seconds: float) -> bool:
        """Wait so long until this worker holds nothing; says whether it does not."""
        deadline = time.monotonic() + seconds
        while self._course.holds_anything():
            if self._course.halted or time.monotonic() > deadline:
                return False
            self._hands.rest(self._course.emptied, REST / 10)
        return True

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
        if consumer.takes_job:
            run.job = Job(consumer.queue, items, self.backlog.extended_apart)
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        try:
            verdicts = outcomes(consumer, items, self._hands.call(consumer, run, payload))
        except BaseException as error:  # whatever a handler raises is its run's alone
            if self._course.halted and not isinstance(error, Exception):
                raise
            verdicts = failures(consumer, items, error)
        self._report(items, verdicts)
        if not self.backlog.finish(run, verdicts):
            logger.warning("a run of queue %r that was given up has ended; ignored: %s", consumer.name, items[0].id)
        elif run.lost:
            logger.warning("a run of queue %r ended after its item %s was lost; ignored", consumer.name, items[0].id)

    def _report(self, items: list[Item[Any]], verdicts: list[Outcome | None]) -> None:
        """Log what has failed, by the type of the error: its text may tell what is nobody's business."""
        for item, verdict in zip(items, verdicts, strict=True):
            if isinstance(verdict, Failed):
                spent = self.context.settings.is_spent(item.attempts) and not self.backlog.is_probing
                level, which = (logging.WARNING, ", its last") if spent else (logging.INFO, "")
                words = item.id, self.consumer.name, item.attempts, which, _kind(verdict.error)
                logger.log(level, "item %s of queue %r has failed in run %d%s: %s", *words)
            elif isinstance(verdict, Dead):
                logger.info("item %s of queue %r was declared dead in run %d", item.id, item.queue, item.attempts)

    # --- settlements -----------------------------------------------------------------------------

    def _settle(self) -> None:
        backlog = self.backlog
        while True:
            verdicts = backlog.take_verdicts()
            if verdicts:
                self._settled(verdicts)
                if self._ended and backlog.verdicts:
                    return  # nobody can settle them
            elif self._ended or (backlog.closed and not backlog.held and not self.claiming):
                return
            else:
                self._hands.rest(backlog.settling, REST)

    def _settled(self, verdicts: list[Verdict]) -> None:
        try:
            failed = self._driver.run(carried_out(self.context, verdicts, _resolved))
        except BaseException as error:
            self.backlog.again(verdicts)
            if not isinstance(error, Exception):
                raise
            self._got_over("settle", error, self.backlog.settling)
            return
        if not failed:
            self._course.well("settle")
            self._let_go([item for item, _ in verdicts])
            return
        again = self._sorted(verdicts, dict(failed))
        if again:
            self.backlog.again([verdict for verdict, _ in again])
            errors = [error for _, error in again if error is not None]
            if errors:
                self._got_over("settle", errors[0], self.backlog.settling)

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


def _kind(error: BaseException | str | None) -> str:
    return type(error).__name__ if isinstance(error, BaseException) else "Retry"


def _resolved(to: Any) -> Any:
    return getattr(to, "_context", to)
