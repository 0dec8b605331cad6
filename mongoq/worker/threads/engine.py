# Generated from mongoq/worker/aio/engine.py by scripts/unasync.py. Do not edit.
"""A worker at work: its consumers, the leases of all of them, its record, and how it comes to an end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

from bson import ObjectId

from mongoq.drivers.backend import is_outage
from mongoq.errors import StageStopped
from mongoq.protocol.base.bootstrap import hello
from mongoq.protocol.coordination import heartbeats
from mongoq.protocol.flow.commands import Flow
from mongoq.protocol.flow.event import WakeEvent
from mongoq.protocol.settle.extend_leases import extend_leases
from mongoq.protocol.settle.timeouts import record_timeout
from mongoq.protocol.wait.next_due import is_drained
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.executor_threads import ThreadExecutor
from mongoq.worker.failure_log import error_line
from mongoq.worker.handler_call import HandlerCall
from mongoq.worker.outcome_resolver import kind
from mongoq.worker.sources.plan import SourcePlan
from mongoq.worker.threads.consumer_loop import ConsumerLoop
from mongoq.worker.threads.source_runner import SourceRunner
from mongoq.worker.watchdog import Watchdog

__all__ = ["Engine"]

logger = logging.getLogger("mongoq.worker")

SETTLED = ("worker %s has ended; it has settled %d items", "worker %s has ended; it has settled %d item")
GIVEN_UP = (
    "%d runs of queue %r were given up; their items go back",
    "%d run of queue %r was given up; its items go back",
)
LEFT = (
    "%d runs of queue %r that took too long have not ended, and are left",
    "%d run of queue %r that took too long has not ended, and is left",
)
"""Lines of the log, for several and for one."""

TICK = 1.0
"""Seconds between two looks at the leases, at most."""
LAST = 2.0
"""Seconds that the last settlements may take once the grace is over."""
SWEEP = timedelta(minutes=1)
"""From one look after the records of others to the next, whoever does it."""
SERVER_WAIT_SECONDS = 5.0
"""How long one look for a server takes at most before the worker's first command: so it can be stopped meanwhile."""
EMPTY = 0.02, 0.5
"""Seconds between two looks whether the queues are empty, at first and at most."""

_number = count(1)


