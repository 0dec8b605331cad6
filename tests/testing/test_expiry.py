"""Items that a virtual worker was too late for."""

from __future__ import annotations

from typing import Any

from mongoq.testing import VirtualBroker, VirtualWorker


def test_an_expired_item_is_not_run(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    handled: list[Any] = []
    worker.consumer("orders")(handled.append)
    orders = virtual.queue("orders", on_expired="dead")
    orders.push("late", expires=300)
    orders.push("good", expires=301)
    virtual.advance(300)
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, handled) == ("done", ["good"])
    assert worker.run_one("orders") is None
    (letter,) = orders.dead.peek()
    assert (letter.payload, letter.origin.reason) == ("late", "expired")
