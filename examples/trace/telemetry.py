"""Providers of the example: each service appends its spans to one file, as lines of JSON."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import Tracer

import mongoq
import mongoq.telemetry

__all__ = ["SPAN_FILE", "configure", "provider", "tracer"]

SPAN_FILE = "EXAMPLES_SPAN_FILE"
"""Environment variable with the path of the file; Spark's Python processes inherit it."""


@cache
def provider(service: str) -> TracerProvider:
    """Return the provider of a service of this process."""
    out = Path(os.environ[SPAN_FILE]).open("a", encoding="utf-8")  # noqa: SIM115  # open as long as the process
    made = TracerProvider(resource=Resource({SERVICE_NAME: service}))
    made.add_span_processor(
        SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n"))
    )
    return made


def tracer(service: str) -> Tracer:
    """Return what makes the spans of a service's own code."""
    return provider(service).get_tracer("examples.trace")


def configure(broker: mongoq.Broker) -> None:
    """Instrument the broker of a Python process of Spark."""
    mongoq.telemetry.instrument(broker, tracer_provider=provider("Spark"))
