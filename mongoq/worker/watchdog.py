"""Watchdog: a thread that finds calls beyond their ``max_time``, and logs their stacks."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from mongoq.worker.handler_call import HandlerCall

__all__ = ["Watchdog"]

logger = logging.getLogger("mongoq.worker")

Overdue = Callable[[], Iterable[tuple[str, HandlerCall]]]
MAX_FRAMES = 100


class Watchdog:
    """Looks for calls beyond their ``max_time``.

    It has its own thread, so that it also finds a handler that blocks the event loop.
    """

    def __init__(self, overdue: Overdue, every: float) -> None:
        self._overdue = overdue
        self._every = every
        self._ended = threading.Event()
        self._loop_thread = threading.get_ident()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="mongoq-watch", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end."""
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
    return "".join(traceback.StackSummary.extract((one, one.f_lineno) for one in awaited).format())


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
