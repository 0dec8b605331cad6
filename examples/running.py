"""A pipeline at work, by any engine, until nothing is left for it; what the examples have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import mongoq
from examples.eventloop import as_coroutine, run_on_loop

__all__ = ["ENGINES", "WORKERS", "Engine", "Line", "Run", "Site", "nothing_in"]

GRACE = 5.0
"""Seconds that a handler may go on for when the line is left."""
LOOK = 0.1
"""Seconds between two looks whether everything is drained."""

Handler = Callable[..., Any]


class Run(Protocol):
    """A run of a pipeline, as ``mongoq.Run`` is one."""

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        ...

    def stop(self) -> None:
        """Ask the run to stop in good order; do not wait."""
        ...

    def wait(self) -> bool:
        """Wait for the end of the run; raise the error that ended it."""
        ...

    def progress(self) -> mongoq.Progress:
        """Return the progress of the run."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """The place and the engine of a pipeline.

    Attributes:
        broker: of its queues.
        uri: of the broker's server.
        engine: what runs the stages, one of ``ENGINES``.
        session: returns the Spark session of the engine ``spark``.
    """

    broker: mongoq.Broker
    uri: str
    engine: str = "threads"
    session: Callable[[], Any] | None = None

    def start(self, pipeline: mongoq.Pipeline) -> AbstractContextManager[Run]:
        """Run a pipeline for the length of a block."""
        return ENGINES[self.engine].start(pipeline, self)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that runs stages. All engines give the same results; each is one entry of ``ENGINES``.

    Attributes:
        start: sets a pipeline to work at a site, for the length of a block.
        adapted: makes of a plain function the handler that suits it best.
    """

    start: Callable[[mongoq.Pipeline, Site], AbstractContextManager[Run]]
    adapted: Callable[[Handler], Handler]


def _in_threads(pipeline: mongoq.Pipeline, site: Site) -> AbstractContextManager[Run]:
    return pipeline.start(site.broker, grace=GRACE)


def _on_loop(pipeline: mongoq.Pipeline, site: Site) -> AbstractContextManager[Run]:
    return run_on_loop(pipeline, site.uri, site.broker.namespace, grace=GRACE)


def _on_spark(pipeline: mongoq.Pipeline, site: Site) -> AbstractContextManager[Run]:
    assert site.session is not None, "there is no Spark session at this site"
    database, _, collection = site.broker.namespace.partition(".")
    return pipeline.run_on_spark(site.session(), site.uri, database=database, collection=collection)


def _as_it_is(handler: Handler) -> Handler:
    return handler


ENGINES: Mapping[str, Engine] = {
    "threads": Engine(_in_threads, _as_it_is),
    "asyncio": Engine(_on_loop, as_coroutine),
    "spark": Engine(_on_spark, _as_it_is),
}
WORKERS = ("threads", "asyncio")
"""Those that work in this process."""


class Line(ABC):
    """A run of a pipeline, and what brings items in meanwhile."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    @abstractmethod
    def loaded(self) -> int:
        """Number of rows loaded."""

    @abstractmethod
    def is_drained(self) -> bool:
        """Return whether nothing is left to do; raise the error that ended the loading."""

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether the end is reached; raise the error that ended loading or run."""
        deadline = time.monotonic() + seconds
        while not (self._run.ended or self.is_drained()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(LOOK, left))
        self._run.stop()
        return self._run.wait()

    def progress(self) -> mongoq.Progress:
        """Return the progress of the stages."""
        return self._run.progress()


def nothing_in(broker: mongoq.Broker, queues: Iterable[str]) -> bool:
    """Return whether the queues are drained. They are read in the pipeline's order, so none fills up again."""
    return all(broker.queue(name).next_when() is None for name in queues)
