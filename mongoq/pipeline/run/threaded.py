"""Base of runs whose work is done in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from mongoq.model.arguments import Duration, wait_seconds
from mongoq.model.process.local import Local
from mongoq.worker.signals import listening

__all__ = ["ThreadedRun"]

LOOK = 0.1
"""Seconds between two checks for a signal, while a caller waits for the run."""


class ThreadedRun(Local):
    """Base of runs that work in a thread of this process: start, wait, stop."""

    _elsewhere = (
        "it belongs to the process that started it; another one makes the pipeline and a broker of its own, and starts "
        "that"
    )

    def __init__(self, name: str, *, signals: bool = True) -> None:
        self._name = name
        self._signals = signals
        self._failure: BaseException | None = None
        self._told = False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        """Return the pipeline's name and the state of the run, as text."""
        return f"<{type(self).__name__} of {self._name!r}, {'ended' if self.ended else 'at work'}>"

    def _begin(self, work: Callable[..., None], *args: Any) -> None:
        """Start the thread; ``wait`` raises the error that ends it."""

        def kept() -> None:
            try:
                work(*args)
            # Kept for wait, in the caller's thread: an error in this thread would only be printed.
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=kept, name=f"mongoq-{self._name}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True when the run has come to its end."""
        return self._thread is not None and not self._thread.is_alive()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for the end of the run, and return whether it has ended: stopped, or, when draining, with nothing left.

        In the main thread SIGTERM and SIGINT stop the run in good order meanwhile, as they stop a worker, unless it was
        started with ``signals=False``.

        Args:
            timeout: longest wait, a ``timedelta`` or seconds; ``None`` for no limit.

        Raises:
            StageStopped: a stage has stopped by itself, and the run has ended; the other stages go on until the run is
                stopped, or, when draining, until nothing is left.
            ArgumentInvalid: ``timeout`` is no duration.

        Other errors are those that end a worker.
        """
        deadline = None if timeout is None else time.monotonic() + wait_seconds(timeout)
        with listening(self._hear, signals=self._signals):
            while self._thread is not None and not self.ended:
                # Short joins: a signal handler runs only between them, in the main thread.
                left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._thread.join(left)
        if self._failure is not None:
            self._told = True
            raise self._failure
        return True

    def stop(self) -> None:
        """Ask the run to end."""
        raise NotImplementedError

    def _hear(self) -> None:
        """Ask the run to end, on a signal."""
        self.stop()

    def __enter__(self) -> Self:
        """Enter the block of ``with``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end; raises the run's error unless ``wait`` or the block has raised one before."""
        told = self._told
        self.stop()
        try:
            self.wait()
        except BaseException as ended:
            if error is None and not (told and ended is self._failure):
                raise
