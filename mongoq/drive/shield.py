"""A thread on which a command ends undisturbed when a signal interrupts the main thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

__all__ = ["Shield"]


@dataclass(slots=True)
class _Job:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    reply: Any = None
    error: Exception | None = None

    def run(self) -> None:
        """Do the work, once, however often the job was queued."""
        if self.done.is_set():
            return
        try:
            self.reply = self.work()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply


class Shield:
    """Runs one job at a time on a daemon thread, started at first use and again in a forked child."""

    def __init__(self) -> None:
        self._pid = -1
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def run(self, work: Callable[[], Any], undo: Callable[[Any], None]) -> Any:
        """Return what ``work`` returns; when interrupted, wait for its end, ``undo`` its reply, and go on.

        A second interrupt does not wait: the lease then gives the item back.
        """
        job = _Job(work)
        self._start()
        try:
            self._jobs.put(job)
            job.done.wait()
        except BaseException:
            self._jobs.put(job)  # the interrupt may have come before it was queued
            job.done.wait()
            if job.error is None:
                undo(job.reply)
            raise
        return job.result()

    def close(self) -> None:
        """End the thread once it is idle."""
        if self._pid == os.getpid():
            self._jobs.put(None)
        self._pid = -1

    def _start(self) -> None:
        if self._pid == os.getpid():
            return
        self._pid, self._jobs = os.getpid(), SimpleQueue()
        threading.Thread(target=_serve, args=(self._jobs,), name="mongoq-shield", daemon=True).start()


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
