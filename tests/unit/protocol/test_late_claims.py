"""A claim that took long: the lease begins anew before the item is handed out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.protocol.claim import reserve
from mongoq.protocol.flow import Command
from tests.unit.scripted import LOST, NOW, context, matched


def claiming(queue: Any) -> Any:
    return reserve.reserve(queue, lease=timedelta(seconds=30), wait=None, on_invalid="bury")


def stored(number: int = 1) -> dict[str, Any]:
    due = NOW - timedelta(seconds=5)
    return {"_id": ObjectId(), "q": "orders", "payload": number, "when": due, "priority": 0, "attempts": 0}


def next_command(flow: Any, reply: Any = None) -> Command[Any]:
    request = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
    assert isinstance(request, Command)
    return request


def test_a_claim_in_good_time_is_handed_out_as_it_is() -> None:
    queue = context()
    flow = claiming(queue)
    next(flow)
    queue.broker.clock.advance(14)
    with pytest.raises(StopIteration) as stop:
        flow.send(stored())
    assert stop.value.value.lease_until == NOW + timedelta(seconds=30)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_late_claim_is_extended_first(is_lost: bool) -> None:
    queue = context()
    flow = claiming(queue)
    token = next(flow).arguments["update"]["$set"]["token"]
    queue.broker.clock.advance(20)
    document = stored()
    extension = next_command(flow, document)
    assert extension.method == "update_one"
    assert extension.arguments == {
        "filter": {"_id": document["_id"], "token": token},
        "update": {"$set": {"when": NOW + timedelta(seconds=50)}},
    }
    assert extension.undo is not None
    back = extension.undo(matched(1))
    assert back is not None
    assert back.arguments["update"]["$set"]["when"] == document["when"]
    if is_lost:
        extension = next_command(flow, LOST)
    assert extension.parse is not None
    with pytest.raises(StopIteration) as stop:
        flow.send(extension.parse(matched(1)))
    assert stop.value.value.lease_until == NOW + timedelta(seconds=50)


def test_a_late_claim_that_somebody_else_has_by_now_is_made_again() -> None:
    queue = context()
    flow = claiming(queue)
    next(flow)
    queue.broker.clock.advance(40)
    extension = next_command(flow, stored())
    assert extension.parse is not None
    again = next_command(flow, extension.parse(matched(0)))
    assert again.method == "find_one_and_update"
    with pytest.raises(StopIteration) as stop:
        flow.send(stored(2))
    assert stop.value.value.payload == 2
