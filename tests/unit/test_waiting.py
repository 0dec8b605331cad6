"""A wait, step by step: what it asks between two attempts."""

from __future__ import annotations

from datetime import UTC, datetime

from mongoq.model.clock import EPOCH, ServerClock
from mongoq.protocol import claim
from mongoq.protocol.request import Command, Wait
from tests.unit.scripted import context


def test_a_waiter_measures_the_clock_again_when_it_is_due() -> None:
    """A worker may wait for hours, over failovers and steps of the server's clock."""
    queue = context()
    clock = queue.broker.clock = ServerClock()
    flow = claim.reserve(queue, lease=None, wait=60, on_invalid="bury")
    hello = {"localTime": datetime.now(UTC).replace(tzinfo=None)}

    def measured_before_the_claim(request: object) -> Command[object]:
        hellos = 0
        while isinstance(request, Command) and request.method == "command":
            hellos += 1
            request = flow.send(hello)
        assert hellos == 5
        assert isinstance(request, Command)
        assert request.method == "find_one_and_update"
        return request

    first = measured_before_the_claim(next(flow))
    assert first.arguments["filter"]["when"]["$lte"] > EPOCH
    pause = flow.send(None)
    assert isinstance(pause, Wait)
    clock.disturb()
    measured_before_the_claim(flow.send(None))
    pause = flow.send(None)
    assert isinstance(pause, Wait)
    unhurried = flow.send(None)
    assert isinstance(unhurried, Command)
    assert unhurried.method == "find_one_and_update"
    flow.close()
