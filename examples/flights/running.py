"""The line: a loader, and a run of the pipeline meanwhile, until everything is drained."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import mongoq
from examples.flights.model import RawRow
from examples.flights.pipeline import QUEUES, push
from examples.running import Line, Run, Site, nothing_in

__all__ = ["LoadedLine", "start_line"]

CHUNK = 250
"""Rows that are loaded by one command."""


class LoadedLine(Line):
    """A loader and a pipeline at work, made by ``start_line``."""

    def __init__(self, broker: mongoq.Broker, run: Run, rows: Iterable[RawRow], pool: ThreadPoolExecutor) -> None:
        super().__init__(run)
        self._loaded = 0
        self._broker = broker
        self._left = threading.Event()
        self._loading = pool.submit(self._load, iter(rows))

    @property
    def loaded(self) -> int:
        """Number of rows loaded."""
        return self._loaded

    def _load(self, rows: Iterable[RawRow]) -> None:
        while not self._left.is_set() and (chunk := list(islice(rows, CHUNK))):
            push(self._broker, chunk)
            self._loaded += len(chunk)

    def leave(self) -> None:
        """Stop loading."""
        self._left.set()

    def is_drained(self) -> bool:
        """Return whether everything is loaded and processed; raise the error that ended the loader."""
        if not self._loading.done():
            return False
        self._loading.result()
        return nothing_in(self._broker, QUEUES)


@contextmanager
def start_line(pipeline: mongoq.Pipeline, site: Site, rows: Iterable[RawRow] = ()) -> Iterator[LoadedLine]:
    """Set the pipeline to work on what its queues hold, and on rows that are loaded meanwhile.

    At the end of the block both are stopped, with no item in their hands.
    """
    with site.start(pipeline) as run, ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        line = LoadedLine(site.broker, run, rows, pool)
        try:
            yield line
        finally:
            line.leave()
