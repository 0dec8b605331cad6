"""Metrics for Prometheus: the state of all queues, read for each scrape at a bounded cost, and durations of handlers.

``PrometheusMetrics`` is the public face; the collectors below it can be registered one by one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from anyio import to_thread

from mongoq import QueueInsight, WorkerRecord
from mongoq.aio import AsyncBroker
from mongoq.aio.inspection import BUDGET
from mongoq.data.arguments import DEAD_SUFFIX, Duration, count, duration
from mongoq.data.encoding.error_text import name_of
from mongoq.data.process import EVENTS
from mongoq.errors import ArgumentInvalid, MongoqError
from mongoq.monitoring.durations import BUCKET_SECONDS, RunDurations
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Broker
from mongoq.worker.aio.worker import AsyncWorker
from mongoq.worker.threads.worker import Worker

try:
    from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    hint = "metrics need prometheus-client: install mongoq-driver[prometheus] (pip install '.[prometheus]')"
    raise ImportError(hint, name=error.name) from error

__all__ = [
    "BrokerCollector",
    "BrokerReading",
    "DurationsCollector",
    "PrometheusMetrics",
    "read_broker",
    "read_broker_async",
]

logger = logging.getLogger("mongoq.metrics")

CACHE_SECONDS = 5.0
"""Seconds for which a reading serves all scrapes, by default."""
READ_SECONDS = 5.0
"""Seconds that one reading may take, by default; Prometheus gives up after 10."""
QUEUE_GAUGES = {
    "items_truncated": "1 if counting ended at its limit, and there are more items.",
    "oldest_age_seconds": "Time for which the first due item waits; 0 if none is due. Not of dead queues without "
    "consumers.",
    "dead_items": "Items in the dead queue of the queue.",
    "paused": "1 while claims of the queue are stopped.",
    "consumers": "Live workers and Spark queries that consume the queue.",
    "overdue_run_seconds": "Time of the longest run beyond its max_time, by default five minutes; 0 without one.",
}
"""Metrics with one value for each queue, and what they say."""
STATES = ("ready", "scheduled", "reserved", "expired", "blocked")

W = TypeVar("W", Worker, AsyncWorker, Pipeline)
Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BrokerReading:
    """State of all queues, and the records of the live workers."""

    queues: Sequence[QueueInsight]
    workers: Sequence[WorkerRecord]


def read_broker(broker: Broker, *, budget: int = BUDGET, within: float = READ_SECONDS) -> BrokerReading:
    """Read the state of all queues and the live workers, in ``within`` seconds at most."""
    inspection = broker.inspect(within=within)
    queues, records = inspection.queues(budget=budget), inspection.workers()
    return BrokerReading(queues, [record for record in records if record.alive])


async def read_broker_async(
    broker: AsyncBroker, *, budget: int = BUDGET, within: float = READ_SECONDS
) -> BrokerReading:
    """Do the same with an ``AsyncBroker``."""
    inspection = broker.inspect(within=within)
    queues, records = await inspection.queues(budget=budget), await inspection.workers()
    return BrokerReading(queues, [record for record in records if record.alive])


class BrokerCollector(Collector):
    """Collects the metrics of all queues, from one reading for all scrapes within some seconds.

    A reading that fails makes ``mongoq_up`` 0; the scrape itself never fails.

    Args:
        read: reads the broker, from any thread; ``None`` if only ``refresh_async`` does it.
        cache: seconds for which a reading is used.
    """

    def __init__(self, read: Callable[[], BrokerReading] | None, *, cache: float = CACHE_SECONDS) -> None:
        self._read = read
        self._cache = cache
        self._lock = threading.Lock()
        self._async_lock = asyncio.Lock()
        self._metrics = make_metrics(None, 0.0)
        self._read_at: float | None = None
        self._failure: str | None = None

    def describe(self) -> list[Metric]:
        """Return all metrics as after a failed reading, so that a registry knows their names without a reading."""
        return make_metrics(None, 0.0)

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, after a reading if the last one is too old; other threads wait for it."""
        with self._lock:
            if self._read is not None and self._is_old():
                started = time.monotonic()
                try:
                    self._keep(self._read(), started)
                except Exception as error:
                    self._keep(None, started, error)
            return iter(self._metrics)

    async def refresh_async(self, read: Callable[[], Awaitable[BrokerReading]]) -> None:
        """Read if the last reading is too old; other tasks wait for it."""
        async with self._async_lock:
            if self._is_old():
                started = time.monotonic()
                try:
                    self._keep(await read(), started)
                except Exception as error:
                    self._keep(None, started, error)

    def _is_old(self) -> bool:
        return self._read_at is None or time.monotonic() >= self._read_at + self._cache

    def _keep(self, reading: BrokerReading | None, started: float, error: Exception | None = None) -> None:
        now = time.monotonic()
        self._metrics, self._read_at = make_metrics(reading, now - started), now
        # The text of a foreign error may hold private data; ours does not.
        failure = None if error is None else str(error) if isinstance(error, MongoqError) else name_of(error)
        if failure != self._failure:
            if failure is not None:
                logger.warning("the queues cannot be read, mongoq_up is 0: %s", failure)
            else:
                logger.info("the queues can be read again")
        self._failure = failure


