"""Queues of a run on Spark, as the driver sees them: whether an item is due, and whether nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

from mongoq.pipeline.graph.graph import Stage
from mongoq.protocol.wait.wait import find_next_dues, is_drained
from mongoq.sync import Broker, Queue
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import Coordinator

__all__ = ["Monitor"]

SERVER_SECONDS = 10.0
"""Seconds for one check: a run that is asked to stop while the server is away waits no longer than this."""


class Monitor:
    """Checks the queues of a run. After an error of the server the answer is unknown, and the monitor pauses.

    Args:
        broker: broker of the driver.
        consumers: consumers of the stages that tasks work on.
        frames: stages that run as streaming queries, each with one of its queues.
        coordinator: records errors and recoveries of the server.
        stopping: ends the pause.
    """

    def __init__(
        self,
        broker: Broker,
        consumers: Sequence[Consumer],
        frames: Sequence[tuple[Stage, Queue[Any]]],
        coordinator: Coordinator,
        stopping: threading.Event,
    ) -> None:
        self._broker = broker
        self._consumers = consumers
        self._frames = frames
        self._coordinator = coordinator
        self._stopping = stopping

    def is_due(self, stopped: Collection[str]) -> bool:
        """Return whether an item is ready for tasks, at a stage that has not stopped by itself."""
        queues = list(dict.fromkeys(one.name for one in self._consumers if one.stage not in stopped))
        if not queues:
            return False
        try:
            whens = self._broker._run_within(SERVER_SECONDS, find_next_dues, queues)
        except Exception as error:
            return self._pause_after(error)
        self._coordinator.report_recovery("count")
        return any(when <= self._broker._context.clock.now() for when in whens.values())

    def is_empty(self, stopped: Collection[str]) -> bool:
        """Return whether nothing is left. It checks twice: an item may have gone back to a queue checked before."""
        try:
            return all(
                queue._run_within(SERVER_SECONDS, is_drained, lease, keeps_scheduled=keeps_scheduled)
                for _ in range(2)
                for queue, lease, keeps_scheduled in self._find_watched(stopped)
            )
        except Exception as error:
            return self._pause_after(error)

    def _find_watched(self, stopped: Collection[str]) -> Iterator[tuple[Queue[Any], timedelta, bool]]:
        """Yield the queues that have to be empty at the end, their leases, and True if scheduled items may stay."""
        for one in self._consumers:
            if one.stage not in stopped:
                yield one.queue, one.lease or one.queue.settings.lease, one.drains_with_scheduled
        for stage, queue in self._frames:
            if stage.name not in stopped:
                yield queue, queue.settings.lease, False

    def _pause_after(self, error: Exception) -> bool:
        """Pause after an error of the server; returns False, because nothing is known."""
        self._stopping.wait(self._coordinator.report_error("count", error) or 0)
        return False
