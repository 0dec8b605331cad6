"""Headers that are replaced: the trace of an item goes on, unless the new headers have one of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import mongoq

TRACE = {
    "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    "tracestate": "vendor=1",
    "baggage": "tenant=acme",
    "mongoq-links": ["00-" + "3" * 32 + "-" + "4" * 16 + "-01"],
    "mongoq-context-tenant": '"acme"',
}
CONTEXT = {"mongoq-context-tenant": '"acme"'}
OWN = {"traceparent": "00-" + "5" * 32 + "-" + "6" * 16 + "-01"}


def moved(broker: mongoq.Broker, headers: Any, **options: Any) -> None:
    queue = broker.queue("orders")
    queue.move(queue.reserve(), "next", headers=headers, **options)  # type: ignore[arg-type]  # there is an item


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"h": {"deep": [1]}}, {"h": {"deep": [1]}, **TRACE}),
        ({}, TRACE),
        ({"h": 1, **OWN}, {"h": 1, **OWN, **CONTEXT}),
        ({"baggage": ""}, {"baggage": "", **CONTEXT}),
        ({"mongoq-links": []}, {"mongoq-links": [], **CONTEXT}),
        ({"mongoq-context-tenant": "1"}, {**TRACE, "mongoq-context-tenant": "1"}),
        (None, {}),
    ],
    ids=["another matter", "no headers", "a trace", "a part of one", "links", "a context variable", "none at all"],
)
def test_headers_of_an_item_that_is_moved_keep_the_trace_unless_they_have_one(
    headers: Any, expected: Mapping[str, Any], broker: mongoq.Broker
) -> None:
    broker.queue("orders").push({"n": 1}, headers={"old": True, **TRACE})
    moved(broker, headers)
    [item] = broker.queue("next").peek(2)
    assert item.headers == expected


def moved_with_a_key(broker: mongoq.Broker, headers: Any) -> None:
    moved(broker, headers, key="k")


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
    run(broker, None, where={"n": 5}, otherwise=mongoq.Move("next", headers=headers))


WAYS = [
    *(moved_with_a_key, moved_in_a_batch, moved_alike, moved_by_a_handler, moved_at_most_once, forked),
    filtered_out,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_item_of_a_batch_keeps_its_own_trace_on_each_way(
    way: Callable[[mongoq.Broker, Any], None], broker: mongoq.Broker
) -> None:
    queue = broker.queue("orders")
    for number in range(1 if way is moved_with_a_key else 4):
        queue.push({"n": number}, headers={"old": True, "tracestate": f"n={number // 2}"})
    way(broker, {"h": 1})
    for item in broker.queue("next").peek(9):
        assert item.headers == {"h": 1, "tracestate": f"n={item.payload['n'] // 2}"}
    assert (queue.size(), broker.queue("next").size() in (1, 4)) == (0, True)


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
    queue.release(queue.reserve())  # type: ignore[arg-type]
    queue.rollback(queue.reserve(), error="no")  # type: ignore[arg-type]
    queue.dead.replay(to="next")


@pytest.mark.parametrize("way", [replayed, dead, dead_at_most_once, retried, failed], ids=lambda way: way.__name__)
def test_without_new_headers_all_of_them_stay(way: Callable[[mongoq.Broker], None], broker: mongoq.Broker) -> None:
    broker.queue("orders").push({"n": 1}, headers={"old": True, **TRACE})
    way(broker)
    [item] = broker.queue("next").peek(2)
    assert item.headers == {"old": True, **TRACE}


def test_new_headers_are_taken_as_they_are_without_room_or_for_what_no_telemetry_has_written(
    broker: mongoq.Broker,
) -> None:
    broker.queue("orders").push({"n": 1}, headers=TRACE)
    headers = {"h": "x" * (16 * 1024 - 40)}
    moved(broker, headers)
    [item] = broker.queue("next").peek()
    assert item.headers == headers
    odd = {"traceparent": 7, "tracestate": {"a": 1}, "mongoq-links": "x", "mongoq-context-a": 5, "other": "x"}
    broker.queue("orders").push({"n": 2}, headers=odd)
    moved(broker, {"h": 1})
    assert [dict(item.headers) for item in broker.queue("next").peek(2) if item.payload["n"] == 2] == [{"h": 1}]
