"""Setup of Spark's Python processes in tests: their spans go into one file for each collection, as lines of JSON."""

from __future__ import annotations

import json
import tempfile
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

import mongoq
import mongoq.telemetry

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
"""A variable that travels with items."""
EXPORT_MILLIS = 3_600_000
"""Milliseconds between exports: within a test only a flush exports."""


def span_file(collection: str) -> Path:
    """Return the file of a collection's spans."""
    return Path(tempfile.gettempdir()) / f"mongoq-tests-spans-{collection}"


def read_spans(collection: str) -> list[dict[str, Any]]:
    """Return the spans of the executors, in the order of their beginnings."""
    path = span_file(collection)
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(map(json.loads, lines), key=lambda span: str(span["start_time"]))


@cache
def _provider(path: Path) -> TracerProvider:
    provider = TracerProvider()
    out = path.open("a")
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")  # type: ignore[arg-type]
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_MILLIS))
    return provider


def configure(broker: mongoq.Broker) -> None:
    """Instrument the broker of a process."""
    provider = _provider(span_file(broker._context.namespace.rpartition(".")[2]))
    mongoq.telemetry.instrument(broker, tracer_provider=provider, context_variables=[TENANT])


def refuse(broker: mongoq.Broker) -> None:
    """Fail."""
    raise RuntimeError("no collector")
