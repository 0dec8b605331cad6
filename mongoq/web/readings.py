"""Readings that all pages share, limited to a small part of the time, and signals that numbers have changed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

from anyio import Lock

from mongoq import QueueInsight
from mongoq.aio import AsyncInspection
from mongoq.data.encoding.extended_json import json_text
from mongoq.web.client import BrokerClient

T = TypeVar("T")
MIN_PAUSE_SECONDS = 5.0
"""Seconds between two readings, at least."""
MAX_PAUSE_SECONDS = 180.0
"""Seconds between two readings, at most."""
SHARE = 200
"""Part of the time in which a reading may be under way: half a hundredth, because a page has two of them."""
MAX_KEPT = 100
"""Values by key that are kept for their readers, of each kind."""
SAMPLE_SECONDS = 60.0
"""Seconds between two samples of the throughput, at least."""
SAMPLES = 60
"""Samples that are kept, beside the first one."""
KEPT_SECONDS = 3_600.0
"""Age of the first sample: the last one that is as old as this, if nobody has looked for long an older one."""
DONE = ("get", "commit", "move")
"""Events by which an item leaves a queue as it should."""
FAILED = ("rollback", "dead")
"""Events of failed runs: the item comes again, or has failed for good."""
FAILING_SAMPLES = 5
"""Last samples in which a failure makes a queue a failing one."""
STREAM_SECONDS = 5.0
"""Seconds after which a stream of events ends; the browser then asks for the next one.

A server that is told to end waits for open streams, and ``uvicorn`` tells an app only after that.
"""
LOOK_SECONDS = 0.5
"""Seconds until an open stream notices a new reading, or that it is to end."""
OPENING = "retry: 1000\nid: {}\ndata: \n\n"
"""First event: milliseconds after which the browser asks for the next stream, and the version that it then names."""
CHANGED = "event: changed\nid: {}\ndata: \n\n"
"""Event that says that numbers have changed; its id is the version of the numbers."""


class SharedReading(Generic[T]):
    """A value that all callers share, and that is read anew when it has become too old.

    Callers that have waited for a reading that failed get its error: when no server answers, they would otherwise wait
    one after the other.

    Args:
        read: coroutine function that reads the value.

    Attributes:
        began_at: time at which the last reading began, on the clock.
        read_at: time at which it ended.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self.began_at = self.read_at = 0.0
        self._read = read
        self._clock = time.monotonic
        self._lock = Lock()
        self._values: list[T] = []
        self._seconds: deque[float] = deque(maxlen=2)
        self._failure: tuple[float, Exception] | None = None

    @property
    def pause(self) -> float:
        """Seconds that a reading is used, before the next one.

        Of the last two readings the faster one decides: one that a failover has held up must not stop the next ones.
        """
        return min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, SHARE * min(self._seconds, default=0.0)))

    async def get(self) -> T:
        """Return the value of the last reading, or of a new one if that is too old."""
        asked = self._clock()
        async with self._lock:
            if self._values and self._clock() < self.read_at + self.pause:
                return self._values[0]
            if self._failure is not None and self._failure[0] > asked:
                raise self._failure[1]
            began = self._clock()
            try:
                self._values = [await self._read()]
            except Exception as error:
                self._failure = (self._clock(), error)
                raise
            self.began_at, self.read_at = began, self._clock()
            self._seconds.append(self.read_at - began)
            return self._values[0]


class SharedReadings(Generic[T]):
    """Values by key, each of which all callers share: pages as open pages ask for them, groups of dead letters."""

    def __init__(self) -> None:
        self._readings: dict[tuple[Any, ...], SharedReading[T]] = {}

    async def read(self, key: tuple[Any, ...], make: Callable[[], Awaitable[T]]) -> tuple[T, float]:
        """Return the value of a key, and the seconds until a newer one can be had; 0 for one that was just made."""
        reading = self._readings.pop(key, None) or SharedReading(make)
        self._readings[key] = reading  # the last of the dictionary is the one used last
        while len(self._readings) > MAX_KEPT:
            del self._readings[next(iter(self._readings))]
        asked = time.monotonic()
        value = await reading.get()
        is_new = reading.began_at >= asked
        return value, 0.0 if is_new else max(0.0, reading.read_at + reading.pause - time.monotonic())

    def forget(self, *key: Any) -> None:
        """Read the values anew whose keys begin like this, because a reader has seen newer ones or changed them."""
        for each in [each for each in self._readings if each[: len(key)] == key]:
            del self._readings[each]


