"""The line: loader and stations at work all at once, on plain threads, until everything is drained."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from examples.flights.model import RawRow
from examples.flights.stations import Queues, Station, push

__all__ = ["Line", "Tally"]

PATIENCE = 0.5
"""Seconds that a thread waits for an item before it asks whether there is anything left to wait for."""


class Tally:
    """What the threads of one station have done so far."""

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

    def add(self, ending: str) -> None:
        """Count an item, by what became of it."""
        with self._lock:
            self.endings[ending] += 1
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


class _Shared:
    """An iterator that several threads may draw from, one row at a time."""

    def __init__(self, rows: Iterable[RawRow]) -> None:
        self._rows = iter(rows)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[RawRow]:
        return self

    def __next__(self) -> RawRow:
        with self._lock:
            return next(self._rows)


class Line:
    """Loader and stations, a few threads each; leaving the block stops them, with no item in their hands.

    A station is through when everybody before it is, and its queue is empty: nothing ready, nothing waiting
    for another try, nothing reserved. A move is one command: what has left one queue is in the next.
    """

    def __init__(self, queues: Queues, stations: Sequence[Station], rows: Iterable[RawRow], *, threads: int) -> None:
        self._queues = queues
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads * (len(stations) + 1), thread_name_prefix="station")
        self.tallies = [Tally("load"), *(Tally(station.name) for station in stations)]
        shared = _Shared(rows)
        crew = [self._pool.submit(self._load, shared, self.tallies[0]) for _ in range(threads)]
        self._futures = list(crew)
        for station, tally in zip(stations, self.tallies[1:], strict=True):
            crew = [self._pool.submit(self._tend, station, tally, tuple(crew)) for _ in range(threads)]
            self._futures += crew

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end, and say whether it is reached; raises what ended a thread."""
        done, rest = wait(self._futures, timeout=seconds, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return not rest

    def _load(self, rows: Iterable[RawRow], tally: Tally) -> None:
        tally.begin()
        for row in rows:
            if self._stop.is_set():
                return
            push(self._queues, row)
            tally.add("pushed")

    def _tend(self, station: Station, tally: Tally, upstream: Sequence[Future[None]]) -> None:
        while not self._stop.is_set():
            last = all(future.done() for future in upstream)
            item = station.source.reserve(wait=PATIENCE)
            if item is not None:
                tally.begin()
                tally.add(station.serve(item))
            elif last and station.source.counts().total == 0:
                return
