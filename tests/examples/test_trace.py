"""The picture of a trace: of spans as they are exported, and of a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from examples.trace.waterfall import TraceSpan, draw, read_spans
from tests.examples.launching import launching, needs_spark, output_of

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Path(__file__).parents[2] / "docs" / "img" / "trace-flight.svg"
STAGES = ["flights.new", "flights.checked", "flights.checked", "flights.weather", "flights.rated"]


def span(id: str, parent: str | None = None, name: str = "work", **fields: Any) -> TraceSpan:
    values = {"service": "web", "start": 10.0, "end": 10.5, **fields}
    return TraceSpan(id, parent, name, **values)


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def names_of(picture: str) -> list[str]:
    groups = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [str(group.find(f"{SVG}text").text) for group in groups]  # type: ignore[union-attr]


def test_text_of_users_is_text_and_never_markup() -> None:
    hostile = '</text><script>"&\x00\x1b]0;\ud800'
    picture = draw([span("a", name=hostile, service=hostile, error=hostile)], hostile)
    picture.encode()
    assert "<script" not in picture
    assert names_of(picture) == ['</text><script>"&\ufffd\ufffd]0;\ufffd']
    long = draw([span("a", name="q" * 500, service="s" * 500)], "A trace")
    assert all(len(text) <= 40 for text in texts(long))


def test_spans_are_read_as_the_sdk_exports_them() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("other trace"):
        pass
    with pytest.raises(KeyError), tracer.start_as_current_span("request"), tracer.start_as_current_span("lookup"):
        raise KeyError
    _, lookup, request = memory.get_finished_spans()
    lines = [one.to_json(indent=None) for one in memory.get_finished_spans()]
    trace_id = json.loads(lines[1])["context"]["trace_id"]
    inner, outer = read_spans(lines, trace_id)
    assert (inner.name, inner.parent, inner.service, inner.error) == ("lookup", outer.id, "shop", "KeyError")
    assert outer.parent is None
    assert inner.start == pytest.approx((lookup.start_time or 0) / 1e9, abs=1e-5)
    assert outer.end == pytest.approx((request.end_time or 0) / 1e9, abs=1e-5)
    assert names_of(draw([inner, outer], "A trace")) == ["request", "lookup"]


def check_flight(picture: str) -> None:
    names = names_of(picture)
    assert [name.partition(" ")[2] for name in names if name.startswith("process ")] == STAGES
    assert names[:2] == ["POST /flights", "push flights.new"]
    assert {"web", "threads", "asyncio", "Spark"} <= set(texts(picture))
    assert [text for text in texts(picture) if text.endswith("WeatherUnavailable")]


def test_the_picture_of_the_docs_is_one_of_a_run() -> None:
    check_flight(PICTURE.read_text(encoding="utf-8"))


@pytest.mark.prove
@needs_spark
def test_a_run_draws_its_trace(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="mongoq-driver[spark] is not installed")
    out = tmp_path / "trace.svg"
    with launching() as launch:
        printed = output_of(launch("examples.trace", "--out", out))
    assert "4 services" in printed
    check_flight(out.read_text(encoding="utf-8"))
