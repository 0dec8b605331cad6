"""Time limit of a consumer: a watchdog logs overdue calls with their stacks, and the worker may give them up.

The watchdog also logs handlers that block the event loop, since no lease can be extended then.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

from mongoq.data.encoding.extended_json import duration_text
from mongoq.data.item import Item
from mongoq.data.log_fields import log_fields
from mongoq.worker.backlog import Backlog, HandlerCall
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator

logger = logging.getLogger("mongoq.worker")

LONG_RUN = timedelta(minutes=5)
"""Time after which a call is overdue, if the consumer has no ``max_time``."""
MAX_FRAMES = 100
BLOCKED_REPEAT_SECONDS = 300.0
"""Seconds without a further log line about a handler that blocks the event loop."""


@dataclass(eq=False, repr=False)
class TimeLimit:
    """Finds the overdue calls of a consumer, and gives them up if the consumer says so.

    ``cancel`` cancels the task of a call.

    Attributes:
        limit: time after which a call is overdue.
    """

    consumer: Consumer
    backlog: Backlog
    coordinator: Coordinator
    cancel: Callable[[HandlerCall], None]

    def __post_init__(self) -> None:
        self.limit = self.consumer.max_time or LONG_RUN

    @property
    def is_exhausted(self) -> bool:
        """True when calls beyond ``max_time``, also those that timed out, take all the concurrency of the consumer.

        Without a ``max_time`` a long call may be all right.
        """
        return self.consumer.max_time is not None and len(self.find_overdue()) >= self.consumer.concurrency

    def longest(self) -> timedelta | None:
        """Return for how long the longest overdue call runs; ``None`` if no call is overdue."""
        return max((timedelta(seconds=run.seconds) for run in self.find_overdue()), default=None)

    def note(self) -> str | None:
        """Return a sentence about the longest overdue call, which changes with its reports; ``None`` without one."""
        run = max(self.find_overdue(), key=lambda run: run.seconds, default=None)
        if run is None:
            return None
        length = duration_text(self.limit * 2 ** max(run.reports - 1, 0))
        return f"{self.consumer.title} has run item {run.items[0].id} for more than {length}"

    def find_overdue(self) -> list[HandlerCall]:
        """Return the calls whose handlers have run for longer than the limit; others may still wait for a rate."""
        limit = self.limit.total_seconds()
        return [run for run in list(self.backlog.running) if run.where is not None and run.seconds > limit]

    def give_up_overdue(self) -> list[list[Item[Any]]]:
        """Give up overdue calls, if the consumer says so; returns the items left to their leases, by call."""
        consumer, left = self.consumer, []
        for run in self.find_overdue() if consumer.on_timeout != "log" else ():
            outcomes = consumer.resolver.failures(consumer, run.items, consumer.timeout_error()) if run.pops else None
            if not self.backlog.time_out(run, outcomes):
                continue  # it has just ended
            [item, *_], fate = run.items, "it comes again when its lease ends"
            if outcomes is not None:
                fate = "it has failed"
            elif consumer.on_timeout == "cancel":
                fate = "its handler is cancelled"
            text = "a run of %s is given up after %s: item %s; %s"
            words, seconds = (consumer.title, consumer.max_time, item.id, fate), run.seconds
            self.coordinator.log(logging.ERROR, text, *words, item=item, duration=seconds)
            if outcomes is None:
                left.append(run.items)
            else:
                self.coordinator.report_failure(consumer, item, outcomes[0], duration=seconds)
            if run.job is not None:
                run.job.lost.set()
            if consumer.on_timeout == "cancel":
                self.cancel(run)
        return left


class Watchdog:
    """Logs overdue calls with their stacks, and code that blocks the event loop for half of a lease.

    It has its own thread, so that it also finds a handler that blocks the event loop. It asks the loop for an answer
    again and again. Each look without the answer notes the handler that runs.
    """

    def __init__(
        self, limits: Sequence[TimeLimit], every: float, worker: str, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._limits, self._every, self._worker, self._loop = limits, every, worker, loop
        self._ended = threading.Event()
        self._loop_thread = threading.get_ident()
        self._asked_at: float | None = None
        self._looked_at, self._cpu_seconds = time.monotonic(), time.process_time()
        self._blocking: dict[str, HandlerCall] = {}
        self._logged_at: dict[str, float] = {}

    def start(self) -> None:
        threading.Thread(target=self._watch, name="mongoq-watch", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        pause = self._every if self._loop is None else 0.0  # the first handler may block the loop
        while not self._ended.wait(pause):
            if self._loop is not None:
                pause = min(self._every, self._look_at_loop(self._loop))
            for limit, run in [(each, run) for each in self._limits for run in each.find_overdue()]:
                consumer, seconds = limit.consumer, run.seconds
                if seconds < limit.limit.total_seconds() * 2**run.reports:
                    continue  # logged at the limit, and at each doubling of it
                run.reports += 1
                logger.log(
                    logging.WARNING if consumer.max_time is None else logging.ERROR,
                    "the handler of %s has run for %.1f s with item %s, and is here:\n%s",
                    *(consumer.title, seconds, run.items[0].id, stack_of(run.where, self._loop_thread)),
                    extra=log_fields(run.items[0], worker=self._worker, duration=seconds),
                )

    def _look_at_loop(self, loop: asyncio.AbstractEventLoop) -> float:
        """Look whether the loop has answered, and log what blocks it; returns the seconds until the next look."""
        lease = min(limit.consumer.lease_length for limit in self._limits).total_seconds()
        last, cpu_seconds = self._looked_at, self._cpu_seconds
        self._looked_at, self._cpu_seconds = now, used = time.monotonic(), time.process_time()
        task, since = asyncio.current_task(loop), self._asked_at
        running = {  # the call whose task the loop runs at this moment
            f"{limit.consumer.handler_name} of {limit.consumer.title}": run
            for limit in self._limits
            for run in list(limit.backlog.running)
            if run.where is task is not None
        }
        if since is None:
            self._blocking.clear()
        if now - last > lease / 3:
            # A late look: the process was suspended, which no handler has caused. Or a handler has kept all threads
            # from running, as C code that holds the GIL does: it has used the processor, and is still running.
            is_held = bool(running) and used - cpu_seconds >= (now - last) / 2
            since = (since or last) if is_held else None
        if since is None:
            self._asked_at = now
            try:
                loop.call_soon_threadsafe(setattr, self, "_asked_at", None)
            except RuntimeError:  # the loop is closed
                self._asked_at = None
        else:
            self._blocking |= running
            seconds, names = now - since, list(self._blocking) or ["code outside of the handlers' tasks"]
            is_new = any(now - self._logged_at.get(name, -math.inf) >= BLOCKED_REPEAT_SECONDS for name in names)
            if seconds >= lease / 2 and is_new:
                self._logged_at |= dict.fromkeys(names, now)
                item = next((run.items[0] for run in self._blocking.values()), None)
                logger.warning(
                    "the event loop has been blocked for %.1f s by %s: no lease is extended, and when one ends, "
                    "another worker takes its item; use await or asyncio.to_thread, or make the handler a plain "
                    "function, which runs in a thread. It is here:\n%s",
                    *(seconds, " and ".join(names), stack_of(self._loop_thread, self._loop_thread)),
                    extra=log_fields(item, worker=self._worker, duration=seconds),
                )
        return max(lease / 6, 0.02)


def stack_of(where: Any, home: int) -> str:
    """Return the stack of a thread, by its id, or of a task; ``home`` is the id of the event loop's thread."""
    # Python 3.11 may deadlock when it collects garbage within that call (CPython issue 106883).
    collects = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    if not isinstance(where, asyncio.Task):
        frame = frames.get(where)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(it has just ended)\n"
    awaited: list[FrameType] = []
    coroutine: Any = where.get_coro()
    while len(awaited) < MAX_FRAMES:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        awaited.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    if not awaited:
        return "(it has just ended)\n"
    frame = frames.get(home)
    while frame is not None and frame is not awaited[-1]:
        frame = frame.f_back
    if frame is not None:  # the task runs at this moment, and blocks the event loop
        return "".join(traceback.format_stack(frames[home]))
    return "".join(traceback.StackSummary.extract((each, each.f_lineno) for each in awaited).format())