def make_metrics(reading: BrokerReading | None, seconds: float) -> list[Metric]:
    """Return the metrics of a reading, which has taken so long; ``None`` for one that has failed."""
    up = GaugeMetricFamily("mongoq_up", "1 if the queues could be read, 0 if not.")
    duration = GaugeMetricFamily("mongoq_scrape_duration_seconds", "Duration of the last reading.")
    workers = GaugeMetricFamily("mongoq_workers", "Live workers.")
    about = "Items by state; at least so many if mongoq_items_truncated is 1."
    items = GaugeMetricFamily("mongoq_items", about, labels=["queue", "state"])
    gauges = {name: GaugeMetricFamily(f"mongoq_{name}", text, labels=["queue"]) for name, text in QUEUE_GAUGES.items()}
    about = "Events since the queue was made, as in broker.stats()."
    events = CounterMetricFamily("mongoq_events", about, labels=["queue", "event"])
    metrics: list[Metric] = [up, duration, workers, items, *gauges.values(), events]
    up.add_metric([], 0 if reading is None else 1)
    duration.add_metric([], seconds)
    if reading is None:
        return metrics
    workers.add_metric([], len(reading.workers))
    overdue: dict[str, float] = {}  # seconds of the longest overdue run of each queue
    for name, length in (run for record in reading.workers for run in record.overdue.items()):
        overdue[name] = max(length.total_seconds(), overdue.get(name, 0.0))
    graves = {queue.dead_queue for queue in reading.queues}
    for queue in reading.queues:
        # The items of a dead queue without consumers wait for a person.
        is_waiting = queue.consumers > 0 or not (queue.name in graves or queue.name.endswith(DEAD_SUFFIX))
        # A clock that was set back must not make an age negative.
        age = 0.0 if queue.oldest_age is None else max(0.0, queue.oldest_age.total_seconds())
        values = {
            "items_truncated": not queue.live.exact,
            "oldest_age_seconds": age if is_waiting else None,
            "dead_items": None if queue.dead_queue is None else queue.dead.number,
            "paused": queue.paused,
            "consumers": queue.consumers,
            "overdue_run_seconds": overdue.get(queue.name, 0.0),
        }
        for name, value in values.items():
            if value is not None:
                gauges[name].add_metric([queue.name], value)
        for state in STATES:
            items.add_metric([queue.name, state], getattr(queue, state).number)
        for event in EVENTS:
            events.add_metric([queue.name, event], queue.events.get(event, 0))
    return metrics


