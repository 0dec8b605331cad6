"""A process that dies within a transaction: its items are held until the server gives that up, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mongoq
from tests.pipeline.conftest import QUICK

SOON = 45.0
"""Seconds for what need not wait; the server gives up a transaction after a minute."""
LEASE = 0.3


def seen(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_arrivals_in_the_transaction_of_a_dead_process_hold_up_no_others(
    broker: mongoq.Broker, raw: Any, client: Any
) -> None:
    queue = broker.queue("a")
    queue.push_many([{"n": n} for n in range(20)])
    items = queue.reserve_many(20, lease=LEASE)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], on="n", to="out", lease=LEASE, retry=QUICK)
    def unite(a: Any, b: Any) -> int:
        return a["n"] + b["n"]

    def out() -> list[int]:
        return sorted(item.payload for item in broker.queue("out").peek(100))

    with client.start_session() as session, session.start_transaction():
        ids = [item.id for item in items[:10]]
        assert raw.delete_many({"_id": {"$in": ids}}, session=session).deleted_count == 10
        time.sleep(LEASE * 1.5)
        with pipeline.start(broker) as run:
            time.sleep(LEASE * 2)
            for name in "ab":
                broker.queue(name).push_many([{"n": n} for n in range(100, 120)])
            assert seen(lambda: set(range(200, 240, 2)) <= set(out())), out()
            session.abort_transaction()
            broker.queue("b").push_many([{"n": n} for n in range(20)])
            assert seen(lambda: out() == [*range(0, 40, 2), *range(200, 240, 2)]), out()
            assert not run.ended
    assert broker.queues() == ["out"]


def test_an_item_in_the_transaction_of_a_dead_process_holds_up_nobody_else(
    broker: mongoq.Broker, raw: Any, client: Any
) -> None:
    queue, other_queue = broker.queue("raw"), broker.queue("other")
    queue.push_many(["held", "behind it"])
    held_item, _ = queue.reserve_many(2, lease=LEASE)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs=("a", "b"))

    @pipeline.stage("raw", to=("a", "b"), lease=LEASE, retry=QUICK)
    def split(_: str) -> mongoq.Fork:
        return mongoq.Fork([mongoq.Move("a"), mongoq.Move("b")])

    @pipeline.stage("other", to="a", lease=LEASE)
    def carry(payload: str) -> str:
        return payload

    def out(name: str) -> list[Any]:
        return sorted(item.payload for item in broker.queue(name).peek(10))

    with client.start_session() as session, session.start_transaction():
        assert raw.delete_one({"_id": held_item.id, "token": held_item.token}, session=session).deleted_count
        time.sleep(LEASE * 1.5)
        with pipeline.start(broker) as run:
            time.sleep(LEASE * 2)
            for number in range(3):
                queue.push(f"fresh {number}")
                other_queue.push(f"fresh {number}")
            fresh = [f"fresh {number}" for number in range(3)]
            assert seen(lambda: out("b") == fresh and out("a") == sorted(fresh * 2)), (out("a"), out("b"))
            session.abort_transaction()
            assert seen(lambda: out("b") == ["behind it", *fresh, "held"]), out("b")
            assert not run.ended
    assert broker.queues() == ["a", "b"]
