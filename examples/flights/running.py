"""The line: a loader, and a run of the pipeline meanwhile, by either engine, until everything is drained."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice

import mongoq
from examples.flights.eventloop import RunOnLoop, started_on_loop
from examples.flights.model import RawRow
from examples.flights.pipeline import Engine, is_drained, push

__all__ = ["Line", "Site", "started"]

CHUNK = 250
"""Rows that are loaded by one command."""
GRACE = 5.0
"""Seconds that a handler may go on for when the line is left."""
LOOK = 0.1
"""Seconds between two looks whether everything is drained."""

Run = mongoq.Run | RunOnLoop


@dataclass(frozen=True, slots=True)
class Site:
    """Where the pipeline works, and how.

    Attributes:
        broker: of its queues.
        uri: of the broker's server.
        engine: what runs the stages.
    """

    broker: mongoq.Broker
    uri: str
    engine: Engine = "threads"

    def start(self, pipeline: mongoq.Pipeline) -> AbstractContextManager[Run]:
        """Set a pipeline to work for the length of a block."""
        if self.engine == "asyncio":
            return started_on_loop(pipeline, self.uri, self.broker.namespace, grace=GRACE)
        return pipeline.start(self.broker, grace=GRACE)


class Line:
    """A loader and a pipeline at work, made by ``started``.

    Attributes:
        loaded: how many rows were loaded.
    """

    def __init__(self, broker: mongoq.Broker, run: Run, rows: Iterable[RawRow], pool: ThreadPoolExecutor) -> None:
        self.loaded = 0
        self._broker = broker
        self._run = run
        self._left = threading.Event()
        self._loading = pool.submit(self._load, iter(rows))

    def _load(self, rows: Iterable[RawRow]) -> None:
        while not self._left.is_set() and (chunk := list(islice(rows, CHUNK))):
            push(self._broker, chunk)
            self.loaded += len(chunk)

    def leave(self) -> None:
        """Load no more."""
        self._left.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end, and say whether it is reached; raises what ended the loader or the run."""
        deadline = time.monotonic() + seconds
        while not self._is_over():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(LOOK, left))
        self._run.stop()
        return self._run.wait()

    def _is_over(self) -> bool:
        if self._run.ended:
            return True
        if not self._loading.done():
            return False
        self._loading.result()
        return is_drained(self._broker)

    def progress(self) -> mongoq.Progress:
        """Return how far the stages have come."""
        return self._run.progress()


@contextmanager
def started(pipeline: mongoq.Pipeline, site: Site, rows: Iterable[RawRow] = ()) -> Iterator[Line]:
    """Set the pipeline to work on what its queues hold, and on rows that are loaded meanwhile.

    At the end of the block both are stopped, with no item in their hands.
    """
    with site.start(pipeline) as run, ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        line = Line(site.broker, run, rows, pool)
        try:
            yield line
        finally:
            line.leave()