class DurationsCollector(Collector):
    """Collects the histograms of handler calls."""

    def __init__(self, durations: RunDurations) -> None:
        self._durations = durations

    def describe(self) -> list[Metric]:
        """Return the metric without values."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        """Return the metric with all that was counted in this process, or added to it."""
        family = self._family()
        for queue, outcome, counts, seconds in self._durations.read():
            total, buckets = 0, []
            for bound, number in zip((*BUCKET_SECONDS, float("inf")), counts, strict=True):
                total += number
                buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
            family.add_metric([queue, outcome], buckets, seconds)
        yield family

    @staticmethod
    def _family() -> HistogramMetricFamily:
        name = "mongoq_process_duration_seconds"
        return HistogramMetricFamily(name, "Duration of handler calls.", labels=["queue", "outcome"])


class PrometheusMetrics:
    """Metrics of a broker and of the workers of this process, for Prometheus.

    ```python
    metrics = PrometheusMetrics(broker)
    metrics.instrument(worker)
    with HealthServer("127.0.0.1", 8080, worker.health, metrics.render):
        worker.run()
    ```

    A scrape reads the state of all queues, and examines a limited number of items. All scrapes within ``cache``
    seconds share one reading. When no server answers, ``mongoq_up`` is 0 and the rest is left out.

    Args:
        broker: the broker whose queues are read; ``None`` for the metrics of this process alone.
        registry: the registry of ``prometheus_client`` that the metrics are added to; default one of their own.
        budget: items that one reading examines, at most, but about 20 for each queue in any case.
        cache: how long a reading is used, a ``timedelta`` or seconds.
        within: how long a reading may take.

    Attributes:
        registry: the registry with the metrics.

    Raises:
        ArgumentInvalid: an argument cannot be used; it is named.
    """

    def __init__(
        self,
        broker: Broker | AsyncBroker | None = None,
        *,
        registry: CollectorRegistry | None = None,
        budget: int = BUDGET,
        cache: Duration = CACHE_SECONDS,
        within: Duration = READ_SECONDS,
    ) -> None:
        if broker is not None and not isinstance(broker, Broker | AsyncBroker):
            raise ArgumentInvalid("broker", f"a Broker or an AsyncBroker, not {type(broker).__name__}")
        self._broker = broker
        limits: dict[str, Any] = {"budget": count(budget, "budget")}
        limits["within"] = duration(within, "within", zero=False).total_seconds()
        self._limits = limits
        self._durations = RunDurations()
        self._instrumented: WeakSet[Any] = WeakSet()
        self.registry = CollectorRegistry() if registry is None else registry
        read = partial(read_broker, broker, **limits) if isinstance(broker, Broker) else None
        self._collector = BrokerCollector(read, cache=duration(cache, "cache").total_seconds())
        if broker is not None:
            self.registry.register(self._collector)
        self.registry.register(DurationsCollector(self._durations))

    def instrument(self, worker: W) -> W:
        """Measure the handler calls of a worker or a pipeline (``around``), before it starts; returns it.

        A second call for the same worker changes nothing.

        Raises:
            ArgumentInvalid: it is no worker and no pipeline, or it runs already.
        """
        if not isinstance(worker, Worker | AsyncWorker | Pipeline):
            raise ArgumentInvalid("worker", f"a Worker, an AsyncWorker or a Pipeline, not {type(worker).__name__}")
        if worker not in self._instrumented:
            worker.around(self._durations)
            self._instrumented.add(worker)
        return worker

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus, for example for ``HealthServer``.

        Raises:
            ArgumentInvalid: the broker is an ``AsyncBroker``, which ``asgi_app`` can read.
        """
        self._refuse_async("render")
        return generate_latest(self.registry)

    def wsgi_app(self) -> Callable[..., Iterable[bytes]]:
        """Return a WSGI app that answers each path with the metrics.

        Raises:
            ArgumentInvalid: the broker is an ``AsyncBroker``, which ``asgi_app`` can read.
        """
        self._refuse_async("wsgi_app")
        return make_wsgi_app(self.registry)

    def asgi_app(self) -> AsgiApp:
        """Return an ASGI app that answers each path with the metrics. A ``Broker`` is read in a thread."""
        app = make_wsgi_app(self.registry)

        async def metrics(scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]) -> None:
            if scope["type"] != "http":
                raise NotImplementedError(f"the metrics are served by HTTP, and not by {scope['type']}")
            if isinstance(self._broker, AsyncBroker):
                await self._collector.refresh_async(partial(read_broker_async, self._broker, **self._limits))
            received = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
            environ = {
                "REQUEST_METHOD": scope["method"],
                "PATH_INFO": scope["path"],
                "QUERY_STRING": scope["query_string"].decode("latin-1"),
                "HTTP_ACCEPT": received.get(b"accept", ""),
                "HTTP_ACCEPT_ENCODING": received.get(b"accept-encoding", ""),
            }
            started: list[Any] = []
            # In a thread too: with thousands of queues, the text alone would hold up the event loop.
            [body] = await to_thread.run_sync(app, environ, lambda *start: started.extend(start))
            status, headers = started
            sent = [(name.lower().encode(), value.encode()) for name, value in headers]
            await send({"type": "http.response.start", "status": int(status.partition(" ")[0]), "headers": sent})
            await send({"type": "http.response.body", "body": body})

        return metrics

    def _refuse_async(self, method: str) -> None:
        if isinstance(self._broker, AsyncBroker):
            raise ArgumentInvalid("broker", f"{method}() cannot read an AsyncBroker; use asgi_app(), or a Broker")