class Engine:
    """Runs the consumers of a worker, once.

    Attributes:
        stations: one for each consumer.
        feeds: one for each source.
    """

    asynchronous = ThreadExecutor.asynchronous

    def __init__(
        self,
        broker: Any,
        consumers: Sequence[Consumer],
        *,
        grace: timedelta,
        heartbeat: timedelta,
        sources: Sequence[SourcePlan] = (),
        run: ObjectId | None = None,
    ) -> None:
        self._driver = broker._driver
        self._context = broker._context
        self._grace = grace
        self._heartbeat = heartbeat
        self._of_run = run
        self._course = Coordinator(self._context.hub)
        self._hands = ThreadExecutor(self._course.fail)
        self.stations = [ConsumerLoop(one, self._course, self._hands) for one in consumers]
        self._course.stations = self.stations
        self.feeds = [SourceRunner(one, self._course, self._hands) for one in sources]
        self._name = f"{self._context.identity}/{next(_number)}"
        self._signals = 0
        self._prepared = False
        self._echoes = False  # the next call of stop is that of a program which has heard the same signal
        self.interrupted = self._ended = False
        self._bells: list[WakeEvent] = []
        self._why = ""
        limits = [one.max_time.total_seconds() for one in consumers if one.max_time is not None]
        self._look = min(max(min(limits) / 4, 0.02), TICK) if limits else TICK
        self._watch = Watchdog(self._overdue, self._look) if limits else None

    def _overdue(self) -> Iterator[tuple[str, HandlerCall]]:
        for station in self.stations:
            for run in station.overdue():
                yield station.consumer.name, run

    @property
    def settled(self) -> int:
        """How many items it has settled."""
        return self._course.settled

    @property
    def is_resting(self) -> bool:
        """Whether it holds no item, and no source is at work here."""
        return not (self._course.holds_anything() or any(feed.active and not feed.waits for feed in self.feeds))

    def stop(self, why: str = "it was told to") -> None:
        """End in good order; told a second time, at once."""
        if self._echoes:
            self._echoes = False
            return
        self._why = self._why or why
        self.interrupted = self.interrupted or not self._signals  # else it has come to its end by itself
        self._signals += 1
        for station in self.stations:
            station.backlog.closed = True  # at once; a lock may be held by whom a signal has interrupted
        for feed in self.feeds:
            feed.stop()
        self._hands.ring(self._course.changed)

    def hear(self) -> None:
        """Do the same on a signal, of which the program, which hears it as well, may tell once more by ``stop``."""
        self._echoes = False
        self.stop("a signal came")
        self._echoes = True

    def run(self, *, drain: bool, signals: bool = True) -> None:
        """Work until told to stop, by a signal too if ``signals``, or, with ``drain``, until the queues are empty."""
        try:
            with self._hands.signals(self.hear, wanted=signals):
                if not self._prepared:
                    self.prepare()
                if self._signals:
                    logger.info("worker %s stops before it has started: %s", self._name, self._reason())
                else:
                    self._worked(drain=drain)
        finally:
            self._ended_all()
        if self._course.failure is not None:
            raise self._course.failure
        for station in self.stations:
            if station.halted is not None:
                item, error = station.halted
                cause = error if isinstance(error, BaseException) else None
                raise StageStopped(station.consumer.label, item.queue, item.id) from cause
        for feed in self.feeds:
            if feed.failure is not None:
                raise StageStopped(feed.plan.name, feed.plan.queue.name, None) from feed.failure

    def prepare(self, *checks: Callable[[], Flow[Any]]) -> None:
        """Make the collection ready, after the caller's own checks; wait for a server that does not answer, and say so.

        Ends early when the worker is told to stop. Other errors than those of an outage are raised.
        """
        flows: list[Callable[[], Flow[Any]]] = [*checks, partial(heartbeats.begin, self._context)]
        while not self._signals:
            try:
                self._driver.run_within(SERVER_WAIT_SECONDS, hello(self._context))
                for flow in flows:
                    self._driver.run(flow())
            except Exception as error:
                pause = self._course.trouble("answer", error) if is_outage(error) else None
                if pause is None:
                    raise
                self._hands.rest(self._course.changed, pause)
            else:
                self._course.well("answer")
                self._prepared = True
                return

    def _worked(self, *, drain: bool) -> None:
        if self._watch is not None:
            self._watch.start()
        parts = [*(one.consumer.title for one in self.stations), *(f"source {one.plan.name!r}" for one in self.feeds)]
        logger.info("worker %s starts: %s", self._name, ", ".join(dict.fromkeys(parts)))
        for station in self.stations:
            station.start()
        for feed in self.feeds:
            feed.start(once=drain)
        if self.stations:
            self._hands.start(self._keep, "mongoq-keep")
        if any(one.consumer.on_timeout != "log" for one in self.stations):
            self._hands.start(self._time_out, "mongoq-time-out")
        self._hands.start(self._beat, "mongoq-beat")
        if drain:
            self._hands.start(self._drained, "mongoq-drain")
        try:
            while not (self._signals or self._course.failure or self._is_idle()):
                self._hands.rest(self._course.changed, TICK)
            logger.info("worker %s stops: %s", self._name, self._reason())
            self._wound_down()
        except BaseException as error:
            self.stop()
            logger.info("worker %s stops at once: %s", self._name, kind(error))
            self._signals = 2
            self._hands.shielded(self._wound_down)
            raise

    def _reason(self) -> str:
        """Return why it stops; what keeps it from going on comes first."""
        if self._course.failure is not None:
            return f"it cannot go on: {error_line(self._course.failure)}"
        return self._why or "all that it ran has stopped by itself"

    def _is_idle(self) -> bool:
        """Say whether all stages have stopped by themselves, or there are none, and no source goes on."""
        return all(one.halted for one in self.stations) and (bool(self.stations) or all(one.over for one in self.feeds))

    def _ended_all(self) -> None:
        """Let all loops end, however this one has."""
        self._course.halted = self._ended = True
        for station in self.stations:
            station.close()
            station.end()
        for feed in self.feeds:
            feed.abandon()
        if self._watch is not None:
            self._watch.stop()
        for bell in self._bells:
            bell.ring()
        self._hands.close(LAST)
        logger.info(SETTLED[self.settled == 1], self._name, self.settled)

    # --- the end ---------------------------------------------------------------------------------

    def _wound_down(self) -> None:
        """Take nothing more, give back what waits, let finish what runs while the grace lasts, give back the rest."""
        for station in self.stations:
            station.close()
        for feed in self.feeds:
            feed.stop()
        self._context.hub.wake()
        deadline, cut_off = self._now() + self._grace, False
        while self._is_at_work() and self._signals < 2 and self._now() < deadline:
            if self._course.is_cut_off and not cut_off:  # nothing can be settled; a handler may be about to close it
                deadline, cut_off = min(deadline, self._now() + timedelta(seconds=TICK)), True
            self._hands.rest(self._course.emptied, TICK / 20)
        self._course.halted = True
        for station in self.stations:
            self._abandon(station)
        for feed in self.feeds:
            feed.abandon()
        deadline = self._now() + timedelta(seconds=LAST)
        while self._is_at_work() and self._now() < deadline:
            self._hands.rest(self._course.emptied, TICK / 20)
        if self._course.is_at_work():
            logger.warning("some items could not be given back; they come back when their leases end")

    def _abandon(self, station: ConsumerLoop) -> None:
        """Give back what runs; a run that has timed out has nothing left to give back."""
        left, queue = station.backlog.abandon(), station.consumer.name
        late = sum(run.timed_out for run in left)
        if late:
            logger.warning(LEFT[late == 1], late, queue)
        if len(left) > late:
            logger.warning(GIVEN_UP[len(left) - late == 1], len(left) - late, queue)
        for run in left:
            if run.job is not None:
                run.job.lost.set()
        if left:
            self._hands.abandon()

    def _is_at_work(self) -> bool:
        return self._course.is_at_work() or any(feed.active for feed in self.feeds)

    def _bell(self) -> WakeEvent:
        """Return a bell that rings when the worker has ended."""
        self._bells.append(WakeEvent())
        return self._bells[-1]

    def _now(self) -> datetime:
        return self._context.clock.now()  # type: ignore[no-any-return]

    # --- leases ----------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Extend leases while handlers run, those of all queues in one command."""
        bell = self._bell()
        while not self._ended:
            try:
                self._kept()
            except Exception as error:
                self._course.trouble("extend leases", error)
            else:
                self._course.well("extend leases")
            shortest = min(station.lease() for station in self.stations)
            self._hands.rest(bell, min(TICK, shortest.total_seconds() / 6))

    def _kept(self) -> None:
        now = self._now()
        if not any(station.backlog.is_due(now) for station in self.stations):
            return
        due = [(station, *one) for station in self.stations for one in station.backlog.due(now)]
        ends, lost = self._driver.run(extend_leases(self._context, [wanted for _, _, wanted in due]))
        for (station, lease, _), until in zip(due, ends, strict=True):
            station.backlog.extended(lease, until)
        for key, token in lost:
            for station in self.stations:
                station.lose(token, key)

    def _time_out(self) -> None:
        """Give up the runs that take too long, where their consumers are to."""
        bell = self._bell()
        while not self._ended:
            for station, items in [(one, items) for one in self.stations for items in one.time_out()]:
                try:
                    self._driver.run(record_timeout(station.context, items, station.timeout()))
                except Exception as error:  # of a kept error alone; their leases end all the same
                    logger.debug("that a run took too long is not kept on its items: %r", error)
            self._hands.rest(bell, self._look)

    # --- the record ------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Say now and then that this worker lives, and look after the records of others; at the end, say no more."""
        bell, started = self._bell(), self._now()
        sweep = started
        while not self._ended:
            held = Counter[str]()
            for station in self.stations:
                held[station.consumer.name] += station.backlog.held
            try:
                self._driver.run(
                    heartbeats.beat(
                        self._context,
                        self._name,
                        started=started,
                        every=self._heartbeat,
                        queues=held,
                        run=self._of_run,
                    )
                )
                if self._now() < sweep:
                    swept = None
                else:
                    swept, sweep = (
                        self._driver.run(heartbeats.swept(self._context, every=SWEEP)),
                        self._now() + SWEEP,
                    )
                for gone in swept or []:
                    logger.warning("worker %s is gone since %s; it held %s", gone.name, gone.seen, dict(gone.queues))
            except Exception as error:
                self._course.trouble("take heartbeats", error)
            else:
                self._course.well("take heartbeats")
            self._hands.rest(bell, self._heartbeat.total_seconds())
        try:
            self._driver.run(heartbeats.forget(self._context, self._name))
        except Exception as error:
            logger.debug("the record of this worker stays for a while: %r", error)

    # --- until the queues are empty --------------------------------------------------------------

    def _drained(self) -> None:
        """Stop when sources have ended and nothing is left in the queues.

        Nor may anything have been settled while they were looked at, since it may have come back, or be held by then:
        what is run at most once is in no queue.
        """
        bell, pause = self._bell(), EMPTY[0]
        while not (self._signals or self._ended):
            settled = self._course.settled
            # twice: an item may have gone from a queue that was still to be looked at to one that was found empty
            fed = all(feed.over for feed in self.feeds)
            empty = fed and not self._course.holds_anything() and self._is_empty() and self._is_empty()
            if empty and settled == self._course.settled and not self._course.holds_anything():
                self._signals += 1
                self._why = self._why or "its queues are empty"
                self._course.changed.ring()
                return
            pause = EMPTY[0] if settled != self._course.settled else min(pause * 2, EMPTY[1])
            self._hands.rest(bell, pause)

    def _is_empty(self) -> bool:
        try:
            for station in self.stations:
                own = is_drained(station.context, station.lease(), lingers=station.consumer.lingers)
                if station.halted is None and not self._driver.run(own):
                    return False
        except Exception as error:
            self._course.trouble("count", error)
            return False
        self._course.well("count")
        return True
