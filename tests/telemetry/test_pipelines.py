"""One trace over the stages of a pipeline: retries, forks, joins, dead letters, replays and sources."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

import mongoq
import mongoq.telemetry
from tests.telemetry.conftest import Telemetry, link_ids, parent_id, span_id, trace_id, traceparent


def make_shop(broken: list[Exception]) -> mongoq.Pipeline:
    """Return a pipeline whose first stage forks, and whose second one fails as often as there are exceptions."""
    shop = mongoq.Pipeline("shop", errors="shop.errors", outputs="done")

    @shop.stage("orders", to=["lines", "bills"])
    def split(order: Any) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("lines", payload=order["line"]), mongoq.Move("bills")])

    @shop.stage("lines", to="done", retry=mongoq.Fixed(0), max_retries=1)
    def pack(line: Any) -> Any:
        if broken:
            raise broken.pop()
        return line

    @shop.sink("bills")
    def send(bill: Any) -> None:
        pass

    return shop


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_one_trace_shows_the_whole_way_of_an_item(
    kind: str, uri: str, database: str, broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    telemetry.instrument(broker)
    # Fails in both of its runs, and goes to the error queue.
    shop = make_shop([KeyError("second"), ValueError("first")])

    async def drain_async() -> None:
        async with mongoq.connect_async(uri, database=database) as own:
            telemetry.instrument(own)
            await shop.drain_async(own)

    def run() -> None:
        if kind == "threads":
            shop.drain(broker)
        else:
            asyncio.run(drain_async())

    with telemetry.tracer.start_as_current_span("request") as request:
        broker.queue("orders").push({"line": "bolt"})
    run()
    assert [letter.payload for letter in broker.queue("shop.errors").peek()] == ["bolt"]
    assert broker.dead_queue("shop.errors").replay().pushed == 1
    run()
    [done] = broker.queue("done").peek()
    [push] = telemetry.spans("push orders")
    calls = [span for span in telemetry.spans() if span.name.startswith("process ")]
    assert [span.name for span in calls if span.name != "process bills"] == [
        "process orders",
        *["process lines"] * 3,
    ]
    assert len([span for span in calls if span.name == "process bills"]) == 1
    assert {trace_id(span) for span in (push, *calls)} == {request.get_span_context().trace_id}
    assert {parent_id(span) for span in calls} == {span_id(push)}
    assert [error_type(span) for span in calls if span.name == "process lines"] == ["ValueError", "KeyError", None]
    assert {consumer(span) for span in calls} == {"split", "pack", "send"}
    assert str(done.headers["traceparent"]).split("-")[2] == f"{span_id(push):016x}"
    # Claims and settlements are of many items, in no trace of theirs, and link to it.
    others = [span for span in telemetry.spans() if span.name.split()[0] in ("reserve", "settle")]
    assert {link for span in others for link in link_ids(span)} == {span_id(push)}


def error_type(span: ReadableSpan) -> Any:
    return (span.attributes or {}).get("error.type")


def consumer(span: ReadableSpan) -> Any:
    return (span.attributes or {})["mongoq.consumer"]


def test_a_join_has_the_trace_of_its_first_queue_and_links_to_the_other(
    broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    telemetry.instrument(broker)
    shop = mongoq.Pipeline("shop", errors="shop.errors", outputs="settled")
    shop.join(["orders", "payments"], on="id", to="paid", name="pay")(lambda order, payment: order)
    shop.join(["paid", "parcels"], on="id", to="settled", name="send")(lambda paid, parcel: paid)
    for name in ("payments", "orders", "parcels"):
        broker.queue(name).push({"id": 1})
    shop.drain(broker)
    order, payment, parcel = (telemetry.span(f"push {name}") for name in ("orders", "payments", "parcels"))
    first, second = (span for span in telemetry.spans() if span.name.startswith("process "))
    assert parent_id(first) == parent_id(second) == span_id(order)
    assert link_ids(first) == [span_id(order), span_id(payment)]
    assert link_ids(second) == [span_id(order), span_id(payment), span_id(parcel)]


def test_a_join_without_traces_adds_no_header(broker: mongoq.Broker) -> None:
    shop = mongoq.Pipeline("shop", errors="shop.errors", outputs="settled")
    shop.join(["orders", "payments"], on="id", to="settled")(lambda order, payment: order)
    broker.queue("orders").push({"id": 1}, headers={"a": 1, "b": 1, "traceparent": 7})
    broker.queue("payments").push({"id": 1}, headers={"b": 2, "c": 2, "mongoq-links": "x"})
    shop.drain(broker)
    [settled] = broker.queue("settled").peek()
    assert settled.headers == {"a": 1, "b": 1, "c": 2, "traceparent": 7, "mongoq-links": "x"}


def test_records_of_a_source_begin_a_trace(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    telemetry.instrument(broker)
    shop = mongoq.Pipeline("shop", errors="shop.errors")

    @shop.source(to="orders")
    def read(position: Any) -> Iterator[mongoq.Record]:
        if position is None:
            yield mongoq.Record("a", position=1)
            yield mongoq.Record("b", position=2, headers={"mine": {"deep": [1]}})
            yield mongoq.Record("c", position=3, headers={"traceparent": "mine"})

    seen: list[Any] = []
    shop.sink("orders")(lambda payload, job: seen.append((payload, dict(job.item.headers))))
    shop.drain(broker)
    push = telemetry.spans("push orders")[0]
    parents = [parent_id(span) for span in telemetry.spans("process orders")]
    assert parents == [span_id(push), span_id(push), None]
    assert seen[1] == ("b", {"mine": {"deep": [1]}, "traceparent": traceparent(push)})
    assert seen[2] == ("c", {"traceparent": "mine"})


def test_an_item_that_is_run_at_most_once_keeps_its_trace(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    telemetry.instrument(broker)
    shop = mongoq.Pipeline("shop", errors="shop.errors", outputs="done")

    @shop.stage("orders", to="done", delivery="at-most-once")
    def call(order: Any) -> Any:
        return 1 / order

    broker.queue("orders").push_many([0, 1])
    shop.drain(broker)
    push = telemetry.span("push orders")
    assert {parent_id(span) for span in telemetry.spans("process orders")} == {span_id(push)}
    for name in ("done", "shop.errors"):
        [item] = broker.queue(name).peek()
        assert f"{span_id(push):016x}" in item.headers["traceparent"]


def test_a_pipeline_and_its_broker_instrumented_both_have_one_span_for_a_call(
    broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    shop = make_shop([])
    telemetry.instrument(shop)
    telemetry.instrument(shop)
    broker.queue("orders").push({"line": "bolt"})
    shop.drain(broker)
    with shop.start(broker) as run, pytest.raises(mongoq.ArgumentInvalid, match="before the run begins"):
        telemetry.instrument(run)
    assert len(telemetry.spans("process orders")) == 1
    assert telemetry.spans("settle orders") == []
    telemetry.instrument(broker)
    broker.queue("orders").push({"line": "nut"})
    shop.drain(broker)
    assert len(telemetry.spans("process orders")) == 2
    mongoq.telemetry.uninstrument(shop)
    mongoq.telemetry.uninstrument(broker)
    broker.queue("orders").push({"line": "gear"})
    shop.drain(broker)
    assert len(telemetry.spans("process orders")) == 2


def test_the_links_of_joins_are_limited(broker: mongoq.Broker) -> None:
    parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 100)]
    shop = mongoq.Pipeline("shop", errors="shop.errors", outputs="settled")
    shop.join(["orders", "payments"], on="id", to="settled")(lambda order, payment: order)
    broker.queue("orders").push({"id": 1}, headers={"traceparent": parents[0], "mongoq-links": parents[1:30]})
    broker.queue("payments").push({"id": 1}, headers={"traceparent": parents[30], "mongoq-links": parents[31:60]})
    shop.drain(broker)
    [settled] = broker.queue("settled").peek()
    assert settled.headers["traceparent"] == parents[0]
    assert len(settled.headers["mongoq-links"]) == 32
