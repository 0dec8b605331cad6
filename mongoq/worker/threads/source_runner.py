# Generated from mongoq/worker/aio/source_runner.py by scripts/unasync.py. Do not edit.
"""One source at work: it takes the lease, reads what the generator yields, and pushes that."""

from __future__ import annotations

import logging
import time
from functools import partial

from mongoq.errors import ArgumentInvalid
from mongoq.model.encoding.error_text import printable
from mongoq.protocol.coordination import sources
from mongoq.protocol.coordination.sources import DocumentLease, ForeignLease, TakenOver
from mongoq.protocol.flow.event import WakeEvent
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.outcome_resolver import kind
from mongoq.worker.sources.plan import SourcePlan
from mongoq.worker.sources.reader import SourceReader

__all__ = ["SourceRunner"]

logger = logging.getLogger("mongoq.source")

LOOK = 1.0
"""Seconds between two looks whether a lease that another process has is free, at most."""
SHARE = 3
"""How often a lease is extended while it lasts."""


class SourceRunner:
    """Runs one source, in one process at a time.

    A process that dies leaves the lease behind, and in the queue all that was committed; when the lease ends, another
    process goes on behind that.

    Attributes:
        plan: what it was told.
        active: it is at work, or is about to give back the lease.
        ended: the generator has come to its end, and is not called again.
        failure: why the source has stopped by itself.
        pushed: how many records were pushed here.
    """

    def __init__(self, plan: SourcePlan, course: Coordinator, hands: ThreadExecutor) -> None:
        self.plan = plan
        self.active = self.ended = False
        self.failure: BaseException | None = None
        self.pushed = 0
        self._context = plan.queue._context
        self._driver = plan.queue._driver
        self._course = course
        self._hands = hands
        self._bell = WakeEvent()
        self._ring = partial(hands.ring, self._bell)
        self._once = self._closing = self._abandoned = self._waits = False
        self._due = 0.0

    @property
    def over(self) -> bool:
        """Whether it has nothing more to do in this run."""
        return self.ended or self.failure is not None

    @property
    def waits(self) -> bool:
        """Whether another process has the lease."""
        return self._waits

    def start(self, *, once: bool) -> None:
        """Start the loop; ``once``: the source is called once, whatever ``every`` says."""
        self._once = once or self.plan.every is None
        self.active = True
        self._hands.start(self._work, f"mongoq-source-{self.plan.name}")

    def stop(self) -> None:
        """Let the generator be closed, push what is left of it, and give back the lease."""
        self._closing = True
        self._hands.ring(self._bell)

    def abandon(self) -> None:
        """Wait for the generator no more."""
        self._closing = self._abandoned = True
        self._hands.ring(self._bell)

    def _work(self) -> None:
        try:
            while self._goes_on():
                tenure = self._taken()
                if tenure is not None:
                    self._held(tenure)
        finally:
            self.active = False
            self._course.changed.ring()

    def _goes_on(self) -> bool:
        return not (self._closing or self.over)

    # --- the lease -------------------------------------------------------------------------------

    def _taken(self) -> DocumentLease | None:
        """Take the lease; after a while without it, return ``None``."""
        plan = self.plan
        try:
            found: DocumentLease | ForeignLease = self._driver.run(
                sources.taken(self._context.broker, plan.id, plan.lease)
            )
        except Exception as error:
            self._got_over("lease sources", error)
            return None
        self._course.well("lease sources")
        if isinstance(found, ForeignLease):
            if not self._waits:
                logger.info("source %r is run by %s; it waits", plan.name, found.by)
            self._waits = True
            self._hands.rest(self._bell, min(LOOK, self._third()))
            return None
        self._waits = False
        self._put_off()
        return found

    def _third(self) -> float:
        return self.plan.lease.total_seconds() / SHARE

    def _put_off(self) -> None:
        """Take note that the lease was just extended."""
        self._due = time.monotonic() + self._third()

    def _kept(self, tenure: DocumentLease) -> None:
        """Extend the lease when that is due."""
        if time.monotonic() < self._due:
            return
        try:
            self._driver.run(sources.extended(self._context.broker, tenure))
        except TakenOver:
            raise
        except Exception as error:
            self._got_over("extend the leases of sources", error)
        else:
            self._course.well("extend the leases of sources")
            self._put_off()

    def _given_back(self, tenure: DocumentLease) -> None:
        try:
            self._driver.run(sources.given_back(self._context.broker, tenure))
        except Exception as error:
            logger.debug("the lease of source %r could not be given back: %r", self.plan.name, error)

    def _held(self, tenure: DocumentLease) -> None:
        """Work for as long as the lease is ours."""
        try:
            while self._goes_on():
                self._called(tenure)
                if self._goes_on():
                    self._paused(tenure)
        except TakenOver as lost:
            words = self.plan.name, lost.held.by or "nobody"
            logger.warning("source %r has lost its lease, which %s has; nothing more is pushed under it", *words)
        else:
            self._given_back(tenure)

    def _paused(self, tenure: DocumentLease) -> None:
        """Rest until the source is to be called again."""
        assert self.plan.every is not None
        again = time.monotonic() + self.plan.every.total_seconds()
        while not self._closing and (left := again - time.monotonic()) > 0:
            self._kept(tenure)
            self._hands.rest(self._bell, min(left, self._third()))

    # --- the generator ---------------------------------------------------------------------------

    def _called(self, tenure: DocumentLease) -> None:
        """Call the source once, and push what it yields."""
        reading = self.plan.reading(tenure.position, self._ring)
        reading.start(self._hands.context.copy())
        try:
            while self._goes_on() and not reading.over:
                self._step(tenure, reading)
        finally:
            self._closed(reading)
        while not (self._abandoned or reading.over):
            self._pushed(tenure, reading)
        self._judge(reading)

    def _step(self, tenure: DocumentLease, reading: SourceReader) -> None:
        wait = reading.wait()
        if wait == 0:
            self._pushed(tenure, reading)
            return
        self._kept(tenure)
        self._hands.rest(self._bell, self._third() if wait is None else min(wait, self._third()))

    def _closed(self, reading: SourceReader) -> None:
        """Wait until the generator is closed."""
        reading.close()
        while not (reading.ended or self._abandoned):
            self._hands.rest(self._bell, LOOK)
        if not reading.ended:
            logger.warning("source %r does not come to its end, and is left behind", self.plan.name)

    def _judge(self, reading: SourceReader) -> None:
        """Say what the end of the generator means."""
        error = self.failure or (reading.failure if reading.over else None)
        if error is not None:
            self.failure = error
            words = self.plan.name, kind(error)
            logger.error(
                "source %r stops: %s; what it has yielded before is in its queue", *words, exc_info=printable(error)
            )
            self._course.changed.ring()
        elif self._once and not self._closing:
            self.ended = True
            self._course.changed.ring()

    def _pushed(self, tenure: DocumentLease, reading: SourceReader) -> None:
        """Push a batch, however long that takes; told to stop, try once."""
        batch = reading.take()
        while batch and self.failure is None:
            try:
                number = self._driver.run(sources.pushed(self._context, tenure, batch))
            except TakenOver:
                raise
            except ArgumentInvalid as error:
                self.failure = error
            except Exception as error:
                if self._closing:
                    self._abandoned = True  # what is left comes again
                    return
                self._got_over("push what sources yield", error)
            else:
                self._course.well("push what sources yield")
                self._put_off()
                self.pushed += number
                batch = batch[number:]

    def _got_over(self, what: str, error: Exception) -> None:
        """Rest after an error; where it is no use to try again, end."""
        pause = self._course.trouble(what, error)
        if pause is None:
            self._closing = self._abandoned = True
        else:
            self._hands.rest(self._bell, pause)
