"""The crew: threads of the driver that start shift after shift, while there is something to do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from mongoq.pipeline.on_spark.task import Report, Stop, TaskOrder
from mongoq.pipeline.run.counts import PipelineCounts, SourceCounts
from mongoq.spark.errors import ExecutorError, in_short

__all__ = ["Scheduler", "TaskSlot"]

logger = logging.getLogger("mongoq.spark")

LOOK = 0.1
SOURCE_SECONDS = 20.0
"""How long a shift on a source lasts, which is read anew from its position in the next one."""
IDLE = 0.25, 4.0
"""Seconds that a lane rests whose shift has settled nothing, at first and at most."""
FAILURES = 6
"""How often in a row a look whether executors can work at all may fail: after some 30 seconds the run ends."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds of rest after a failure, at first and at most."""

Shifts = Callable[[TaskOrder, int], Sequence[Report]]
"""Runs an order in so many tasks."""
Check = Callable[[], None]
"""Raises what keeps executors from working."""


class TaskSlot:
    """What one thread starts: shifts on stages, or on one source.

    Args:
        tasks: how many at a time, in one job.
        parts: the names of the stages, and of the source.
        source: the name of a source, which decides by itself when there is something to do; ``None`` for none.
        every: how long after its end a source is called again; ``None``: it is not.
    """

    def __init__(
        self, tasks: int, parts: frozenset[str], *, source: str | None = None, every: timedelta | None = None
    ) -> None:
        self.tasks = tasks
        self.parts = parts
        self.source = source
        self._every = every
        self._again = 0.0
        self._pause = 0.0

    def order(self, order: TaskOrder, stopped: frozenset[str], *, wanted: bool) -> TaskOrder | None:
        """Return the order of the next shift; ``None`` while there is nothing to do."""
        parts, feeds = self.parts - stopped, self.source is not None
        if self.has_stopped(stopped) or time.monotonic() < self._again or not (feeds or wanted):
            return None
        return replace(order, parts=parts, once=feeds, seconds=SOURCE_SECONDS if feeds else order.seconds)

    def has_stopped(self, stopped: Collection[str]) -> bool:
        """Say whether nothing is left to do when these stages and sources have stopped by themselves."""
        return self.source in stopped if self.source is not None else self.parts <= set(stopped)

    def note(self, told: PipelineCounts) -> None:
        """Take note of what a shift came to: a source that has ended rests, and a lane that has done nothing.

        That may be so again, as where a queue is paused, or where another process runs the source: each time it rests
        twice as long.
        """
        source = told.sources.get(self.source or "", SourceCounts())
        if source.ended:
            self._again = float("inf") if self._every is None else time.monotonic() + self._every.total_seconds()
            return
        idle = not (source.pushed or any(stage.endings for stage in told.stages.values()))
        self._pause = min(max(self._pause * 2, IDLE[0]), IDLE[1]) if idle else 0.0
        self._again = time.monotonic() + self._pause

    def lasting(self, told: PipelineCounts) -> PipelineCounts:
        """Return what holds for the run of what a shift has told: a source that is called again has not ended."""
        if self.source is None or self._every is None:
            return told
        return PipelineCounts(told.stages, {name: replace(one, ended=False) for name, one in told.sources.items()})

    @property
    def is_over(self) -> bool:
        """Whether there will never be anything more to do: a source that is not called again."""
        return self._again == float("inf")


class Scheduler:
    """Starts shifts in the lanes, and puts together what they tell.

    Attributes:
        failure: why it cannot go on: shifts have failed again and again.
        stops: stages and sources that have stopped by themselves, by name.
    """

    def __init__(self, title: str, order: TaskOrder, lanes: Sequence[TaskSlot], shifts: Shifts, check: Check) -> None:
        self.failure: BaseException | None = None
        self.stops: dict[str, Stop] = {}
        self._order = order
        self._lanes = lanes
        self._shifts = shifts
        self._check = check
        self._tallies = PipelineCounts()
        self._changed = threading.Condition()
        self._ending = False
        self._wanted = self._working = 0
        self._threads = [
            threading.Thread(target=self._work, args=(place, lane), name=f"{title}-{place}", daemon=True)
            for place, lane in enumerate(lanes)
        ]

    def start(self) -> None:
        """Let the threads begin; on stages nothing is done before it is wanted."""
        for thread in self._threads:
            thread.start()

    def want(self, more: bool) -> None:
        """Say whether there is something to do for the stages: one lane more begins each time that there is.

        So one item does not set all of them to work.
        """
        with self._changed:
            self._wanted = min(self._wanted + 1, len(self._lanes)) if more else 0
            self._changed.notify_all()

    @property
    def is_at_work(self) -> bool:
        """Whether a shift is under way."""
        return self._working > 0

    @property
    def sources_are_over(self) -> bool:
        """Whether no source has anything more to do."""
        return all(lane.is_over or lane.has_stopped(self.stops) for lane in self._lanes if lane.source is not None)

    @property
    def stages_have_stopped(self) -> bool:
        """Whether all stages have stopped by themselves."""
        return all(lane.has_stopped(self.stops) for lane in self._lanes if lane.source is None)

    @property
    def tallies(self) -> PipelineCounts:
        """What was counted in shifts that have ended."""
        with self._changed:
            return PipelineCounts.sum([self._tallies])

    def end(self) -> None:
        """Start nothing more."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait so long at most until the shifts under way have come to their end, and say whether they have."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, place: int, lane: TaskSlot) -> None:
        while (order := self._next(place, lane)) is not None:
            try:
                reports = self._shifts(order, lane.tasks)
            except Exception as error:
                self._got_over(error)
            else:
                self._note(lane, reports)
            finally:
                with self._changed:
                    self._working -= 1
                    self._changed.notify_all()

    def _next(self, place: int, lane: TaskSlot) -> TaskOrder | None:
        """Wait for something to do; ``None`` at the end."""
        with self._changed:
            while not (self._ending or self.failure or lane.is_over):
                order = lane.order(self._order, frozenset(self.stops), wanted=place < self._wanted)
                if order is not None:
                    self._working += 1
                    return order
                self._changed.wait(LOOK)
        return None

    def _note(self, lane: TaskSlot, reports: Sequence[Report]) -> None:
        with self._changed:
            told = PipelineCounts.sum(report.tallies for report in reports)
            self._tallies = PipelineCounts.sum([self._tallies, lane.lasting(told)])
            for stop in (stop for report in reports for stop in report.stops):
                self.stops.setdefault(stop.stage, stop)
                words = stop.stage, stop.queue, stop.cause
                logger.error("stage or source %r has stopped by itself, at queue %r: %s", *words)
            lane.note(told)

    def _got_over(self, error: Exception) -> None:
        """Wait until executors can work, after a shift that has failed; if that takes too long, end.

        Most likely a process has died, maybe of an item, which then has had a run: that ends nothing.
        """
        sentence = "a shift has failed, and what it held comes back when its leases end: %s"
        logger.warning(sentence, in_short(error))
        for failed in range(FAILURES):
            self._rest(min(FIRST_PAUSE * 2**failed, LONGEST_PAUSE))
            if self._ending or self.failure:
                return
            try:
                self._check()
            except ExecutorError as gone:
                error = gone
                break
            except Exception as still:
                error = still
            else:
                return
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while not (self._ending or self.failure) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
