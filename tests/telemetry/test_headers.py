"""Headers that are replaced: the trace of an item goes on, unless the new headers have one of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import mongoq
from mongoq.model.encoding.codec import HEADERS_LIMIT
from mongoq.model.trace_headers import trace_to_keep
from mongoq.protocol.settle import by_token
from mongoq.protocol.settle.move import Destination, check_move

TRACE = {
    "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    "tracestate": "vendor=1",
    "baggage": "tenant=acme",
    "mongoq-links": ["00-" + "3" * 32 + "-" + "4" * 16 + "-01"],
    "mongoq-context-tenant": '"acme"',
}
CONTEXT = {"mongoq-context-tenant": '"acme"'}
OWN = {"traceparent": "00-" + "5" * 32 + "-" + "6" * 16 + "-01"}

Headers = Mapping[str, Any]


def moved(broker: mongoq.Broker, headers: Any) -> None:
    queue = broker.queue("orders")
    queue.move(queue.reserve(), "next", headers=headers)  # type: ignore[arg-type]


def moved_with_a_key(broker: mongoq.Broker, headers: Any) -> None:
    queue = broker.queue("orders")
    queue.move(queue.reserve(), "next", headers=headers, key="k")  # type: ignore[arg-type]


def moved_in_a_batch(broker: mongoq.Broker, headers: Any) -> None:
    queue = broker.queue("orders")
    queue.move_many([(item, mongoq.Move("next", headers=headers)) for item in queue.reserve_many(9)])


def moved_alike(broker: mongoq.Broker, headers: Any) -> None:
    queue, move = broker.queue("orders"), mongoq.Move("next", headers=headers)
    queue.move_many([(item, move) for item in queue.reserve_many(9)])


def run(broker: mongoq.Broker, outcome: Any, **options: Any) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["next"])
    pipeline.stage("orders", to="next", name="a", **options)(lambda order: outcome)
    pipeline.drain(broker)


def moved_by_a_handler(broker: mongoq.Broker, headers: Any) -> None:
    run(broker, mongoq.Move("next", headers=headers))


def moved_at_most_once(broker: mongoq.Broker, headers: Any) -> None:
    run(broker, mongoq.Move("next", headers=headers), delivery="at-most-once")


def forked(broker: mongoq.Broker, headers: Any) -> None:
    run(broker, mongoq.Fork([mongoq.Move("next", headers=headers)]))


def filtered_out(broker: mongoq.Broker, headers: Any) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["next"])
    otherwise = mongoq.Move("next", headers=headers)
    pipeline.stage("orders", to="next", where={"n": 5}, otherwise=otherwise, name="a")(lambda order: None)
    pipeline.drain(broker)


def settled_by_token(broker: mongoq.Broker, headers: Any) -> None:
    """The way of rows that Spark writes."""
    queue = broker.queue("orders")
    [item] = queue.reserve_many(9)
    handover, _ = check_move(
        queue._context, Destination("next", queue._context.codec), mongoq.Move("next", headers=headers)
    )
    result = broker._run(by_token.settle_held, [by_token.FencedItem(item.id, item.token, handover)])  # type: ignore[arg-type]
    assert result.done == 1


WAYS = [
    moved,
    moved_with_a_key,
    moved_in_a_batch,
    moved_alike,
    moved_by_a_handler,
    moved_at_most_once,
    forked,
    filtered_out,
    settled_by_token,
]
TABLE: list[tuple[str, Any, Headers]] = [
    ("headers of another matter", {"h": {"deep": [1]}}, {"h": {"deep": [1]}, **TRACE}),
    ("no headers", {}, TRACE),
    ("a trace context", {"h": 1, **OWN}, {"h": 1, **OWN, **CONTEXT}),
    ("a part of one", {"baggage": ""}, {"baggage": "", **CONTEXT}),
    ("links", {"mongoq-links": []}, {"mongoq-links": [], **CONTEXT}),
    ("a context variable", {"mongoq-context-tenant": "1"}, {**TRACE, "mongoq-context-tenant": "1"}),
    ("none at all", None, {}),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(("headers", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_new_headers_keep_the_trace_unless_they_have_one(
    way: Callable[[mongoq.Broker, Any], None], headers: Any, expected: Headers, broker: mongoq.Broker
) -> None:
    broker.queue("orders").push({"n": 1}, headers={"old": True, **TRACE})
    way(broker, headers)
    [item] = broker.queue("next").peek(2)
    assert item.headers == expected


def replayed(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=60)
    queue.commit(queue.reserve())  # type: ignore[arg-type]
    queue.replay(to="next")


def dead(broker: mongoq.Broker) -> None:
    run(broker, mongoq.Dead("no"))
    broker.dead_queue("line.errors").replay(to="next")


def dead_at_most_once(broker: mongoq.Broker) -> None:
    run(broker, mongoq.Dead("no"), delivery="at-most-once")
    broker.dead_queue("line.errors").replay(to="next")


def retried(broker: mongoq.Broker) -> None:
    outcomes = [mongoq.Move("next"), mongoq.Retry(0)]
    worker = mongoq.Worker(broker)
    worker.consumer("orders")(lambda payload: outcomes.pop())
    worker.run(drain=True)


def failed(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", max_retries=0)
    queue.rollback(queue.reserve(), error="no")  # type: ignore[arg-type]
    queue.dead.replay(to="next")


def buried(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.bury(queue.reserve(), reason="no")  # type: ignore[arg-type]
    queue.dead.replay(to="next")


def released(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.release(queue.reserve())  # type: ignore[arg-type]
    moved(broker, mongoq.Move("x").headers)


@pytest.mark.parametrize(
    "way", [replayed, dead, dead_at_most_once, retried, failed, buried, released], ids=lambda way: way.__name__
)
def test_without_new_headers_all_of_them_stay(way: Callable[[mongoq.Broker], None], broker: mongoq.Broker) -> None:
    broker.queue("orders").push({"n": 1}, headers={"old": True, **TRACE})
    way(broker)
    [item] = broker.queue("next").peek(2)
    assert item.headers == {"old": True, **TRACE}


@pytest.mark.parametrize("way", [moved_in_a_batch, moved_alike, filtered_out], ids=lambda way: way.__name__)
def test_each_item_of_a_batch_keeps_its_own_trace(
    way: Callable[[mongoq.Broker, Any], None], broker: mongoq.Broker
) -> None:
    queue = broker.queue("orders")
    for number in range(4):
        queue.push({"n": number}, headers={"tracestate": f"n={number // 2}"})
    way(broker, {"h": 1})
    found = {item.payload["n"]: item.headers for item in broker.queue("next").peek(9)}
    assert found == {number: {"h": 1, "tracestate": f"n={number // 2}"} for number in range(4)}


def test_new_headers_without_room_for_the_trace_are_taken_as_they_are(broker: mongoq.Broker) -> None:
    broker.queue("orders").push({"n": 1}, headers=TRACE)
    headers = {"h": "x" * (HEADERS_LIMIT - 40)}
    moved(broker, headers)
    [item] = broker.queue("next").peek()
    assert item.headers == headers


def test_headers_that_no_telemetry_has_written_are_not_kept() -> None:
    odd = {"traceparent": 7, "tracestate": {"a": 1}, "mongoq-links": "x", "mongoq-context-a": 5, "other": "x"}
    assert trace_to_keep(odd, {}) == {}
