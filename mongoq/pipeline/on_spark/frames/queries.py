"""Frame stages of a run: one streaming query for each of their queues."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable

from mongoq.errors import StageStopped
from mongoq.pipeline.on_spark.frames.query import FrameQuery
from mongoq.pipeline.run.counts import PipelineCounts, StageCounts

__all__ = ["FrameQueries"]

logger = logging.getLogger("mongoq.spark")


class FrameQueries:
    """Starts the queries of a run, watches them, and stops them.

    Args:
        queries: pairs of a stage's name and a query.

    Attributes:
        failure: error that has ended a query, other than a stage that stopped by itself; set by ``look``.
        stops: stages that have stopped by themselves, by name; set by ``look``.
    """

    def __init__(self, queries: Iterable[tuple[str, FrameQuery]]) -> None:
        self.failure: BaseException | None = None
        self.stops: dict[str, StageStopped] = {}
        self._queries = list(queries)
        self._counts: dict[str, StageCounts] = {}

    def start(self) -> None:
        """Start the queries, all or none."""
        try:
            for stage, query in self._queries:
                try:
                    query.start()
                except BaseException as error:
                    error.add_note(f"while the query of frame stage {stage!r} was started")
                    raise
        except BaseException:
            self.end(0)
            raise

    def look(self) -> None:
        """Update the counts, and record the queries that have ended."""
        counted: dict[str, Counter[str]] = {}
        for stage, query in self._queries:
            counted[stage] = counted.get(stage, Counter()) + query.counts()
            self._note(stage, query.failure)
        now = time.time()
        for stage, endings in counted.items():
            before = self._counts.get(stage, StageCounts())
            if endings != before.endings:
                before = StageCounts(endings, first=before.first or now, last=now)
            self._counts[stage] = StageCounts(endings, 0, before.first, before.last, stage in self.stops)

    def _note(self, stage: str, error: BaseException | None) -> None:
        if isinstance(error, StageStopped):
            if stage not in self.stops:
                logger.error("stage %r has stopped by itself: %s", stage, error)
            self.stops.setdefault(stage, error)
        else:
            self.failure = self.failure or error

    @property
    def have_stopped(self) -> bool:
        """True when all of them have stopped by themselves, or there are none."""
        return all(stage in self.stops for stage, _ in self._queries)

    @property
    def counts(self) -> PipelineCounts:
        """Counts at the last ``look``."""
        return PipelineCounts(dict(self._counts))

    def end(self, grace: float) -> None:
        """Stop the queries in good order, each within ``grace`` seconds: the items that they hold are released."""
        for stage, query in self._queries:
            try:
                query.stop(grace)
            except Exception as error:
                logger.warning("the query of stage %r could not be stopped in good order: %r", stage, error)
        self.look()
