"""Moves, patches, burials and the limit of retries, on every shell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from tests.shells import Shell


async def _reserved(shell: Shell, payload: Any, **options: Any) -> Any:
    queue = shell.queue()
    await queue.push(payload, **options)
    return await queue.reserve()


@pytest.mark.every_shell
async def test_a_move_keeps_the_item_and_starts_a_fresh_budget(shell: Shell) -> None:
    item = await _reserved(shell, {"n": 1}, priority=7, headers={"h": "x"})
    queue = shell.queue()
    await queue.rollback(item, error=ValueError("x"))
    item = await queue.reserve()
    await queue.move(item, "next")
    assert await queue.size() == 0
    moved = await shell.queue("next").reserve()
    assert (moved.id, moved.payload, moved.priority, moved.headers) == (item.id, {"n": 1}, 7, {"h": "x"})
    assert (moved.attempts, moved.error, moved.by) == (1, None, item.by)


@pytest.mark.every_shell
async def test_every_way_of_moving_an_item_counts_as_one_hop(shell: Shell) -> None:
    """Also of an item whose count another program has spoiled."""
    queue, after, changed = shell.queue(), shell.queue("next"), {"payload": {"n": 2}}
    ids = await queue.push_many([{"n": 1}] * 4)
    shell.raw.update_one({"_id": ids[3]}, {"$set": {"hops": "many"}})
    for options in ({}, changed, {}):
        items = await queue.reserve_many(4)
        await queue.move_many([(item, mongoq.Move("next", **options)) for item in items])
        items = await after.reserve_many(4)
        await after.move(items[0], "orders")
        await after.move_many([(items[1], mongoq.Move("orders")), (items[2], mongoq.Move("orders", payload={"n": 3}))])
        await after.move(items[3], "orders", patch={"$inc": {"n": 1}})
    again = await queue.reserve_many(4)
    assert [item.hops for item in again] == [6, 6, 6, 6]
    await queue.rollback_many(again)
    assert {item.hops for item in await queue.reserve_many(4)} == {6}


@pytest.mark.every_shell
async def test_a_move_takes_payload_priority_delay_and_headers(shell: Shell) -> None:
    item = await _reserved(shell, {"n": 1}, headers={"h": "x"})
    await shell.queue().move(item, "next", payload=[1, 2], priority=-3, delay=10, headers={"new": True})
    following = shell.queue("next")
    assert await following.reserve() is None
    shell.clock.advance(10)
    moved = await following.reserve()
    assert (moved.payload, moved.priority, moved.headers) == ([1, 2], -3, {"new": True})


async def test_a_move_to_empty_headers_leaves_none(shell: Shell) -> None:
    item = await _reserved(shell, 1, headers={"h": "x"})
    await shell.queue().move(item, "next", headers={})
    assert (await shell.queue("next").reserve()).headers == {}


async def test_a_move_goes_to_a_time_and_removes_headers(shell: Shell) -> None:
    item = await _reserved(shell, 1, headers={"h": "x"})
    await shell.queue().move(item, "next", when=shell.clock.now() + timedelta(hours=1), headers=None)
    (waiting,) = await shell.queue("next").peek(state="scheduled")
    assert (waiting.headers, waiting.due) == ({}, shell.clock.now() + timedelta(hours=1))


async def test_a_move_to_a_handle_goes_by_its_model(shell: Shell) -> None:
    class Point(BaseModel):
        x: int

    item = await _reserved(shell, {"n": 1})
    typed = shell.queue("points", model=Point)
    with pytest.raises(mongoq.PayloadInvalid, match="x: Input should be a valid integer"):
        await shell.queue().move(item, typed, payload={"x": "no"})
    await shell.queue().move(item, typed, payload=Point(x=3))
    assert (await typed.reserve()).payload == Point(x=3)


async def test_a_move_into_another_collection_is_refused(shell: Shell, uri: str) -> None:
    item = await _reserved(shell, 1)
    if shell.kind == "sync":
        foreign: Any = mongoq.Broker(MongoClient(uri, connect=False)["other"]["mongoq"])
    else:
        foreign = mongoq.AsyncBroker(AsyncMongoClient(uri, connect=False)["other"]["mongoq"])
    with pytest.raises(mongoq.ArgumentInvalid, match="to: .* another collection"):
        await shell.queue().move(item, foreign.queue("next"))
    await shell.queue().commit(item)


PATCHES = [
    ({"$set": {"a": 2}}, {"a": 2, "l": [1], "s": {"t": 1}}),
    ({"$set": {"s.t": 2, "new.deep": {"$set": 1}}}, {"a": 1, "l": [1], "s": {"t": 2}, "new": {"deep": {"$set": 1}}}),
    ({"$unset": {"s": 1}}, {"a": 1, "l": [1]}),
    ({"$inc": {"a": 5}}, {"a": 6, "l": [1], "s": {"t": 1}}),
    ({"$inc": {"a": 1}, "$set": {"s.t": 9}}, {"a": 2, "l": [1], "s": {"t": 9}}),
    ({"$mul": {"a": 3}}, {"a": 3, "l": [1], "s": {"t": 1}}),
    ({"$min": {"a": 0}, "$max": {"s.t": 5}}, {"a": 0, "l": [1], "s": {"t": 5}}),
    ({"$push": {"l": 2}}, {"a": 1, "l": [1, 2], "s": {"t": 1}}),
    (
        {"$push": {"l": {"$each": [7, 8], "$slice": 0}}},
        {"a": 1, "l": [1, {"$each": [7, 8], "$slice": 0}], "s": {"t": 1}},
    ),
    ({"$addToSet": {"l": 1}}, {"a": 1, "l": [1], "s": {"t": 1}}),
    ({"$pullAll": {"l": [1]}}, {"a": 1, "l": [], "s": {"t": 1}}),
    ({"$pop": {"l": 1}}, {"a": 1, "l": [], "s": {"t": 1}}),
    ({"$rename": {"a": "s.u"}}, {"l": [1], "s": {"t": 1, "u": 1}}),
    ({"$set": {"größe": {"m": 2}}}, {"a": 1, "l": [1], "s": {"t": 1}, "größe": {"m": 2}}),
]


async def test_a_patch_changes_the_payload_in_the_move(shell: Shell) -> None:
    for patch, expected in PATCHES:
        item = await _reserved(shell, {"a": 1, "l": [1], "s": {"t": 1}})
        await shell.queue().move(item, "next", patch=patch)
        assert (await shell.queue("next").pop()).payload == expected, patch


@pytest.mark.every_shell
async def test_a_patch_changes_the_payload_in_the_commit(shell: Shell) -> None:
    queue = shell.queue(history=60)
    id = await queue.push({"a": 1, "l": [1], "s": {"t": 1}})
    await queue.commit(await queue.reserve(), patch={"$set": {"s.t": {"$inc": 1}}, "$unset": {"l": 1}})
    assert (await queue.get(id)).payload == {"a": 1, "s": {"t": {"$inc": 1}}}


async def test_a_patch_that_cannot_be_committed_leaves_the_item_reserved(shell: Shell) -> None:
    queue = shell.queue(history=60)
    await queue.push({"a": "text"})
    item = await queue.reserve()
    with pytest.raises(mongoq.PatchInvalid, match="either payload= or patch="):
        await queue.commit(item, payload=1, patch={"$set": {"a": 1}})
    with pytest.raises(mongoq.PatchInvalid, match="fit"):
        await queue.commit(item, patch={"$inc": {"a": 1}})
    assert await queue.size("reserved") == 1
    await queue.commit(item)


UNSAFE: list[Any] = [
    {},
    [],
    {"$where": {"a": 1}},
    {"$pull": {"a": 1}},
    {"set": {"a": 1}},
    {"$set": {}},
    {"$set": 3},
    {"$set": {"": 1}},
    {"$set": {".q": 1}},
    {"$set": {"a..b": 1}},
    {"$set": {"a.$": 1}},
    {"$set": {"a.$[]": 1}},
    {"$set": {"$where": 1}},
    {"$set": {"a\0b": 1}},
    {"$set": {3: 1}},
    {"$rename": {"a": ".token"}},
    {"$rename": {"a": 3}},
    {"$inc": {"a": "1"}},
    {"$inc": {"a": True}},
    {"$pop": {"a": 2}},
    {"$pullAll": {"a": 3}},
]


async def test_a_patch_off_the_safe_list_is_refused(shell: Shell) -> None:
    item = await _reserved(shell, {"a": [1]})
    for patch in UNSAFE:
        with pytest.raises(mongoq.PatchInvalid, match="patch"):
            await shell.queue().move(item, "next", patch=patch)
    with pytest.raises(mongoq.PatchInvalid, match="not both"):
        await shell.queue().move(item, "next", payload=1, patch={"$set": {"a": 1}})
    await shell.queue().commit(item)


@pytest.mark.every_shell("motor")
async def test_a_patch_that_does_not_fit_leaves_the_item_reserved(shell: Shell) -> None:
    for payload in (5, [1, 2], {"a": "text"}):
        item = await _reserved(shell, payload)
        with pytest.raises(mongoq.PatchInvalid, match="does not fit the payload"):
            await shell.queue().move(item, "next", patch={"$inc": {"a": 1}})
        await shell.queue().commit(item)
    item = await _reserved(shell, {"a": {"b": 1}})
    with pytest.raises(mongoq.PatchInvalid, match="does not fit the payload"):
        await shell.queue().move(item, "next", patch={"$set": {"a": 1}, "$inc": {"a.b": 1}})
    await shell.queue().commit(item)


@pytest.mark.every_shell
async def test_a_buried_item_tells_its_origin(shell: Shell) -> None:
    queue = shell.queue()
    item = await _reserved(shell, {"n": 1}, headers={"h": 1}, priority=3)
    await queue.bury(item, reason="never departed", error=ValueError("no departure"))
    assert await queue.size() == 0
    (dead,) = await queue.dead.peek()
    assert (dead.id, dead.queue, dead.payload, dead.headers, dead.priority) == (
        item.id,
        "orders.dead",
        {"n": 1},
        {"h": 1},
        3,
    )
    assert (dead.origin.queue, dead.origin.id, dead.origin.reason) == ("orders", item.id, "never departed")
    assert (dead.origin.attempts, dead.origin.at, dead.origin.key) == (1, shell.clock.now(), None)
    assert (dead.attempts, dead.error.message) == (0, "no departure")


async def test_a_burial_without_a_reason_takes_the_errors_text(shell: Shell) -> None:
    queue = shell.queue()
    await queue.bury(await _reserved(shell, 1), error=ValueError("no departure"))
    await queue.bury(await _reserved(shell, 2))
    first, second = await queue.dead.peek(2)
    assert (first.origin.reason, second.origin.reason) == ("no departure", "buried")


@pytest.mark.parametrize("retries", [0, 1])
async def test_an_item_gets_exactly_its_retries_by_rollback(shell: Shell, retries: int) -> None:
    queue = shell.queue(max_retries=retries)
    await queue.push("poison")
    runs = 0
    while (item := await queue.reserve()) is not None:
        runs += 1
        await queue.rollback(item, error=ValueError(f"run {runs}"))
    assert runs == retries + 1
    (dead,) = await queue.dead.peek()
    reason = "retries exhausted" if retries else "failed, no retries allowed"
    assert (dead.origin.attempts, dead.origin.reason) == (retries + 1, reason)
    assert dead.error.message == f"run {retries + 1}"


@pytest.mark.every_shell
async def test_the_last_rollback_buries_at_once(shell: Shell) -> None:
    queue = shell.queue(max_retries=1)
    await queue.push("poison")
    await queue.rollback(await queue.reserve(), delay=3600)
    shell.clock.advance(3600)
    await queue.rollback(await queue.reserve(), delay=3600)
    assert await queue.size() == 0
    assert await queue.dead.size("ready") == 1


@pytest.mark.parametrize("retries", [0, 1])
async def test_an_item_gets_exactly_its_retries_by_leases_that_run_out(shell: Shell, retries: int) -> None:
    queue = shell.queue(max_retries=retries, lease=5)
    await queue.push("killer")
    runs = 0
    while await queue.reserve() is not None:
        runs += 1
        shell.clock.advance(6)
    assert runs == retries + 1
    (dead,) = await queue.dead.peek()
    assert (dead.origin.attempts, dead.attempts, dead.state) == (retries + 1, 0, "ready")


async def test_no_limit_means_no_limit(shell: Shell) -> None:
    queue = shell.queue(max_retries=None)
    await queue.push(1)
    for _ in range(30):
        await queue.rollback(await queue.reserve())
    assert (await queue.reserve()).attempts == 31


async def test_failures_in_a_dead_queue_stay_there(shell: Shell) -> None:
    queue = shell.queue()
    await queue.bury(await _reserved(shell, 1))
    for dead in (queue.dead, shell.queue("orders.dead")):
        for _ in range(15):
            await dead.rollback(await dead.reserve())
        with pytest.raises(mongoq.ArgumentInvalid, match="has no dead queue"):
            _ = dead.dead
        item = await dead.reserve()
        with pytest.raises(mongoq.ArgumentInvalid, match="has no dead queue"):
            await dead.bury(item)
        await dead.release(item)
        assert await dead.size() == 1


async def test_a_dead_item_moves_back_with_a_fresh_budget(shell: Shell) -> None:
    queue = shell.queue()
    await queue.move(await _reserved(shell, 1), "orders")
    await queue.bury(await queue.reserve(), reason="bad")
    await queue.dead.move(await queue.dead.reserve(), "orders")
    again = await queue.reserve()
    assert (again.attempts, again.origin.reason) == (1, "bad")
    assert again.hops == 1, "it is the same delivery, as after a replay"
    await queue.move(again, "orders")
    again = await queue.reserve()
    assert again.hops == 2
    await queue.bury(again)
    await queue.dead.move_many([(await queue.dead.reserve(), mongoq.Move("orders"))])
    assert (await queue.reserve()).hops == 2
