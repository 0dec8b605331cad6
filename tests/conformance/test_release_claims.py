"""Items that a stream holds, given back by whoever knows the name of its consumer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell


async def reserve_for_stream(shell: Shell, number: int, **changes: Any) -> list[ObjectId]:
    """Push items, and let a consumer hold them."""
    queue, now, token = shell.broker.queue("orders"), shell.clock.now(), ObjectId()
    ids = [await queue.push(n) for n in range(number)]
    until = now + timedelta(seconds=30)
    mine = {"token": token, "reserved": True, "when": until, "attempts": 1}
    shell.raw.update_many({"q": "orders"}, {"$set": mine})
    packed = b"".join(id.binary for id in ids)
    claim = {"number": 3, "token": token, "until": until, "due": now, "ids": packed, "others": [], "once": False}
    run = {"queue": "orders", "number": 3, "token": ObjectId(), "until": until, "by": "host:1:ab"}
    shell.raw.insert_one({"_id": "stream:etl", **run, "claim": claim, **changes})
    return ids


async def test_what_a_consumer_holds_is_ready_again_at_once(shell: Shell) -> None:
    ids = await reserve_for_stream(shell, 3)
    assert await shell.broker.release_claims("etl") == 3
    items = await shell.broker.queue("orders").reserve_many(5)
    assert [(item.id, item.attempts) for item in items] == [(id, 1) for id in ids]
    control = shell.raw.find_one({"_id": "stream:etl"})
    assert control["number"] == 3
    assert not control.keys() & {"claim", "token", "by"}
    assert await shell.broker.release_claims("etl") == 0


async def test_what_was_settled_or_taken_meanwhile_is_left_alone(shell: Shell) -> None:
    first, second, third = await reserve_for_stream(shell, 3)
    shell.raw.delete_one({"_id": first})
    shell.raw.update_one({"_id": second}, {"$set": {"token": ObjectId()}})
    assert await shell.broker.release_claims("etl") == 1
    item = await shell.broker.queue("orders").reserve()
    assert item.id == third


async def test_a_consumer_that_nobody_knows_holds_nothing(shell: Shell) -> None:
    assert await shell.broker.release_claims("nobody") == 0
    for name in ("", 5, "x" * 121):
        with pytest.raises(mongoq.ArgumentInvalid, match="consumer"):
            await shell.broker.release_claims(name)
