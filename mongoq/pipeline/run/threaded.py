"""Runs whose work is a thread of this process, and how they are waited for."""

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
"""Seconds between two looks whether a signal has come, while a run is waited for."""


class ThreadedRun(Local):
    """What runs have in common whose work is a thread of this process."""

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
        """Name the pipeline, and say whether it runs."""
        return f"<{type(self).__name__} of {self._name!r}, {'ended' if self.ended else 'at work'}>"

    def _begin(self, work: Callable[..., None], *args: Any) -> None:
        """Start the thread; what it raises is what ended the run."""

        def kept() -> None:
            try:
                work(*args)
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=kept, name=f"mongoq-{self._name}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self._thread is not None and not self._thread.is_alive()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait for its end, and say whether it is reached: it was stopped, or, drained, nothing is left.

        In the main thread SIGTERM and SIGINT stop it in good order meanwhile, as they stop a worker, unless it was
        started with ``signals=False``.

        Args:
            timeout: wait so long at most, a ``timedelta`` or seconds; ``None`` for ever.

        Raises:
            StageStopped: a stage has stopped by itself, and the run has ended; the others go on until it is stopped,
                or, drained, until nothing is left.
            ArgumentInvalid: ``timeout`` is no duration.

        Other errors are those that end a worker.
        """
        deadline = None if timeout is None else time.monotonic() + wait_seconds(timeout)
        with listening(self._hear, signals=self._signals):
            while self._thread is not None and not self.ended:
                left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._thread.join(left)
        if self._failure is not None:
            self._told = True
            raise self._failure
        return True

    def stop(self) -> None:
        """Tell it to end."""
        raise NotImplementedError

    def _hear(self) -> None:
        """Tell it to end, on a signal."""
        self.stop()

    def __enter__(self) -> Self:
        """Use as ``with``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the end; raises what ended it, unless it was told before or the block raises itself."""
        told = self._told
        self.stop()
        try:
            self.wait()
        except BaseException as ended:
            if error is None and not (told and ended is self._failure):
                raise
