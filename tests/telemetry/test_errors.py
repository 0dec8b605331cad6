"""Texts of errors in spans: recorded without credentials, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mongoq
import mongoq.telemetry
from tests.telemetry.conftest import Telemetry

SECRET = "card " + "no-47-11"
URI = "mongodb://root:" + "hush@db/"


def fail(broker: mongoq.Broker, text: str) -> None:
    """Let a handler, a push and a settlement fail, the first one with a text."""
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", max_retries=0)
    def handle(payload: Any) -> None:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ValueError(text) from error

    queue = broker.queue("orders")
    queue.push(1)
    worker.run(drain=True)
    with pytest.raises(mongoq.PayloadInvalid):
        queue.push({"card": {"no-47-11"}})
    queue.push(1)
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    with pytest.raises(mongoq.ReservationLost):
        queue.commit(item)


def texts(telemetry: Telemetry) -> str:
    spans = telemetry.spans()
    return json.dumps([json.loads(span.to_json()) for span in spans])


def test_the_text_of_an_error_is_recorded(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    telemetry.instrument(broker)
    fail(broker, f"{SECRET} at {URI}")
    [event] = telemetry.span("process orders").events
    attributes = event.attributes or {}
    assert attributes["exception.message"] == f"{SECRET} at mongodb://***@db/"
    assert "Traceback" in str(attributes["exception.stacktrace"])
    assert telemetry.span("process orders").status.description == attributes["exception.message"]
    assert SECRET in str(attributes["exception.stacktrace"])
    assert "hush" not in texts(telemetry)


def test_with_type_no_text_of_an_error_is_in_any_span(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    telemetry.instrument(broker, record_errors="type")
    fail(broker, SECRET)
    process = telemetry.span("process orders")
    [event] = process.events
    assert (event.attributes or {}).keys() == {"exception.type", "exception.stacktrace"}
    trace = str((event.attributes or {})["exception.stacktrace"])
    assert "test_errors.py" in trace
    assert trace.rstrip().endswith("ValueError")
    kinds = {(span.attributes or {}).get("error.type") for span in telemetry.spans()}
    assert kinds == {None, "ValueError", "mongoq.errors.PayloadInvalid", "mongoq.errors.ReservationLost"}
    assert {span.status.description for span in telemetry.spans()} == {None}
    assert "no-47-11" not in texts(telemetry)


def test_what_is_neither_is_refused(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    for value in ("text", None, ["type"]):
        with pytest.raises(mongoq.ArgumentInvalid, match="record_errors: 'message' or 'type', not"):
            telemetry.instrument(broker, record_errors=value)
    broker.queue("orders").push(1)
    assert telemetry.spans() == []
