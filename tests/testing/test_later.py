"""Items that a handler puts off, run by hand on the virtual clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import mongoq
from mongoq.testing import VirtualBroker, VirtualWorker


def test_the_result_of_an_item_that_is_put_off(virtual: VirtualBroker, worker: VirtualWorker) -> None:
    outcomes: list[Any] = [mongoq.Later(600), mongoq.Later(when=virtual.clock.now() + timedelta(hours=1)), None]

    @worker.consumer("orders", max_retries=0)
    def handle(payload: Any) -> Any:
        return outcomes.pop(0)

    orders = virtual.queue("orders")
    id = orders.push("a")
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, result.error, result.delay) == ("later", None, timedelta(minutes=10))
    assert (orders.get(id).attempts, worker.run_one("orders")) == (0, None)
    virtual.advance(600)
    result = worker.run_one("orders")
    assert result is not None
    assert (result.outcome, result.delay, result.item.attempts) == ("later", timedelta(minutes=50), 1)
    virtual.advance(3_000)
    result = worker.run_one("orders")
    assert result is not None
    assert result.outcome == "done"
