"""The scheduler: threads of the driver that start task after task, while the monitor sees work in the queues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from mongoq.data.log_fields import log_fields
from mongoq.pipeline.on_spark.task import Report, Stop, TaskOrder
from mongoq.pipeline.run.run import Counts, PartCounts, sum_counts
from mongoq.spark.errors import ExecutorError, in_short

logger = logging.getLogger("mongoq.spark")

CHECK_SECONDS = 0.1
SOURCE_SECONDS = 20.0
"""Seconds that a task on a source lasts; the next task reads the source from its stored position."""
IDLE_REST_SECONDS = 0.25, 4.0
"""Seconds that a slot rests after a task that has settled nothing: at first, and at most."""
MAX_FAILED_CHECKS = 6
"""Failed checks in a row, at most, of whether executors can work: after about 30 seconds the run ends."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds of rest after a failure: at first, and at most."""


class TaskSlot:
    """Work of one thread of the scheduler: tasks on stages, or on one source.

    Args:
        tasks: number of tasks at the same time, in one job.
        parts: names of the stages, and of the source.
        source: name of a source, which decides by itself when it has records; ``None`` for none.
        every: pause between two calls of the source; ``None``: it is called once.
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

    def order(self, order: TaskOrder, stopped: Collection[str], *, wanted: bool) -> TaskOrder | None:
        """Return the order of the next task; ``None`` while there is no work."""
        is_source = self.source is not None
        if self.has_stopped(stopped) or time.monotonic() < self._again or not (is_source or wanted):
            return None
        seconds = SOURCE_SECONDS if is_source else order.seconds
        return replace(order, parts=self.parts.difference(stopped), once=is_source, seconds=seconds)

    def has_stopped(self, stopped: Collection[str]) -> bool:
        """Return whether no work is left when these stages and sources have stopped by themselves."""
        return self.source in stopped if self.source is not None else self.parts <= set(stopped)

    def record(self, counts: Counts) -> None:
        """Record the counts of a task: a source that has ended rests, and so does a slot that has settled nothing.

        Such a state may last, for example while a queue is paused or another process runs the source. So each rest is
        twice as long as the one before.
        """
        if counts.get(self.source or "", PartCounts()).ended:
            self._again = float("inf") if self._every is None else time.monotonic() + self._every.total_seconds()
            return
        idle = not any(part.endings for part in counts.values())
        self._pause = min(max(self._pause * 2, IDLE_REST_SECONDS[0]), IDLE_REST_SECONDS[1]) if idle else 0.0
        self._again = time.monotonic() + self._pause

    @property
    def comes_again(self) -> bool:
        """True where a source is called again after its end."""
        return self.source is not None and self._every is not None

    @property
    def is_over(self) -> bool:
        """True when there will be no more work: the source has ended and is not called again."""
        return self._again == float("inf")


class Scheduler:
    """Starts tasks in its slots, and sums up their counts.

    Args:
        run_order: runs an order in a number of tasks, and returns their reports.
        check: raises the error that keeps executors from working.

    Attributes:
        failure: error that ends the run: tasks have failed again and again; set by the threads.
        stops: stages and sources that have stopped by themselves, by name; set by the threads.
        counts: counts of the tasks that have ended; never changed, but replaced.
    """

    def __init__(
        self,
        title: str,
        order: TaskOrder,
        slots: Sequence[TaskSlot],
        run_order: Callable[[TaskOrder, int], Sequence[Report]],
        check: Callable[[], None],
    ) -> None:
        self.failure: BaseException | None = None
        self.stops: dict[str, Stop] = {}
        self._order = order
        self._slots = slots
        self._run_order = run_order
        self._check = check
        self.counts: Counts = {}
        self._changed = threading.Condition()
        self._ending = False
        self._wanted = self._working = 0
        self._threads = [
            threading.Thread(target=self._work, args=(place, slot), name=f"{title}-{place}", daemon=True)
            for place, slot in enumerate(slots)
        ]

    def start(self) -> None:
        """Start the threads; tasks on stages begin only after ``set_wanted``."""
        for thread in self._threads:
            thread.start()

    def set_wanted(self, more: bool) -> None:
        """Report whether there is work for stages: each call with ``more`` lets one more slot begin.

        So a single item does not start tasks in all slots.
        """
        with self._changed:
            self._wanted = min(self._wanted + 1, len(self._slots)) if more else 0
            self._changed.notify_all()

    @property
    def is_at_work(self) -> bool:
        """True while a task runs."""
        return self._working > 0

    @property
    def sources_are_over(self) -> bool:
        """True when no source has more work."""
        return all(slot.is_over or slot.has_stopped(self.stops) for slot in self._slots if slot.source is not None)

    @property
    def stages_have_stopped(self) -> bool:
        """True when all stages have stopped by themselves."""
        return all(slot.has_stopped(self.stops) for slot in self._slots if slot.source is None)

    def end(self) -> None:
        """Start no more tasks."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait for the running tasks, at most ``seconds``, and return whether they have ended."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, place: int, slot: TaskSlot) -> None:
        while (order := self._next(place, slot)) is not None:
            try:
                reports = self._run_order(order, slot.tasks)
            except Exception as error:
                self._wait_for_executors(error)
            else:
                with self._changed:
                    counts = own = sum_counts(report.counts for report in reports)
                    if slot.comes_again:  # a source that is called again has not ended
                        own = {name: replace(part, ended=False) for name, part in counts.items()}
                    self.counts = sum_counts([self.counts, own])
                    for stop in (stop for report in reports for stop in report.stops):
                        self.stops.setdefault(stop.stage, stop)
                        cause = stop.cause if self._order.log_errors == "message" else "an error"
                        words, fields = (stop.stage, stop.queue, cause), log_fields(queue=stop.queue, id=stop.item_id)
                        text = "stage or source %r has stopped by itself, at queue %r: %s"
                        logger.error(text, *words, extra=fields)
                    slot.record(counts)
            finally:
                with self._changed:
                    self._working -= 1
                    self._changed.notify_all()

    def _next(self, place: int, slot: TaskSlot) -> TaskOrder | None:
        """Wait for the next order; ``None`` at the end."""
        with self._changed:
            while not (self._ending or self.failure or slot.is_over):
                order = slot.order(self._order, self.stops, wanted=place < self._wanted)
                if order is not None:
                    self._working += 1
                    return order
                self._changed.wait(CHECK_SECONDS)
        return None

    def _wait_for_executors(self, error: Exception) -> None:
        """Wait until executors can work again after a task has failed; ends the run if this takes too long.

        Most likely a process has died, maybe because of an item, whose attempt then counts. That does not end the run.
        """
        sentence = "a task has failed, and its items come back when their leases end: %s"
        logger.warning(sentence, in_short(error))
        for failed in range(MAX_FAILED_CHECKS):
            with self._changed:
                pause = min(FIRST_PAUSE * 2**failed, LONGEST_PAUSE)
                if self._changed.wait_for(lambda: self._ending or self.failure, pause):
                    return
            try:
                self._check()
            except ExecutorError as final:
                error = final
                break
            except Exception as latest:
                error = latest
            else:
                return
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
