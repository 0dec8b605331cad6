"""The line: a loader, and a worker that runs all stations meanwhile, until everything is drained."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import islice
from types import TracebackType
from typing import Any, Self

from examples.flights.model import RawRow
from examples.flights.stations import RETRY, Queues, Station, push
from mongoq import Job, Move, Outcome, Worker

__all__ = ["Line", "Tally"]

CHUNK = 250
"""Rows that are loaded by one command."""
GRACE = 5.0
"""Seconds that a handler may go on for when the line is left."""


class Tally:
    """What one station has done so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.endings: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._first: float | None = None
        self._last = 0.0

    def begin(self) -> None:
        """Note that there is something to do."""
        with self._lock:
            self._first = self._first or time.monotonic()

    def add(self, ending: str, number: int = 1) -> None:
        """Count items, by what became of them."""
        with self._lock:
            self.endings[ending] += number
            self._last = time.monotonic()

    @property
    def finished(self) -> int:
        """How many items have left the station."""
        return self.endings.total() - self.endings["retried"] - self.endings["lost"]

    @property
    def seconds(self) -> float:
        """From the first item to the last one."""
        return 0.0 if self._first is None else max(self._last - self._first, 0.0)

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.finished / self.seconds if self.seconds else 0.0


class Line:
    """Loader and stations at work; leaving the block stops them, with no item in their hands."""

    def __init__(self, queues: Queues, stations: Sequence[Station], rows: Iterable[RawRow], *, threads: int) -> None:
        self._queues = queues
        self._stop = threading.Event()
        self._worker = Worker(queues.broker, grace=GRACE)
        self.tallies = [Tally("load"), *(Tally(station.name) for station in stations)]
        for station, tally in zip(stations, self.tallies[1:], strict=True):
            self._worker.consumer(station.source, concurrency=threads, retry=RETRY)(_counted(station, tally))
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="line")
        self._loading = self._pool.submit(self._load, iter(rows), self.tallies[0])
        self._working = self._pool.submit(self._work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        while not self._working.done():
            self._worker.stop()  # again, should it just have been about to begin
            wait([self._working], timeout=GRACE)
        self._pool.shutdown()

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end, and say whether it is reached; raises what ended the loader or the worker."""
        done, rest = wait([self._loading, self._working], timeout=seconds, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return not rest

    def _load(self, rows: Iterable[RawRow], tally: Tally) -> None:
        tally.begin()
        while not self._stop.is_set() and (chunk := list(islice(rows, CHUNK))):
            push(self._queues, chunk)
            tally.add("pushed", len(chunk))

    def _work(self) -> None:
        """Drain the queues, and again while rows are still coming: it may have been faster than the loader."""
        loaded = False
        while not (loaded or self._stop.is_set()):
            loaded = self._loading.done()
            self._worker.run(drain=True)


def _counted(station: Station, tally: Tally) -> Callable[[Any, Job], Outcome | None]:
    """Return a station's handler, with what becomes of each item counted."""

    def handle(payload: Any, job: Job) -> Outcome | None:
        tally.begin()
        ending = "retried"
        try:
            outcome = station.handle(payload)
            ending = "committed" if outcome is None else "moved" if isinstance(outcome, Move) else "buried"
        finally:
            tally.add("lost" if job.lost.is_set() else ending)
        return outcome

    return handle
