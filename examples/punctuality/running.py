"""The line: a run of the pipeline with its source, until everything is drained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mongoq
from examples.punctuality.pipeline import BUSY, SOURCE
from examples.running import Line, Run, Site, nothing_in

__all__ = ["SourcedLine", "start_line"]


class SourcedLine(Line):
    """A pipeline with a source at work, made by ``start_line``."""

    def __init__(self, broker: mongoq.Broker, run: Run) -> None:
        super().__init__(run)
        self._broker = broker

    @property
    def loaded(self) -> int:
        """Number of rows that the source has pushed in this run."""
        return self.progress().sources[SOURCE].pushed

    def is_drained(self) -> bool:
        """Return whether the source has ended and nothing is left, or the run has stopped (``wait`` raises why)."""
        source = self.progress().sources[SOURCE]
        return source.stopped or (source.ended and nothing_in(self._broker, BUSY))


@contextmanager
def start_line(pipeline: mongoq.Pipeline, site: Site) -> Iterator[SourcedLine]:
    """Set the pipeline to work; at the end of the block it is stopped, with no item in its hands."""
    with site.start(pipeline) as run:
        yield SourcedLine(site.broker, run)
