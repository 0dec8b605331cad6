"""Spans and durations of pushes, claims and settlements, outside of workers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from pymongo import MongoClient

import mongoq
import mongoq.telemetry
from tests.telemetry.conftest import Telemetry, link_ids, parent_id, span_id, trace_id, traceparent

CLIENT = "messaging.client.operation.duration"


@pytest.fixture
def queue(broker: mongoq.Broker, telemetry: Telemetry) -> mongoq.Queue[Any]:
    """A handle that was made before its broker was instrumented."""
    made = broker.queue("orders")
    telemetry.instrument(broker)
    return made


def test_a_push_has_a_producer_span_whose_context_travels_with_the_item(
    queue: mongoq.Queue[Any], telemetry: Telemetry, server: Any
) -> None:
    with telemetry.tracer.start_as_current_span("request") as request:
        id = queue.push(1, headers={"tenant": "acme"})
    push = telemetry.span("push orders")
    assert push.kind is SpanKind.PRODUCER
    assert parent_id(push) == request.get_span_context().span_id
    assert dict(push.attributes or {}) == {
        "messaging.system": "mongoq",
        "messaging.operation.name": "push",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(id),
        "server.address": push.attributes["server.address"],  # type: ignore[index]
        "server.port": int(server.uri.split(":")[2].split("/")[0]),
    }
    [item] = queue.peek()
    assert item.headers == {"tenant": "acme", "traceparent": traceparent(push)}


def test_a_claim_and_a_settlement_link_to_the_push(queue: mongoq.Queue[Any], telemetry: Telemetry) -> None:
    id = queue.push(1)
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    push = telemetry.span("push orders")
    for name, type in (("reserve", "receive"), ("commit", "settle")):
        span = telemetry.span(f"{name} orders")
        assert span.kind is SpanKind.CLIENT
        assert link_ids(span) == [span_id(push)]
        assert span.parent is None
        attributes = dict(span.attributes or {})
        assert attributes["messaging.operation.name"] == name
        assert attributes["messaging.operation.type"] == type
        assert attributes["messaging.message.id"] == str(id)
    names = {point.attributes["messaging.operation.name"]: point for point in telemetry.points(CLIENT)}
    assert set(names) == {"push", "reserve", "commit"}
    assert names["push"].count == 1
    assert 0 < names["push"].sum < 60
    assert names["push"].explicit_bounds[0] == 0.005
    assert names["push"].attributes["messaging.destination.name"] == "orders"


def test_batches_have_their_number_and_a_link_for_each_push(queue: mongoq.Queue[Any], telemetry: Telemetry) -> None:
    queue.push_many([1, 2])
    queue.push(3)
    items = queue.reserve_many(10)
    moves = [(item, mongoq.Move("orders")) for item in items]
    queue.move_many(iter(moves))  # read once
    queue.commit_many(iter(queue.reserve_many(10)))
    many, one = telemetry.spans("push orders")
    assert (many.attributes or {})["messaging.batch.message_count"] == 2
    assert "messaging.batch.message_count" not in (one.attributes or {})
    for span in (*telemetry.spans("reserve orders"), telemetry.span("move orders"), telemetry.span("commit orders")):
        assert (span.attributes or {})["messaging.batch.message_count"] == 3
        assert set(link_ids(span)) == {span_id(many), span_id(one)}
    assert queue.size() == 0


def test_a_pop_has_a_span_and_a_claim_of_nothing_has_none(queue: mongoq.Queue[Any], telemetry: Telemetry) -> None:
    assert queue.pop() is None
    assert queue.reserve() is None
    assert queue.reserve_many(3) == []
    assert telemetry.spans() == []
    queue.push(1)
    assert queue.pop() is not None
    assert link_ids(telemetry.span("pop orders")) == [span_id(telemetry.span("push orders"))]


def test_an_error_is_raised_unchanged_and_named(queue: mongoq.Queue[Any], telemetry: Telemetry) -> None:
    queue.push(1)
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    with pytest.raises(mongoq.ReservationLost):
        queue.commit(item)
    with pytest.raises(mongoq.PayloadInvalid):
        queue.push(object())
    with pytest.raises(mongoq.PayloadInvalid):
        queue.push(1, headers="text")  # type: ignore[arg-type]
    with pytest.raises(mongoq.ArgumentInvalid):
        queue.commit_many(7)  # type: ignore[arg-type]
    failed = telemetry.spans("commit orders")[1]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "mongoq.errors.ReservationLost"
    kinds = {point.attributes.get("error.type") for point in telemetry.points(CLIENT)}
    assert kinds == {None, "mongoq.errors.ReservationLost", "mongoq.errors.PayloadInvalid"}


def test_headers_of_the_producer_are_never_changed(queue: mongoq.Queue[Any], telemetry: Telemetry) -> None:
    own = {"traceparent": "mine"}
    queue.push(1, headers=own)
    queue.push(2, headers={"tracestate": "a=b"})
    assert own == {"traceparent": "mine"}
    assert [dict(item.headers) for item in queue.peek(2)] == [{"traceparent": "mine"}, {"tracestate": "a=b"}]


def test_headers_without_room_for_the_trace_context_are_pushed_with_one_warning(
    queue: mongoq.Queue[Any], telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"text": "x" * (16 * 1024 - 40)}
    with caplog.at_level(logging.WARNING, "mongoq.telemetry"):
        queue.push_many([1, 2], headers=headers)
        queue.push(3, headers=headers)
    assert [dict(item.headers) for item in queue.peek(9)] == [headers] * 3
    assert len([record for record in caplog.records if "no room" in record.message]) == 1


def test_operations_in_a_transaction_and_in_a_block_have_spans(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    telemetry.instrument(broker)
    queue = broker.queue("orders")
    with broker.transaction() as tx:
        queue.push(1, session=tx.session)
        queue.push_many([2], session=tx.session)
    with queue.reserved() as item, broker.transaction() as tx:
        assert item is not None
        queue.move(item, "billing", session=tx.session)
    with queue.reserved() as item:
        assert item is not None
    queue.push(3)
    with pytest.raises(KeyError), queue.reserved(delay=60):
        raise KeyError
    names = [span.name for span in telemetry.spans()]
    assert names == [
        *["push orders", "push orders", "reserve orders", "move orders", "reserve orders", "commit orders"],
        *["push orders", "reserve orders", "rollback orders"],
    ]
    assert broker.queue("billing").size() == 1


async def test_an_asyncio_broker_has_the_same_spans_and_none_for_a_cancelled_wait(
    uri: str, database: str, telemetry: Telemetry
) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        telemetry.instrument(broker)
        queue = broker.queue("orders")
        with telemetry.tracer.start_as_current_span("request") as request:
            id = await queue.push(1)
        item = await queue.reserve()
        assert item is not None
        assert item.id == id
        await queue.move(item, "billing")
        async with broker.queue("billing").reserved() as moved:
            assert moved is not None
        waiting = asyncio.create_task(queue.reserve(wait=60))
        await queue.size()  # meanwhile it has begun to wait, or not
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    push = telemetry.span("push orders")
    assert trace_id(push) == request.get_span_context().trace_id
    names = ["reserve orders", "move orders", "reserve billing", "commit billing"]
    for name in names:
        assert link_ids(telemetry.span(name)) == [span_id(push)]
    assert [span.name for span in telemetry.spans()] == ["request", "push orders", *names]


async def test_a_cancelled_push_has_failed(
    uri: str, database: str, telemetry: Telemetry, client: MongoClient[Any]
) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        telemetry.instrument(broker)
        await broker.queue("orders").push(1)
        block = {"failCommands": ["insert"], "blockConnection": True, "blockTimeMS": 5_000}
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=block)
        pushing = asyncio.create_task(broker.queue("orders").push(2))
        while inspect.getcoroutinestate(pushing.get_coro()) != inspect.CORO_SUSPENDED:  # type: ignore[arg-type]
            await asyncio.sleep(0.001)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert [(span.attributes or {}).get("error.type") for span in telemetry.spans("push orders")] == [None, "cancelled"]


def test_each_settlement_has_its_own_name_and_copies_for_bound_queues_the_context_of_their_push(
    broker: mongoq.Broker, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    queue.push(1)
    for name, arguments in (("release", []), ("rollback", []), ("move", ["orders"]), ("bury", [])):
        getattr(queue, name)(queue.reserve(), *arguments)
        assert link_ids(telemetry.span(f"{name} orders")) == [span_id(telemetry.span("push orders"))], name
    broker.bind("events", "a", "b")
    broker.queue("events").push(1)
    broker.queue("events").push_many([2])
    headers = [item.headers["traceparent"] for name in "ab" for item in broker.queue(name).peek(2)]
    assert headers == [traceparent(span) for span in telemetry.spans("push events")] * 2


def test_uninstrument_ends_it_and_a_second_instrument_takes_the_place_of_the_first(
    broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    other = Telemetry()
    queue = broker.queue("orders")
    other.instrument(broker)
    telemetry.instrument(mongoq.Worker(broker))  # a worker stands for its broker
    queue.push(1)
    mongoq.telemetry.uninstrument(broker)
    mongoq.telemetry.uninstrument(broker)
    queue.push(2)
    assert (other.spans(), len(telemetry.spans())) == ([], 1)
    assert [dict(item.headers) for item in queue.peek(2)] == [{"traceparent": traceparent(telemetry.spans()[0])}, {}]
    other.close()
    for target in (None, "broker", queue):
        for act in (mongoq.telemetry.instrument, mongoq.telemetry.uninstrument):
            with pytest.raises(mongoq.ArgumentInvalid, match="a broker, a worker or a pipeline"):
                act(target)  # type: ignore[operator]
