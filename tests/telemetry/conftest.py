"""Telemetry of the tests: an SDK that keeps spans and metrics in memory, and brokers of each kind with handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import mongoq
import mongoq.telemetry

KINDS = ("threads", "tasks", "plain")


class Telemetry:
    """Providers for ``instrument``, and what they have recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("test")

    def instrument(self, target: Any, **options: Any) -> None:
        mongoq.telemetry.instrument(target, tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the ended spans in the order of their beginnings; all, or those of a name."""
        found = [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        [found] = self.spans(name)
        return found

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a histogram."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        metrics = [one for r in data.resource_metrics for scope in r.scope_metrics for one in scope.metrics]
        return [point for one in metrics if one.name == metric for point in one.data.data_points]

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.close()


def span_id(span: ReadableSpan) -> int:
    return span.context.span_id  # type: ignore[union-attr]


def trace_id(span: ReadableSpan) -> int:
    return span.context.trace_id  # type: ignore[union-attr]


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def link_ids(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def traceparent(span: ReadableSpan) -> str:
    return f"00-{trace_id(span):032x}-{span_id(span):016x}-{span.context.trace_flags:02x}"  # type: ignore[union-attr]


Register = Callable[[Any], object]


def drain(kind: str, uri: str, database: str, instrument: Register, register: Register) -> None:
    """Instrument a broker of a kind, and run a worker on it until its queues are empty."""
    if kind == "threads":
        with mongoq.connect(uri, database=database) as broker:
            instrument(broker)
            worker = mongoq.Worker(broker)
            register(worker)
            worker.run(drain=True)
        return

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            instrument(broker)
            worker = mongoq.AsyncWorker(broker)
            register(worker)
            await worker.run(drain=True)

    asyncio.run(work())


def fitting(kind: str, handler: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the handler as a coroutine function for a worker of tasks."""
    if kind != "tasks":
        return handler

    async def task(payload: Any) -> Any:
        await asyncio.sleep(0)
        return handler(payload)

    return task
