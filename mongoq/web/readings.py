"""Readings of all queues, shared by all pages and limited to a small part of the time, and the throughput from them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anyio import Lock

from mongoq.protocol.insight import QueueInsight, read_queues
from mongoq.web.client import BrokerClient

MIN_PAUSE_SECONDS = 5.0
"""Seconds between two readings, at least."""
SHARE = 100
"""Part of the time in which a reading may be under way: one hundredth, however many queues there are."""
SAMPLE_SECONDS = 60.0
"""Seconds between two samples of the throughput, at least."""
SAMPLES = 60
"""Samples that are kept, for an hour."""
DONE = ("get", "commit", "move")
"""Events by which an item leaves a queue as it should."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers of items that had left each queue by a time.

    Attributes:
        at: time, on a clock of this process.
        done: numbers by queue, since each queue was made.
    """

    at: float
    done: Mapping[str, int]


class QueueReadings:
    """Reads the state of all queues for everybody who asks, and keeps an hour of throughput.

    Args:
        client: client of the broker.
        clock: returns seconds; another one only in tests.
    """

    def __init__(self, client: BrokerClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = Lock()
        self._last: list[QueueInsight] | None = None
        self._read_at = 0.0
        self._seconds = 0.0
        self._samples: deque[Sample] = deque(maxlen=SAMPLES + 1)

    @property
    def pause(self) -> float:
        """Seconds that a reading is used, before the next one."""
        return max(MIN_PAUSE_SECONDS, SHARE * self._seconds)

    async def read(self) -> list[QueueInsight]:
        """Return the state of all queues: the last reading, or a new one if that is too old."""
        async with self._lock:
            if self._last is None or self._clock() >= self._read_at + self.pause:
                began = self._clock()
                self._last = await self._client.read(read_queues)
                self._read_at = self._clock()
                self._seconds = self._read_at - began
                self._keep_sample(self._last)
            return self._last

    async def read_numbers(self) -> Any:
        """Return the numbers of a reading that are worth a new look at a page when they change."""
        queues = await self.read()
        return [{**queue.to_document(), "at": None, "oldest_age_seconds": None} for queue in queues]

    def rates(self, queue: str) -> list[float]:
        """Return the numbers of items a minute that have left a queue, between each two samples of the last hour."""
        pairs = zip(self._samples, list(self._samples)[1:], strict=False)
        return [
            # A queue that was dropped meanwhile counts from zero again.
            60 * max(0, after.done.get(queue, 0) - before.done.get(queue, 0)) / (after.at - before.at)
            for before, after in pairs
        ]

    def _keep_sample(self, queues: list[QueueInsight]) -> None:
        if self._samples and self._read_at < self._samples[-1].at + SAMPLE_SECONDS:
            return
        done = {queue.name: sum(queue.events.get(event, 0) for event in DONE) for queue in queues}
        self._samples.append(Sample(self._read_at, done))
