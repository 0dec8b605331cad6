"""Spans and durations of pushes, claims and settlements, outside of workers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import pytest
from bson import ObjectId
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, exception_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode
from pymongo import MongoClient

import mongoq
import mongoq.telemetry
from mongoq.model.encoding.codec import HEADERS_LIMIT
from mongoq.telemetry import conventions
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


@pytest.mark.parametrize("name", ["rollback", "release", "bury", "move"])
def test_other_settlements_have_their_own_names(name: str, queue: mongoq.Queue[Any], telemetry: Telemetry) -> None:
    queue.push(1)
    item = queue.reserve()
    assert item is not None
    getattr(queue, name)(item, *(["billing"] if name == "move" else []))
    assert link_ids(telemetry.span(f"{name} orders")) == [span_id(telemetry.span("push orders"))]


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
    headers = {"text": "x" * (HEADERS_LIMIT - 40)}
    with caplog.at_level(logging.WARNING, "mongoq.telemetry"):
        queue.push_many([1, 2], headers=headers)
        queue.push(3, headers=headers)
    assert [dict(item.headers) for item in queue.peek(9)] == [headers] * 3
    assert len([record for record in caplog.records if "no room" in record.message]) == 1


def test_the_trace_context_is_kept_by_moves_retries_replays_and_dead_letters(
    broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    telemetry.instrument(broker)
    queue = broker.queue("orders", history=60, max_retries=0)
    queue.push(1)
    header = traceparent(telemetry.span("push orders"))
    item = queue.reserve()
    assert item is not None
    queue.rollback(item, error="no")
    [letter] = queue.dead.peek()
    assert letter.headers["traceparent"] == header
    queue.dead.replay()
    again = queue.reserve()
    assert again is not None
    assert again.headers["traceparent"] == header
    queue.move(again, "orders")
    last = queue.reserve()
    assert last is not None
    assert last.headers["traceparent"] == header
    queue.commit(last)
    queue.replay(ids=[last.id], to="copies")
    [copy] = broker.queue("copies").peek()
    assert copy.headers["traceparent"] == header


def test_copies_for_bound_queues_have_the_context_of_their_push(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    telemetry.instrument(broker)
    broker.bind("events", "a", "b")
    broker.queue("events").push(1)
    broker.queue("events").push_many([2])
    headers = [item.headers["traceparent"] for name in "ab" for item in broker.queue(name).peek(2)]
    assert headers == [traceparent(span) for span in telemetry.spans("push events")] * 2


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


@pytest.mark.parametrize("group_commit", [True, False])
async def test_an_asyncio_broker_has_the_same_spans(
    group_commit: bool, uri: str, database: str, telemetry: Telemetry
) -> None:
    async with mongoq.connect_async(uri, database=database, group_commit=group_commit) as broker:
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
    push = telemetry.span("push orders")
    assert trace_id(push) == request.get_span_context().trace_id
    for name in ("reserve orders", "move orders", "reserve billing", "commit billing"):
        assert link_ids(telemetry.span(name)) == [span_id(push)]


async def test_a_cancelled_wait_has_no_span(uri: str, database: str, telemetry: Telemetry) -> None:

    async with mongoq.connect_async(uri, database=database) as broker:
        telemetry.instrument(broker)
        waiting = asyncio.create_task(broker.queue("orders").reserve(wait=60))
        while "orders" not in broker._context.registry.wait_queues:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert telemetry.spans() == []


async def test_a_cancelled_push_has_failed(
    uri: str, database: str, telemetry: Telemetry, client: MongoClient[Any]
) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        telemetry.instrument(broker)
        await broker.queue("orders").push(1)
        block = {"failCommands": ["insert"], "blockConnection": True, "blockTimeMS": 300}
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=block)
        pushing = asyncio.create_task(broker.queue("orders").push(2))
        while inspect.getcoroutinestate(pushing.get_coro()) != inspect.CORO_SUSPENDED:  # type: ignore[arg-type]
            await asyncio.sleep(0.001)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert [(span.attributes or {}).get("error.type") for span in telemetry.spans("push orders")] == [None, "cancelled"]


def test_the_names_are_those_of_the_conventions() -> None:
    attributes = [conventions.SYSTEM, conventions.OPERATION_NAME, conventions.OPERATION_TYPE, conventions.DESTINATION]
    attributes += [conventions.MESSAGE_ID, conventions.BATCH_COUNT]
    assert set(attributes) <= {value for value in vars(messaging_attributes).values() if isinstance(value, str)}
    types = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
    operations = [one for one in vars(conventions).values() if isinstance(one, conventions.Operation)]
    assert {one.type for one in operations} <= types
    assert messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION == conventions.CLIENT_DURATION
    assert messaging_metrics.MESSAGING_PROCESS_DURATION == conventions.PROCESS_DURATION
    assert exception_attributes.EXCEPTION_TYPE == conventions.EXCEPTION_TYPE
    assert exception_attributes.EXCEPTION_MESSAGE == conventions.EXCEPTION_MESSAGE
    assert exception_attributes.EXCEPTION_STACKTRACE == conventions.EXCEPTION_STACKTRACE
    assert error_attributes.ERROR_TYPE == conventions.ERROR_TYPE
    assert server_attributes.SERVER_ADDRESS == conventions.SERVER_ADDRESS
    assert server_attributes.SERVER_PORT == conventions.SERVER_PORT


def test_uninstrument_ends_it_and_a_second_instrument_takes_the_place_of_the_first(
    broker: mongoq.Broker, telemetry: Telemetry
) -> None:
    other = Telemetry()
    queue = broker.queue("orders")
    other.instrument(broker)
    telemetry.instrument(broker)
    queue.push(1)
    mongoq.telemetry.uninstrument(broker)
    mongoq.telemetry.uninstrument(broker)
    queue.push(2)
    assert other.spans() == []
    assert len(telemetry.spans()) == 1
    assert [dict(item.headers) for item in queue.peek(2)] == [{"traceparent": traceparent(telemetry.spans()[0])}, {}]
    other.close()


def test_what_cannot_be_instrumented_is_refused(broker: mongoq.Broker) -> None:
    for target in (None, "broker", broker.queue("orders")):
        with pytest.raises(mongoq.ArgumentInvalid, match="a broker, a worker or a pipeline"):
            mongoq.telemetry.instrument(target)  # type: ignore[arg-type]
        with pytest.raises(mongoq.ArgumentInvalid, match="a broker, a worker or a pipeline"):
            mongoq.telemetry.uninstrument(target)  # type: ignore[arg-type]


def test_a_worker_stands_for_its_broker(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(lambda payload: None)
    telemetry.instrument(worker)
    broker.queue("orders").push(1, id=ObjectId())
    worker.run(drain=True)
    assert telemetry.spans()[0].name == "push orders"
    assert telemetry.span("process orders")
