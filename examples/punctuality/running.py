"""The line: a run of the pipeline, whose source brings the rows in, until everything is drained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mongoq
from examples.punctuality.pipeline import BUSY, SOURCE
from examples.running import Line, Run, Site, nothing_in

__all__ = ["SourcedLine", "started"]


class SourcedLine(Line):
    """A pipeline with a source at work, made by ``started``."""

    def __init__(self, broker: mongoq.Broker, run: Run) -> None:
        super().__init__(run)
        self._broker = broker

    @property
    def loaded(self) -> int:
        """How many rows the source has pushed in this run."""
        return self.progress().sources[SOURCE].pushed

    def is_drained(self) -> bool:
        """Say whether the source has ended and nothing is left to do, or it has stopped, which waiting raises."""
        source = self.progress().sources[SOURCE]
        return source.stopped or (source.ended and nothing_in(self._broker, BUSY))


@contextmanager
def started(pipeline: mongoq.Pipeline, site: Site) -> Iterator[SourcedLine]:
    """Set the pipeline to work; at the end of the block it is stopped, with no item in its hands."""
    with site.start(pipeline) as run:
        yield SourcedLine(site.broker, run)
