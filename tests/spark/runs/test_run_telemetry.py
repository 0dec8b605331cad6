"""The trace of an item goes on in an executor, whose process has spans of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import mongoq
import mongoq.telemetry
from tests.spark import span_file
from tests.spark.span_file import TENANT, read_spans

SETUP = "tests.spark.span_file:configure"


@pytest.fixture
def exported(store: Any) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Return the spans that the processes of the executors have exported."""
    yield lambda: read_spans(store.collection.name)
    span_file.span_file(store.collection.name).unlink(missing_ok=True)


def hex_trace(span: Any) -> str:
    return f"0x{span.get_span_context().trace_id:032x}"


def test_a_handler_in_an_executor_runs_in_the_trace_of_its_item(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("shop", errors="shop.errors", outputs="done")

    @pipeline.stage("orders", to="done")
    def tell(order: Any) -> str:
        from opentelemetry import trace  # of the executor

        return format(trace.get_current_span().get_span_context().trace_id, "032x")

    mongoq.telemetry.instrument(pipeline)
    parent = f"00-{7:032x}-{8:016x}-01"
    broker.queue("orders").push("bolt", headers={"traceparent": parent})
    drained(pipeline)
    [done] = broker.queue("done").peek()
    assert done.payload == f"{7:032x}"
    assert done.headers == {"traceparent": parent}


def test_one_trace_leads_through_threads_asyncio_and_spark(
    drained: Any, broker: mongoq.Broker, store: Any, exported: Any
) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    options: Any = {"tracer_provider": provider, "context_variables": [TENANT]}
    mongoq.telemetry.instrument(broker, **options)

    threads = mongoq.Worker(broker)
    threads.consumer("orders")(lambda order: mongoq.Move("priced", payload={**order, "price": 5}))
    pipeline = mongoq.Pipeline("shop", errors="shop.errors", outputs="packed")

    @pipeline.stage("priced", to="packed")
    def pack(order: Any) -> Any:
        return mongoq.Move("packed", payload={**order, "tenant": span_file.TENANT.get()}, headers={"by": "spark"})

    mongoq.telemetry.instrument(pipeline, setup=span_file.configure)
    sent: list[Any] = []

    async def ship() -> None:
        uri, database = store.uri, store.collection.database.name
        async with mongoq.connect_async(uri, database=database, collection=store.collection.name) as own:
            mongoq.telemetry.instrument(own, **options)
            worker = mongoq.AsyncWorker(own)

            @worker.consumer("packed")
            async def send(order: Any) -> None:
                sent.append((order, TENANT.get()))

            await worker.run(drain=True)

    token = TENANT.set("acme")
    with provider.get_tracer("shop").start_as_current_span("checkout") as top:
        broker.queue("orders").push({"n": 1})
    TENANT.reset(token)
    threads.run(drain=True)
    drained(pipeline)
    asyncio.run(ship())

    assert sent == [({"n": 1, "price": 5, "tenant": "acme"}, "acme")]
    [push] = [span for span in memory.get_finished_spans() if span.name == "push orders"]
    own = [span for span in memory.get_finished_spans() if span.name.startswith("process ")]
    assert [span.name for span in own] == ["process orders", "process packed"]
    assert {f"0x{span.context.trace_id:032x}" for span in (push, *own)} == {hex_trace(top)}  # type: ignore[union-attr]
    spans = exported()
    [process] = [span for span in spans if span["name"].startswith("process ")]
    assert process["name"] == "process priced"
    assert process["context"]["trace_id"] == hex_trace(top)
    assert process["parent_id"] == f"0x{push.context.span_id:016x}"  # type: ignore[union-attr]
    assert process["attributes"]["mongoq.consumer"] == "pack"
    assert process["attributes"]["server.address"] == "127.0.0.1"
    others = {span["name"]: span for span in spans if span is not process}
    assert others.keys() == {"reserve priced", "settle priced"}
    for span in others.values():
        assert [link["context"]["trace_id"] for link in span["links"]] == [hex_trace(top)]


@pytest.mark.prove
def test_a_sink_and_a_stream_have_spans(
    spark: Any, store: Any, broker: mongoq.Broker, exported: Any, tmp_path: Path
) -> None:
    parent = f"00-{7:032x}-{8:016x}-01"
    broker.queue("orders").push({"n": 1}, headers={"traceparent": parent})
    broker.queue("orders").push({"n": 2})
    options = store.options(queue=None, setup=SETUP)
    reader = spark.readStream.format("mongoq").options(**options, queue="orders", consumer="etl")
    frame = reader.schema("n int, _id string, _token string").load()
    writer = frame.writeStream.format("mongoq").options(**options, to="moved")
    writer = writer.option("checkpointLocation", str(tmp_path / "moves")).trigger(availableNow=True)
    assert writer.start().awaitTermination(120)
    rows = spark.createDataFrame([(1, f'{{"traceparent": "{parent}"}}'), (2, None)], "n int, _headers string")
    rows.write.format("mongoq").mode("append").options(**options, to="pushed", label="rows").save()
    settles = [span for span in exported() if span["name"] == "settle orders"]
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in settles) == 2
    pushes = [span for span in exported() if span["name"] == "push pushed"]
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in pushes) == 2
    assert {span["kind"] for span in pushes} == {"SpanKind.PRODUCER"}
    [link] = [link for span in pushes for link in span["links"]]
    assert link["context"]["trace_id"] == f"0x{7:032x}"
    headers = {item.payload["n"]: item.headers["traceparent"] for item in broker.queue("pushed").peek(9)}
    assert headers.pop(1) == parent
    [own] = headers.values()
    assert own.split("-")[2] in {span["context"]["span_id"][2:] for span in pushes}
    moved = {item.payload["n"]: item.headers for item in broker.queue("moved").peek(9)}
    assert moved == {1: {"traceparent": parent}, 2: {}}


