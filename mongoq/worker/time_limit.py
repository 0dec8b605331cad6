"""Time limit of a consumer: calls beyond ``max_time`` are logged with their stacks by a watchdog, and given up."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mongoq.model.item import Item
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import Failed
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer
from mongoq.worker.failure_log import FailureReporter
from mongoq.worker.handler_call import HandlerCall

logger = logging.getLogger("mongoq.worker")

Overdue = Callable[[], Iterable[tuple[str, HandlerCall]]]
MAX_FRAMES = 100


@dataclass(eq=False, repr=False)
class TimeLimit:
    """Finds overdue calls for the watchdog, and gives them up if the consumer says so.

    ``cancel`` cancels the task of a call.
    """

    consumer: Consumer
    backlog: Backlog
    failures: FailureReporter
    cancel: Callable[[HandlerCall], None]

    @property
    def is_exhausted(self) -> bool:
        """True when overdue calls, also those that timed out, take all the concurrency of the consumer."""
        return len(self._find_overdue()) >= self.consumer.concurrency

    def take_overdue(self) -> list[HandlerCall]:
        """Return the calls that have become overdue since the last check."""
        overdue = [run for run in self._find_overdue() if not run.reported]
        for run in overdue:
            run.reported = True
        return overdue

    def give_up_overdue(self) -> list[list[Item[Any]]]:
        """Give up overdue calls, if the consumer says so; returns the items left to their leases, by call."""
        if self.consumer.on_timeout == "log":
            return []
        called = [run for run in self._find_overdue() if run.where is not None]
        return [run.items for run in called if self._give_up(run) and not run.pops]

    def _find_overdue(self) -> list[HandlerCall]:
        limit = self.consumer.max_time
        if limit is None:
            return []
        late = time.monotonic() - limit.total_seconds()
        return [run for run in list(self.backlog.running) if run.started < late]

    def _give_up(self, run: HandlerCall) -> bool:
        """Give up an overdue call; returns whether it was still under way."""
        consumer, [item, *_] = self.consumer, run.items
        outcomes = consumer.resolver.failures(consumer, run.items, consumer.timeout_error()) if run.pops else None
        if not self.backlog.time_out(run, outcomes):
            return False
        cancelled = consumer.on_timeout == "cancel"
        fate = "its handler is cancelled" if cancelled else "it comes again when its lease ends"
        if outcomes is not None:
            fate = "it has failed"
        seconds, worker = time.monotonic() - run.started, self.failures.coordinator.worker
        words = consumer.title, consumer.max_time, item.id, fate
        fields = log_fields(item, worker=worker, duration=seconds)
        logger.error("a run of %s is given up after %s: item %s; %s", *words, extra=fields)
        if outcomes is not None and isinstance(outcomes[0], Failed):
            self.failures.log(item, outcomes[0], duration=seconds)
        if run.job is not None:
            run.job.lost.set()
        if cancelled:
            self.cancel(run)
        return True


class Watchdog:
    """Looks for calls beyond their ``max_time``.

    It has its own thread, so that it also finds a handler that blocks the event loop.
    """

    def __init__(self, overdue: Overdue, every: float, worker: str = "") -> None:
        self._overdue = overdue
        self._worker = worker
        self._every = every
        self._ended = threading.Event()
        self._loop_thread = threading.get_ident()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="mongoq-watch", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            for queue, run in self._overdue():
                seconds = time.monotonic() - run.started
                logger.error(
                    "the handler of queue %r has run for %.1f s with item %s, and is here:\n%s",
                    queue,
                    seconds,
                    run.items[0].id,
                    stack_of(run.where, self._loop_thread),
                    extra=log_fields(run.items[0], worker=self._worker, duration=seconds),
                )


def stack_of(where: Any, home: int) -> str:
    """Return the stack of a thread, by its id, or of a task; ``home`` is the id of the event loop's thread."""
    frames = sys._current_frames()
    if not isinstance(where, asyncio.Task):
        frame = frames.get(where)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(it has just ended)\n"
    awaited = list(_follow_awaits(where.get_coro()))
    if not awaited:
        return "(it has just ended)\n"
    frame = frames.get(home)
    if frame is not None and _is_in(awaited[-1], frame):  # the task runs at this moment, and blocks the event loop
        return "".join(traceback.format_stack(frame))
    return "".join(traceback.StackSummary.extract((each, each.f_lineno) for each in awaited).format())


def _is_in(wanted: FrameType, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame is wanted:
            return True
        frame = frame.f_back
    return False


def _follow_awaits(coroutine: Any) -> Iterable[FrameType]:
    """Yield the frames of a coroutine and of the coroutines that it awaits."""
    for _ in range(MAX_FRAMES):
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
