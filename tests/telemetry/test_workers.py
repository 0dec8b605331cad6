"""Process spans: around each call of a handler, with the push of the item as the parent."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import mongoq
import mongoq.telemetry
from mongoq.testing import AsyncVirtualBroker, VirtualBroker
from tests.awkward import AWKWARD, awkward
from tests.telemetry.conftest import (
    KINDS,
    Telemetry,
    drain,
    fitting,
    link_ids,
    parent_id,
    span_id,
    trace_id,
    traceparent,
)

PROCESS = "messaging.process.duration"


@pytest.fixture
def queue(broker: mongoq.Broker, telemetry: Telemetry) -> mongoq.Queue[Any]:
    telemetry.instrument(broker)
    return broker.queue("orders")


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_runs_in_a_span_below_the_push(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    current: list[Any] = []
    id = queue.push(1)

    def handle(payload: Any) -> None:
        current.append(trace.get_current_span().get_span_context())

    drain(kind, uri, database, telemetry.instrument, lambda w: w.consumer("orders")(fitting(kind, handle)))
    push, process = telemetry.span("push orders"), telemetry.span("process orders")
    assert process.kind is SpanKind.CONSUMER
    assert trace_id(process) == trace_id(push)
    assert parent_id(process) == span_id(push)
    assert link_ids(process) == [span_id(push)]
    assert [context.span_id for context in current] == [span_id(process)]
    attributes = dict(process.attributes or {})
    assert attributes.pop("server.address")
    assert attributes.pop("server.port")
    assert attributes == {
        "messaging.system": "mongoq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(id),
        "mongoq.consumer": "orders",
        "mongoq.attempt": 1,
    }
    assert link_ids(telemetry.span("reserve orders")) == [span_id(push)]
    assert link_ids(telemetry.span("settle orders")) == [span_id(push)]
    [point] = telemetry.points(PROCESS)
    assert point.count == 1
    assert point.attributes["messaging.destination.name"] == "orders"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_what_a_handler_pushes_goes_on_with_its_trace(
    broker: mongoq.Broker, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    queue.push(1)
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(lambda payload: broker.queue("bills").push(payload) and None)
    worker.consumer("bills")(lambda payload: None)
    worker.run(drain=True)
    first, process, second, last = (
        telemetry.span(name) for name in ("push orders", "process orders", "push bills", "process bills")
    )
    assert {trace_id(span) for span in (first, process, second, last)} == {trace_id(first)}
    assert [parent_id(span) for span in (process, second, last)] == [span_id(s) for s in (first, process, second)]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_failure_is_recorded_and_its_retry_has_the_same_parent(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    failures = [KeyError("first")]
    queue.push(1)

    def handle(payload: Any) -> None:
        if failures:
            raise failures.pop()

    def register(worker: Any) -> None:
        worker.consumer("orders", retry=mongoq.Fixed(0))(fitting(kind, handle))

    drain(kind, uri, database, telemetry.instrument, register)
    failed, done = telemetry.spans("process orders")
    push = telemetry.span("push orders")
    assert [parent_id(failed), parent_id(done)] == [span_id(push)] * 2
    assert [(span.attributes or {})["mongoq.attempt"] for span in (failed, done)] == [1, 2]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "KeyError"
    [event] = failed.events
    assert "in handle" in str((event.attributes or {})["exception.stacktrace"])
    assert done.status.status_code is StatusCode.UNSET
    assert {point.attributes.get("error.type"): point.count for point in telemetry.points(PROCESS)} == {
        "KeyError": 1,
        None: 1,
    }


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_batch_links_to_the_push_of_each_item_and_has_none_as_parent(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    queue.push(1)
    queue.push_many([2, 3])
    queue.push(4)
    failures = [KeyError("third")]

    def handle(payloads: list[Any]) -> list[Any]:
        return [failures.pop() if payload == 3 and failures else None for payload in payloads]

    def register(worker: Any) -> None:
        worker.consumer("orders", batch=10, retry=mongoq.Fixed(0))(fitting(kind, handle))

    drain(kind, uri, database, telemetry.instrument, register)
    process = telemetry.spans("process orders")[0]
    assert process.parent is None
    assert link_ids(process) == [span_id(span) for span in telemetry.spans("push orders")]
    assert (process.attributes or {})["messaging.batch.message_count"] == 4
    assert (process.attributes or {})["error.type"] == "KeyError"


def test_the_outcome_of_a_handler_is_an_attribute(
    broker: mongoq.Broker, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    outcomes: list[Any] = [mongoq.Drop(), mongoq.Move("bills"), mongoq.Dead("no"), mongoq.Retry(delay=0)]
    queue.push_many(range(3))
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(lambda payload: outcomes.pop())
    worker.run(drain=True)
    found = [span.attributes or {} for span in telemetry.spans("process orders")]
    assert [each["mongoq.outcome"] for each in found] == ["Retry", "Dead", "Move", "Drop"]
    assert [each.get("error.type") for each in found] == ["Retry", "Dead", None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_cannot_be_applied_is_an_error(
    kind: str, uri: str, database: str, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    queue.push_many(range(2))
    outcomes = [mongoq.Move("bills", payload="x" * 17_000_000), mongoq.Drop]

    def handle(payload: int) -> Any:
        return outcomes[payload]

    def register(worker: Any) -> None:
        worker.consumer("orders", max_retries=0)(fitting(kind, handle))

    drain(kind, uri, database, telemetry.instrument, register)
    spans = telemetry.spans("process orders")
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 2
    assert [(span.attributes or {})["error.type"] for span in spans] == [
        "mongoq.errors.PayloadTooLarge",
        "mongoq.errors.OutcomeInvalid",
    ]
    assert "return Drop(…)" in str(spans[1].status.description)
    assert sum(point.count for point in telemetry.points(PROCESS) if "error.type" in point.attributes) == 2


HOSTILE: list[Any] = [
    7,
    None,
    ["00-" + "1" * 32 + "-" + "2" * 16 + "-01"],
    {"a": 1},
    b"00",
    "",
    "00-zz-zz-01",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
    "x" * 1_000_000,
    "\x00\ud7ff",
    3.5,
    True,
]


@pytest.mark.parametrize("field", ["traceparent", "mongoq-links"])
def test_hostile_headers_never_break_a_handler(
    field: str, broker: mongoq.Broker, raw: Any, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    seen: list[int] = []
    batches, single = mongoq.Worker(broker), mongoq.Worker(broker)
    batches.consumer("orders", batch=5)(seen.extend)
    single.consumer("orders")(seen.append)
    for worker in (batches, single):
        seen.clear()
        queue.push_many([*range(len(HOSTILE)), -1])
        push = telemetry.spans("push orders")[-1]
        for number, value in enumerate(HOSTILE):
            hostile = [value] * 50 if field == "mongoq-links" and number % 2 else value
            headers = {"traceparent": traceparent(push), field: hostile}
            raw.update_one({"q": "orders", "payload": number}, {"$set": {"headers": headers}})
        raw.update_one({"q": "orders", "payload": -1}, {"$set": {"headers": "no document"}})
        worker.run(drain=True)
        assert sorted(seen) == [-1, *range(len(HOSTILE))]
        assert queue.size() == 0
    calls = telemetry.spans("process orders")[-len(HOSTILE) - 1 :]
    assert [span for span in calls if (span.attributes or {}).get("error.type")] == []
    # The rest of the headers is used.
    assert sum(parent_id(span) == span_id(push) for span in calls) == (0 if field == "traceparent" else len(HOSTILE))


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("error", [Mute(), ValueError("\ud800"), ValueError("x" * 100_000)])
def test_an_exception_with_an_awkward_text_is_recorded(
    error: Exception, uri: str, database: str, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    queue.push(1)

    def handle(payload: Any) -> None:
        raise error

    register = lambda w: w.consumer("orders", max_retries=0)(handle)  # noqa: E731
    drain("threads", uri, database, telemetry.instrument, register)
    process = telemetry.span("process orders")
    kind = str((process.attributes or {})["error.type"])
    assert kind.endswith(type(error).__name__)
    assert process.status.status_code is StatusCode.ERROR
    [event] = process.events
    assert (event.attributes or {})["exception.type"] == kind
    for text in (process.status.description, *(event.attributes or {}).values()):
        assert str(text).encode()  # exporters encode it
    assert len(process.status.description or "") <= 1024
    assert queue.dead.size() == 1


def test_awkward_exceptions_fail_their_own_calls_alone(
    uri: str, database: str, queue: mongoq.Queue[Any], telemetry: Telemetry
) -> None:
    queue.push_many([*AWKWARD, "fine"])

    def handle(payload: str) -> None:
        if payload in AWKWARD:
            raise awkward(payload)

    def register(worker: Any) -> None:
        worker.consumer("orders", max_retries=0)(handle)

    drain("threads", uri, database, telemetry.instrument, register)
    assert {letter.payload for letter in queue.dead.peek(100)} == AWKWARD.keys()
    kinds = [(span.attributes or {}).get("error.type") for span in telemetry.spans("process orders")]
    assert kinds.count(None) == 1
    assert len(kinds) == len(AWKWARD) + 1
    for span in telemetry.spans("process orders"):
        for event in span.events:
            assert "".join(map(str, (event.attributes or {}).values())).encode()


def test_virtual_brokers_and_workers_have_the_same_spans(telemetry: Telemetry) -> None:
    with VirtualBroker() as virtual:
        telemetry.instrument(virtual)
        worker = mongoq.Worker(virtual)
        worker.consumer("orders", max_retries=0)(lambda payload: 1 / payload)
        virtual.queue("orders").push(0)
        virtual.worker(worker).run_until_idle()
        push, process = telemetry.span("push orders"), telemetry.span("process orders")
        assert parent_id(process) == span_id(push)
        assert (process.attributes or {})["error.type"] == "ZeroDivisionError"
        assert "server.address" not in (process.attributes or {})
        assert [letter.headers["traceparent"] for letter in virtual.queue("orders").dead.peek()] == [traceparent(push)]


async def test_asyncio_virtual_brokers_have_them_too(telemetry: Telemetry) -> None:
    virtual = AsyncVirtualBroker()
    telemetry.instrument(virtual)
    worker = mongoq.AsyncWorker(virtual)

    @worker.consumer("orders")
    async def handle(payload: Any) -> None:
        await virtual.queue("bills").push(payload)

    await virtual.queue("orders").push(1)
    await virtual.worker(worker).run_until_idle()
    names = ["push orders", "process orders", "push bills"]
    assert len({trace_id(telemetry.span(name)) for name in names}) == 1
    mongoq.telemetry.uninstrument(virtual)
    await virtual.queue("orders").push(2)
    await virtual.worker(worker).run_until_idle()
    assert len(telemetry.spans("process orders")) == 1
    await virtual.close()
