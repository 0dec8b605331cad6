"""Durations of handler calls: a histogram by queue and outcome, which can be sent to another process and added there.

It needs no package of Prometheus, so a worker process below a supervisor counts without one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

from mongoq.data.outcomes import HandlerOutcome, Outcome
from mongoq.data.process import Local

BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets; one more bucket has no bound."""
OUTCOMES: tuple[type[Outcome], ...] = get_args(HandlerOutcome)


@dataclass(slots=True)
class Histogram:
    """Calls of one queue with one outcome.

    Attributes:
        counts: number of calls in each bucket, not in those below it.
        seconds: sum of all durations.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_SECONDS) + 1))
    seconds: float = 0.0


class RunDurations(Local):
    """Histograms of the handler calls of this process, by queue and outcome. Any thread may use it.

    It is a hook for ``worker.around`` and ``pipeline.around``.
    """

    _elsewhere = "it counts in its process; a pipeline with it runs in threads or with asyncio, not on Spark"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histograms: dict[tuple[str, str], Histogram] = {}

    @contextmanager
    def __call__(self, job: Any) -> Iterator[None]:
        """Return the context manager of one call of a handler: it counts the call by its outcome."""
        started, outcome = time.perf_counter(), "cancelled"  # not the handler has failed, but the run ends
        try:
            yield
            # A list with an entry for each item is the answer of a batch; others are values, and may be long.
            is_batch = issubclass(type(job.returned), list) and len(job.returned) == len(job.items)
            names = {_name_value(value) for value in (job.returned if is_batch else [job.returned])}
            outcome = names.pop() if len(names) == 1 else "mixed"
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.observe(job.item.queue, outcome, time.perf_counter() - started)

    def observe(self, queue: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        bucket = bisect_left(BUCKET_SECONDS, seconds)
        with self._lock:
            histogram = self._find(queue, outcome)
            histogram.counts[bucket] += 1
            histogram.seconds += seconds

    def read(self) -> list[tuple[str, str, list[int], float]]:
        """Return queue, outcome, counts and sum of seconds of each histogram, ordered by queue and outcome."""
        with self._lock:
            return [
                (*labels, list(histogram.counts), histogram.seconds)
                for labels, histogram in sorted(self._histograms.items())
            ]

    def take(self) -> list[tuple[str, str, list[int], float]]:
        """Return what was counted since the last call, and forget it; the values can be written as JSON."""
        with self._lock:
            taken, self._histograms = self._histograms, {}
        return [(*labels, histogram.counts, histogram.seconds) for labels, histogram in taken.items()]

    def add(self, taken: Iterable[Any]) -> None:
        """Add what another process has taken."""
        with self._lock:
            for queue, outcome, counts, seconds in taken:
                histogram = self._find(queue, outcome)
                histogram.counts = [own + more for own, more in zip(histogram.counts, counts, strict=True)]
                histogram.seconds += seconds

    def _find(self, queue: str, outcome: str) -> Histogram:
        return self._histograms.setdefault((queue, outcome), Histogram())


def _name_value(value: Any) -> str:
    # By the type: a value of the user may say that it is of any class, or raise when it is asked.
    kind = type(value)
    if issubclass(kind, BaseException):
        return "failed"
    return next((outcome.__name__.lower() for outcome in OUTCOMES if issubclass(kind, outcome)), "done")