@pytest.mark.prove
def test_a_frame_stage_has_the_spans_of_its_settlements(
    drained: Any, broker: mongoq.Broker, exported: Any, tmp_path: Path
) -> None:
    pipeline = mongoq.Pipeline("shop", errors="shop.errors", outputs="done")
    pipeline.frame_stage("orders", to="done", schema="n int", name="count")(lambda frame: frame)
    mongoq.telemetry.instrument(pipeline, setup=SETUP)
    parent = f"00-{7:032x}-{8:016x}-01"
    broker.queue("orders").push({"n": 1}, headers={"traceparent": parent})
    drained(pipeline, checkpoint=tmp_path / "checkpoint")
    [done] = broker.queue("done").peek()
    assert done.headers == {"traceparent": parent}
    [settle] = [span for span in exported() if span["name"] == "settle orders"]
    assert [link["context"]["trace_id"] for link in settle["links"]] == [f"0x{7:032x}"]


@pytest.mark.parametrize("setup", ["configure", "", 5, lambda broker: None])
def test_a_setup_that_no_executor_can_import_is_refused(setup: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("shop", errors="shop.errors")
    with pytest.raises(mongoq.ArgumentInvalid, match="setup: "):
        mongoq.telemetry.instrument(pipeline, setup=setup)
    assert pipeline.graph.hooks == ()
    with pytest.raises(mongoq.ArgumentInvalid, match="setup: it is for the executors"):
        mongoq.telemetry.instrument(broker, setup=SETUP)


def test_an_option_that_is_no_import_path_is_refused(spark: Any, store: Any) -> None:
    frame = spark.createDataFrame([(1,)], "n int")
    with pytest.raises(Exception, match="setup: an import path such as shop.telemetry:configure, not 'configure'"):
        frame.write.format("mongoq").mode("append").options(**store.options(queue=None, setup="configure")).save("out")