class Sample(NamedTuple):
    """Numbers of events of each queue by a time.

    Attributes:
        at: time, on a clock of this process.
        events: numbers of events by name, by queue, since each queue was made.
    """

    at: float
    events: Mapping[str, Mapping[str, int]]


class Throughput(NamedTuple):
    """Numbers of events as far as samples have been kept.

    Attributes:
        minute: events a minute, between the last two samples.
        number: events between the first sample that is kept and the last one.
    """

    minute: float
    number: int


class QueueReadings:
    """Reads the state of all queues for all callers, keeps an hour of throughput, and tells open pages of changes.

    Args:
        client: client of the broker.

    Attributes:
        version: digest of the numbers that are worth a new look at a page when they change; the name of the error if
            the last reading has failed.
    """

    def __init__(self, client: BrokerClient) -> None:
        self._reading: SharedReading[list[QueueInsight]] = SharedReading(
            partial(client.inspect, AsyncInspection.queues)
        )
        self._samples: deque[Sample] = deque(maxlen=SAMPLES + 1)
        self._sampled_at = datetime.min.replace(tzinfo=UTC)
        self._is_closed = False
        self._versioned_at = 0.0
        self.version = ""

    @property
    def since(self) -> datetime:
        """Time of the first sample that is kept, by the server's clock: numbers of events count from it."""
        return self._sampled_at - timedelta(seconds=self._samples[-1].at - self._samples[0].at)

    async def read(self) -> list[QueueInsight]:
        """Return the state of all queues: the last reading, or a new one if that is too old."""
        queues = await self._reading.get()
        read_at = self._reading.read_at
        if not self._samples or read_at >= self._samples[-1].at + SAMPLE_SECONDS:
            self._samples.append(Sample(read_at, {queue.name: queue.events for queue in queues}))
            self._sampled_at = queues[0].read_at if queues else datetime.now(UTC)
            while len(self._samples) > 1 and self._samples[1].at <= read_at - KEPT_SECONDS:
                self._samples.popleft()
        return queues

    async def listen(self, seen: str | None = None) -> AsyncGenerator[str, None]:
        """Yield server-sent events, one for each change, for some seconds; the browser then asks for the next stream.

        Args:
            seen: version that the listener has heard of, in the stream before this one.
        """
        ends = time.monotonic() + STREAM_SECONDS
        await self._update_version()
        yield OPENING.format(self.version)
        seen = seen or self.version
        while True:
            if seen != self.version:
                seen = self.version
                yield CHANGED.format(seen)
            if self._is_closed or time.monotonic() >= ends:
                return
            await asyncio.sleep(LOOK_SECONDS)
            await self._update_version()

    async def _update_version(self) -> None:
        try:
            queues = await self.read()
        except Exception as error:  # mostly because the server is away
            self._versioned_at, self.version = 0.0, type(error).__name__
            return
        if self._reading.read_at != self._versioned_at:
            numbers = [{**queue.to_document(), "at": None, "oldest_age_seconds": None} for queue in queues]
            self._versioned_at = self._reading.read_at
            self.version = sha256(json_text(numbers).encode("utf-8", "backslashreplace")).hexdigest()[:16]

    def close(self) -> None:
        """End all event streams within half a second; from any thread. A server that ends waits for its connections."""
        self._is_closed = True

    def rates(self, queue: str) -> list[float]:
        """Return how many items a minute have left a queue as they should, between each two samples."""
        return [60 * number / seconds for number, seconds in self._count([queue], DONE)]

    def measure(self, queues: Collection[str], events: Collection[str]) -> Throughput | None:
        """Return how many events of some queues there were lately; ``None`` before the second sample."""
        counted = self._count(queues, events)
        if not counted:
            return None
        number, seconds = counted[-1]
        return Throughput(60 * number / seconds, sum(number for number, _ in counted))

    def is_failing(self, queue: str) -> bool:
        """Return whether an item of a queue has failed in the last minutes."""
        return any(number for number, _ in self._count([queue], FAILED)[-FAILING_SAMPLES:])

    def _count(self, queues: Collection[str], events: Collection[str]) -> list[tuple[int, float]]:
        """Return the number of events and the seconds between each two samples.

        A queue that was dropped meanwhile counts from zero again.
        """
        counted = []
        for before, after in pairwise(self._samples):
            number = 0
            for queue in queues:
                earlier, later = before.events.get(queue, {}), after.events.get(queue, {})
                number += sum(max(0, later.get(event, 0) - earlier.get(event, 0)) for event in events)
            counted.append((number, after.at - before.at))
        return counted
