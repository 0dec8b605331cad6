"""Telemetry without an SDK, without OpenTelemetry, and the core without telemetry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from pymongo import AsyncMongoClient

import mongoq
import mongoq.telemetry
from tests.telemetry.conftest import Telemetry, drain, fitting

ROOT = Path(__file__).parents[2]
PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_imports_no_telemetry_and_without_the_api_package_the_error_names_the_extra() -> None:
    code = """
import sys
import mongoq
print([name for name in ("mongoq.telemetry", "opentelemetry") if name in sys.modules])
sys.modules["opentelemetry"] = None
try:
    import mongoq.telemetry
except ModuleNotFoundError as error:
    print(error)
"""
    imported, _, problem = run(code).partition("\n")
    assert (imported, "mongoq-driver[otel]" in problem) == ("[]", True)


def test_without_an_sdk_everything_works_and_nothing_is_recorded() -> None:
    code = f"""
import sys
sys.modules["opentelemetry.sdk"] = None
import mongoq, mongoq.telemetry
from mongoq.testing import VirtualBroker
with VirtualBroker() as virtual:
    mongoq.telemetry.instrument(virtual)
    worker = mongoq.Worker(virtual)
    worker.consumer("orders")(lambda payload: virtual.queue("bills").push(payload) and None)
    virtual.queue("orders").push(1)
    virtual.queue("orders").push(2, headers={{"traceparent": {PARENT!r}}})
    virtual.worker(worker).run_until_idle()
    print([dict(item.headers) for item in virtual.queue("bills").peek(2)])
"""
    assert run(code) == str([{}, {}])


def test_a_provider_that_is_set_while_a_worker_runs_counts_from_the_next_claim_on(uri: str, database: str) -> None:
    code = f"""
import mongoq, mongoq.telemetry
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
with mongoq.connect({uri!r}, database={database!r}) as broker:
    mongoq.telemetry.instrument(broker)
    worker = mongoq.Worker(broker)
    def handle(payload):
        if payload:
            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(memory))
            trace.set_tracer_provider(provider)
            broker.queue("orders").push(0)
    worker.consumer("orders")(handle)
    broker.queue("orders").push(1)
    worker.run(drain=True)
print(sorted(span.name for span in memory.get_finished_spans() if span.name[:4] in ("push", "proc")))
"""
    assert run(code) == str(["process orders", "push orders"])


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_worker_that_runs_already_is_instrumented_from_its_next_claim_on(
    kind: str, uri: str, database: str, broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    """And uninstrumented."""
    queue, own = broker.queue("orders"), []

    def handle(payload: int) -> None:
        if payload == 1:
            telemetry.instrument(own[0])
        elif payload == 2:
            mongoq.telemetry.uninstrument(own[0])
        if payload < 3:
            queue.push(payload + 1)

    queue.push(1)
    drain(kind, uri, database, own.append, lambda worker: worker.consumer("orders")(fitting(kind, handle)))
    [process] = telemetry.spans("process orders")
    assert (process.attributes or {})["mongoq.attempt"] == 1
    assert queue.size() == 0


def test_a_provider_without_spans_passes_the_trace_context_on(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    mongoq.telemetry.instrument(broker, tracer_provider=NoOpTracerProvider(), meter_provider=telemetry.meters)
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(lambda payload: broker.queue("bills").push(payload) and None)
    broker.queue("orders").push(1, headers={"traceparent": PARENT})
    worker.run(drain=True)
    [bill] = broker.queue("bills").peek()
    assert bill.headers == {"traceparent": PARENT}


def test_a_propagator_that_fails_breaks_no_push_and_no_handler(
    broker: mongoq.Broker, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        fields = frozenset({"traceparent"})

        def inject(self, *_: Any, **__: Any) -> None:
            raise RuntimeError

        extract = inject

    monkeypatch.setattr(propagate, "propagators", Broken())
    telemetry.instrument(broker)
    seen: list[Any] = []
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(seen.append)
    broker.queue("orders").push(1)
    broker.queue("orders").push(2, headers={"traceparent": PARENT})
    worker.run(drain=True)
    assert seen == [1, 2]


class BrokenProcessor(SpanProcessor):
    """A processor of spans that fails at one of its two events."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self._fail)

    def _fail(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("processor")


@pytest.mark.parametrize("event", ["on_start", "on_end"])
def test_a_processor_that_fails_breaks_no_operation(
    event: str, broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BrokenProcessor(event))
    mongoq.telemetry.instrument(broker, tracer_provider=provider)
    queue = broker.queue("orders")
    seen: list[Any] = []
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(seen.append)
    queue.push(1)
    item = queue.reserve()
    assert item is not None
    queue.release(item)
    worker.run(drain=True)
    assert seen == [1]
    assert queue.size() == 0
    assert queue.dead.size() == 0
    [record] = [record for record in caplog.records if record.name == "mongoq.telemetry"]
    assert record.message == "a span or a duration could not be recorded: RuntimeError: processor"
    provider.shutdown()


@pytest.mark.parametrize("kind", ["pymongo", "motor"])
async def test_a_client_that_has_not_connected_yet_has_no_server(
    kind: str, uri: str, database: str, telemetry: Telemetry
) -> None:
    if kind == "pymongo":
        client: Any = AsyncMongoClient(uri)
    else:
        client = pytest.importorskip("motor.motor_asyncio").AsyncIOMotorClient(uri)
    broker = mongoq.AsyncBroker(client[database]["mongoq"])
    telemetry.instrument(broker)
    for number in range(2):
        await broker.queue("orders").push(number)
    first, second = telemetry.spans("push orders")
    assert "server.address" not in (first.attributes or {})
    assert (second.attributes or {})["server.address"] == "127.0.0.1"
    await broker.close()
    closing = client.close()
    if closing is not None:
        await closing
