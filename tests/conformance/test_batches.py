"""Many items at once: pushed, reserved and settled in few commands, on every shell."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq
from mongoq import Move
from tests.shells import Shell

SETTLE = ["commit_many", "rollback_many", "release_many", "extend_many", "move_many"]


class Point(BaseModel):
    x: int


async def _settle(queue: Any, operation: str, items: Any) -> Any:
    if operation == "move_many":
        return await queue.move_many([(item, Move("elsewhere")) for item in items])
    return await getattr(queue, operation)(items)


async def _reserved(queue: Any, n: int) -> list[Any]:
    await queue.push_many(range(n))
    return await queue.reserve_many(n)


def _payloads(items: list[Any]) -> list[Any]:
    return [item.payload for item in items]


# --- push_many -----------------------------------------------------------------------------


@pytest.mark.every_shell
async def test_many_are_pushed_in_order(shell: Shell) -> None:
    queue = shell.queue()
    ids = await queue.push_many(({"n": n} for n in range(25)), priority=3, headers={"h": 1})
    items = await queue.reserve_many(30)
    assert [item.id for item in items] == ids == sorted(ids)
    assert _payloads(items) == [{"n": n} for n in range(25)]
    assert {(item.priority, item.headers["h"], item.due) for item in items} == {(3, 1, shell.clock.now())}


async def test_nothing_is_pushed_unless_all_can_be_stored(shell: Shell) -> None:
    queue = shell.queue()
    with pytest.raises(mongoq.PayloadInvalid, match=r"^payloads\[2\]\.a: ") as caught:
        await queue.push_many([1, 2, {"a": 2**70}])
    assert caught.value.path == "payloads[2].a"
    with pytest.raises(mongoq.PayloadInvalid, match=r"^payloads\[1\]: .*x: "):
        await shell.queue("points", model=Point).push_many([Point(x=1), {"x": "no"}])
    with pytest.raises(mongoq.PayloadTooLarge, match=r"^payloads\[0\]: "):
        await queue.push_many([b"x" * 17_000_000])
    assert shell.raw.count_documents({"q": {"$exists": True}}) == 0


async def test_nothing_at_all_may_be_pushed_and_settled(shell: Shell) -> None:
    queue = shell.queue()
    assert await queue.push_many([]) == []
    assert await queue.push_many([], ids=[]) == []
    assert await queue.extend_many([]) == []
    for operation in SETTLE:
        await _settle(queue, operation, iter([]))


@pytest.mark.every_shell
async def test_an_id_pushed_again_among_others_adds_nothing(shell: Shell) -> None:
    queue = shell.queue()
    ids = [ObjectId() for _ in range(4)]
    assert await queue.push_many(["ab", 2], ids=ids[:2]) == ids[:2]
    assert await queue.push_many(range(4), ids=iter(ids)) == ids
    assert await queue.size() == 4
    items = await queue.reserve_many(4)
    assert _payloads(items) == ["ab", 2, 2, 3]
    await queue.commit_many(items)
    await queue.push_many(range(4), ids=ids)
    assert await queue.size() == 0


async def test_payloads_are_an_iterable(shell: Shell) -> None:
    for payloads in ("text", {"a": 1}, None):
        with pytest.raises(mongoq.ArgumentInvalid, match="^payloads: a list or another iterable"):
            await shell.queue().push_many(payloads)


async def test_ids_are_as_many_and_distinct(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    for ids, problem in [
        ([id], "^ids: 1 ids for 2 payloads"),
        ([id, id], "^ids: the same id"),
        ([id, "x"], r"^ids\[1\]: "),
        ("ab", "^ids: a list"),
    ]:
        with pytest.raises(mongoq.ArgumentInvalid, match=problem):
            await queue.push_many([1, 2], ids=ids)
    for option, value in [("priority", 101), ("delay", -1), ("when", 5), ("once", 60), ("headers", 5)]:
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{option}: "):
            await queue.push_many([1], **{option: value})
    with pytest.raises(mongoq.ArgumentInvalid, match="^once: "):
        await queue.push_many([1], ids=[id], once=0)
    assert await queue.size() == 0


# --- reserve_many --------------------------------------------------------------------------


@pytest.mark.every_shell
async def test_many_are_reserved_in_the_order_of_the_queue(shell: Shell) -> None:
    queue = shell.queue(lease=30)
    for payload, priority in [("c", 5), ("a", -5), ("d", 5), ("b", 0)]:
        await queue.push(payload, priority=priority)
        shell.clock.advance(1)
    items = await queue.reserve_many(3)
    assert _payloads(items) == ["a", "b", "c"]
    assert {(item.attempts, item.state, item.lease_until) for item in items} == {
        (1, "reserved", shell.clock.now() + timedelta(seconds=30))
    }
    assert len({item.token for item in items}) == 1
    assert items[0].by.count(":") == 2
    assert _payloads(await queue.reserve_many(3)) == ["d"]
    assert await queue.reserve_many(3) == []
    await queue.rollback_many(items)  # now they are read back after the claim, in the order of their ids
    assert _payloads(await queue.reserve_many(3)) == ["a", "b", "c"]


async def test_options_of_a_batch_are_checked(shell: Shell) -> None:
    queue = shell.queue()
    for n in (0, 1.0, True, 10_001):
        with pytest.raises(mongoq.ArgumentInvalid, match="^n: "):
            await queue.reserve_many(n)
    for option, value in [("lease", -1), ("lease", 0), ("lease", "soon"), ("wait", -1), ("on_invalid", "skip")]:
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{option}: "):
            await queue.reserve_many(1, **{option: value})


async def test_what_does_not_fit_the_model_is_buried_and_the_rest_returned(shell: Shell) -> None:
    await shell.queue().push_many([{"x": 1}, {"x": "no"}, 5, {"x": 4}])
    queue = shell.queue(model=Point)
    assert _payloads(await queue.reserve_many(4)) == [Point(x=1), Point(x=4)]
    dead = await queue.dead.peek(5)
    assert _payloads(dead) == [{"x": "no"}, 5]
    assert all("payload" in item.origin.reason and item.origin.attempts == 1 for item in dead)


async def test_the_first_that_does_not_fit_may_be_raised_and_the_others_are_given_back(shell: Shell) -> None:
    await shell.queue().push_many([{"x": 1}, "bad", {"x": 3}])
    queue = shell.queue(model=Point)
    with pytest.raises(mongoq.PayloadInvalid) as caught:
        await queue.reserve_many(3, on_invalid="raise")
    item = caught.value.item
    assert (item.payload, item.state) == ("bad", "reserved")
    again = await queue.reserve_many(3, on_invalid="raise")
    assert [(claim.payload.x, claim.attempts) for claim in again] == [(1, 1), (3, 1)]
    await queue.commit(item)


async def test_a_batch_is_released_to_its_place_unused(shell: Shell) -> None:
    queue = shell.queue()
    for n in range(4):
        await queue.push(n)
        shell.clock.advance(1)
    items = await queue.reserve_many(3)
    await queue.push("late")
    await queue.release_many(items)
    again = await queue.reserve_many(5)
    assert _payloads(again) == [0, 1, 2, 3, "late"]
    assert {item.attempts for item in again} == {1}
    assert [item.due for item in again[:3]] == [item.due for item in items]


async def test_items_of_a_batch_know_each_when_they_were_due(shell: Shell) -> None:
    queue, dues = shell.queue(), {}
    for n in (3, 1, 2):
        dues[n] = shell.clock.now()
        await queue.push(n, priority=n)
        shell.clock.advance(1)
    items = await queue.reserve_many(3)
    assert [(item.payload, item.due) for item in items] == [(n, dues[n]) for n in (1, 2, 3)]
    for item in reversed(items):
        await queue.rollback(item)
        dues[item.payload] = shell.clock.now()
        shell.clock.advance(1)
    again = await queue.reserve_many(3)  # read back after the claim, in the order of their ids
    assert [(item.payload, item.due) for item in again] == [(n, dues[n]) for n in (1, 2, 3)]


# --- suspects ------------------------------------------------------------------------------


async def _expire(shell: Shell, lease: float = 30) -> None:
    shell.clock.advance(lease + 1)


async def test_an_item_that_had_all_its_runs_is_buried_by_the_next_batch(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    await queue.push("poison")
    await queue.reserve()
    await _expire(shell)
    await queue.push_many(["a", "b"])
    assert _payloads(await queue.reserve_many(5)) == ["a", "b"]
    (dead,) = await queue.dead.peek()
    assert (dead.payload, dead.origin.attempts, dead.origin.reason) == ("poison", 1, "failed, no retries allowed")


async def test_an_item_of_a_batch_that_had_all_its_runs_gets_one_more_alone(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    await queue.push_many(["a", "b"])
    await queue.reserve_many(2)
    await _expire(shell)
    for payload in ("a", "b"):
        (alone,) = await queue.reserve_many(2)
        assert (alone.payload, alone.attempts) == (payload, 2)
    assert await queue.reserve_many(2) == []
    await queue.commit(alone)
    await _expire(shell)
    assert await queue.reserve_many(2) == []
    (dead,) = await queue.dead.peek(2)
    assert (dead.payload, dead.origin.attempts) == ("a", 1)


async def test_a_suspect_goes_behind_what_is_ready(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    await queue.push_many(["a", "b"])
    await queue.reserve_many(2)
    await _expire(shell)
    await queue.push_many(["c", "d"])
    shell.clock.advance(1)
    assert _payloads(await queue.reserve_many(4)) == ["c", "d"]
    await queue.push("e", when=shell.clock.now() - timedelta(seconds=0.5))
    assert _payloads(await queue.reserve_many(1)) == ["e"]
    assert _payloads(await queue.reserve_many(1)) == ["a"]
    assert await queue.dead.size() == 0
    document = shell.raw.find_one({"payload": "b"})
    assert document["attempts"] == 1


async def test_a_single_reserve_hands_a_suspect_out_once(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    await queue.push_many(["a", "b"])
    await queue.reserve_many(2)
    await _expire(shell)
    item = await queue.reserve()
    assert (item.payload, item.attempts) == ("a", 2)
    await queue.release(item)
    item = await queue.reserve()
    assert (item.payload, item.attempts) == ("a", 2)
    await _expire(shell)
    assert (await queue.reserve()).payload == "b"
    assert await queue.reserve() is None
    (dead,) = await queue.dead.peek(2)
    assert (dead.payload, dead.origin.attempts) == ("a", 1)


async def test_a_batch_of_one_is_no_batch(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    await queue.push("poison")
    assert len(await queue.reserve_many(10)) == 1
    await _expire(shell)
    assert await queue.reserve_many(10) == []
    assert await queue.dead.size() == 1


@pytest.mark.parametrize("attempts", ["0", 2**40], ids=repr)
async def test_a_document_of_another_program_does_not_block_a_batch(shell: Shell, attempts: Any) -> None:
    queue = shell.queue()
    await queue.push_many(["a", "b"])
    document = shell.raw.find_one({"payload": "a"})
    foreign = {**document, "_id": "odd", "payload": "foreign", "attempts": attempts, "priority": -1}
    shell.raw.insert_one(foreign)
    assert _payloads(await queue.reserve_many(3)) == ["a", "b"]
    assert (await queue.dead.peek(2))[0].payload == "foreign"


# --- settling ------------------------------------------------------------------------------


@pytest.mark.every_shell
async def test_a_batch_is_committed_into_history(shell: Shell) -> None:
    queue = shell.queue(history=60)
    items = await _reserved(queue, 5)
    await queue.commit_many(items)
    processed = [item async for item in queue.history()]
    assert _payloads(processed) == [0, 1, 2, 3, 4]
    for document in shell.raw.find({"q": "orders"}):
        assert document["settled"] == items[0].token
        assert not {"token", "when"} & set(document)


async def test_items_of_several_reservations_are_kept_with_their_own_tokens(shell: Shell) -> None:
    queue = shell.queue(history=60)
    await queue.push_many(range(6))
    items = [await queue.reserve(), *await queue.reserve_many(3), await queue.reserve()]
    await queue.commit_many(items)
    tokens = {document["_id"]: document["settled"] for document in shell.raw.find({"settled": {"$exists": True}})}
    assert tokens == {item.id: item.token for item in items}


async def test_remembered_ids_leave_stubs(shell: Shell) -> None:
    queue = shell.queue()
    ids = [ObjectId(), ObjectId()]
    await queue.push_many([1, 2], ids=ids)
    await queue.push_many([3])
    await queue.commit_many(await queue.reserve_many(3))
    assert {document["_id"] for document in shell.raw.find({"q": "orders"})} == set(ids)
    assert all("payload" not in document for document in shell.raw.find({"q": "orders"}))


async def test_a_batch_is_rolled_back_with_its_error(shell: Shell) -> None:
    queue = shell.queue()
    items = await _reserved(queue, 3)
    await queue.rollback_many(items, delay=5, error=ValueError("broken"))
    assert await queue.reserve_many(3) == []
    shell.clock.advance(5)
    again = await queue.reserve_many(3)
    assert [(item.payload, item.attempts, item.error.type) for item in again] == [
        (n, 2, "ValueError") for n in range(3)
    ]


async def test_a_batch_beyond_its_retries_is_buried(shell: Shell) -> None:
    queue = shell.queue(max_retries=1)
    await queue.push("old")
    await queue.rollback(await queue.reserve())
    await queue.push("new")
    items = await queue.reserve_many(2)
    await queue.rollback_many(items, error="bad")
    (dead,) = await queue.dead.peek(2)
    assert (dead.payload, dead.origin.attempts, dead.error.message) == ("old", 2, "bad")
    assert _payloads(await queue.reserve_many(2)) == ["new"]


async def test_a_batch_is_extended(shell: Shell) -> None:
    queue = shell.queue(lease=10)
    items = await _reserved(queue, 3)
    shell.clock.advance(5)
    extended = await queue.extend_many(items, lease=60)
    assert [item.id for item in extended] == [item.id for item in items]
    assert {item.lease_until for item in extended} == {shell.clock.now() + timedelta(seconds=60)}
    shell.clock.advance(59)
    assert await queue.reserve_many(3) == []
    extended = await queue.extend_many(extended)
    assert extended[0].lease_until == shell.clock.now() + timedelta(seconds=10)
    await queue.commit_many(items)


@pytest.mark.every_shell
async def test_a_batch_is_moved_each_its_own_way(shell: Shell) -> None:
    queue = shell.queue()
    typed = shell.queue("points", model=Point)
    items = await _reserved(queue, 6)
    ways = [
        Move("next"),
        Move("next", payload={"new": 1}, priority=-5),
        Move(typed if shell.kind in ("aio", "motor") else typed._target, payload=Point(x=7)),
        Move("next", delay=10),
        Move("other", headers={"h": 1}),
        Move("next"),
    ]
    await queue.move_many(zip(items, ways, strict=True))
    assert await queue.size() == 0
    moved = await shell.queue("next").reserve_many(9)
    assert [(item.payload, item.attempts) for item in moved] == [({"new": 1}, 1), (0, 1), (5, 1)]
    assert (await typed.reserve()).payload == Point(x=7)
    assert (await shell.queue("other").reserve()).headers == {"h": 1}
    shell.clock.advance(10)
    assert _payloads(await shell.queue("next").reserve_many(9)) == [3]


@pytest.mark.every_shell("motor")
async def test_a_patch_that_does_not_fit_fails_its_item_alone(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push_many([{"n": 1}, {"n": "text"}, {"n": 3}])
    items = await queue.reserve_many(3)
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await queue.move_many([(item, Move("next", patch={"$inc": {"n": 1}})) for item in items])
    assert caught.value.done == [items[0].id, items[2].id]
    assert isinstance(caught.value.failed.pop(items[1].id), mongoq.PatchInvalid)
    assert caught.value.failed == {}
    assert _payloads(await shell.queue("next").reserve_many(3)) == [{"n": 2}, {"n": 4}]
    await queue.commit(items[1])


async def test_a_patch_without_room_fails_its_item_alone(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push_many([{"n": 1}, {"n": 2, "blob": b"x" * (16 * 1024 * 1024 - 66 * 1024)}])
    items = await queue.reserve_many(2)
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await queue.move_many([(item, Move("next", patch={"$set": {"more": b"y" * 60_000}})) for item in items])
    assert caught.value.done == [items[0].id]
    assert isinstance(caught.value.failed[items[1].id], mongoq.PayloadTooLarge)


async def test_many_small_items_with_large_headers_go_in_several_commands(shell: Shell) -> None:
    """The server takes 48 MB in one."""
    queue, number = shell.queue(), 3_500
    await queue.push_many(range(number), headers={"h": "x" * 16_000})
    assert await queue.size() == number


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize(("operation", "history"), [("commit_many", 60), *((operation, None) for operation in SETTLE)])
async def test_the_rest_is_settled_when_some_are_lost(shell: Shell, operation: str, history: float | None) -> None:
    queue = shell.queue(lease=30, history=history)
    items = await _reserved(queue, 4)
    await queue.release(items[1])
    holder = await queue.reserve()
    assert holder.id == items[1].id
    before = shell.raw.find_one({"_id": holder.id})
    with pytest.raises(mongoq.BatchIncomplete, match=f"1 of 4 items of queue 'orders' failed .{holder.id}") as caught:
        await _settle(queue, operation, items)
    assert sorted(caught.value.done) == [items[0].id, items[2].id, items[3].id]
    assert list(caught.value.failed) == [holder.id]
    lost_error = caught.value.failed[holder.id]
    assert isinstance(lost_error, mongoq.ReservationLost)
    if operation == "release_many":
        # the first of them may have been released before, and then this one is the one that was released now
        assert not lost_error.certain
    else:
        assert (lost_error.certain, lost_error.held_by, lost_error.held_until) == (True, holder.by, holder.lease_until)
    assert shell.raw.find_one({"_id": holder.id}) == before
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.done, list(again.failed)) == (str(caught.value), caught.value.done, [holder.id])


@pytest.mark.parametrize("operation", ["commit_many", "extend_many"])
async def test_leases_that_ran_out_are_settled_one_by_one(shell: Shell, operation: str) -> None:
    queue = shell.queue(lease=5)
    items = await _reserved(queue, 3)
    shell.clock.advance(6)
    holder = await queue.reserve()
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await _settle(queue, operation, items)
    assert (caught.value.done, list(caught.value.failed)) == ([items[1].id, items[2].id], [items[0].id])
    assert caught.value.failed[holder.id].held_by == holder.by


@pytest.mark.parametrize("operation", ["commit_many", "extend_many"])
async def test_a_batch_is_settled_once(shell: Shell, operation: str) -> None:
    queue = shell.queue()
    items = await _reserved(queue, 3)
    await queue.commit_many(items)
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await _settle(queue, operation, items)
    assert caught.value.done == []
    assert all(error.certain for error in caught.value.failed.values())


@pytest.mark.parametrize("operation", ["commit_many", "move_many"])
async def test_items_are_checked_before_anything_is_sent(shell: Shell, operation: str) -> None:
    queue, other_queue = shell.queue(), shell.queue("other")
    await other_queue.push("theirs")
    foreign = await other_queue.reserve()
    items = await _reserved(queue, 2)
    await queue.push("seen")
    (unreserved,) = await queue.peek()
    argument = "moves" if operation == "move_many" else "items"
    with pytest.raises(mongoq.ItemForeign):
        await _settle(queue, operation, [*items, foreign])
    with pytest.raises(mongoq.ReservationLost):
        await _settle(queue, operation, [*items, unreserved])
    with pytest.raises(mongoq.ArgumentInvalid, match=rf"^{argument}\[2\]: item {items[0].id} is given twice"):
        await _settle(queue, operation, [*items, items[0]])
    with pytest.raises(mongoq.ArgumentInvalid, match=rf"^{argument}\[2\]: "):
        await _settle(queue, operation, [*items, {"_id": 1}])
    for wrong in (items[0], None, 5, "text", {"a": 1}):
        with pytest.raises(mongoq.ArgumentInvalid, match=f"^{argument}: a list"):
            await getattr(queue, operation)(wrong)
    assert await queue.size("reserved") == 2


BAD_MOVES = [
    (Move(""), mongoq.QueueNameInvalid, "to: "),
    (Move("next", priority=500), mongoq.ArgumentInvalid, "priority: "),
    (Move("next", delay=-1), mongoq.ArgumentInvalid, "delay: "),
    (Move("next", payload={"a": 2**70}), mongoq.PayloadInvalid, "payload.a: "),
    (Move("next", payload=b"x" * 17_000_000), mongoq.PayloadTooLarge, "payload: "),
    (Move("next", patch={"$where": {"a": 1}}), mongoq.PatchInvalid, "patch: "),
    (Move("next", headers=5), mongoq.PayloadInvalid, "headers: "),
]


async def test_moves_are_checked_before_anything_is_sent(shell: Shell) -> None:
    queue = shell.queue()
    items = await _reserved(queue, 2)
    for way, error, problem in BAD_MOVES:
        with pytest.raises(error, match=rf"^moves\[1\]\.{problem}"):
            await queue.move_many([(items[0], Move("next")), (items[1], way)])
    for wrong in (items[0], (items[0],), (items[0], "next")):
        with pytest.raises(mongoq.ArgumentInvalid, match=r"^moves\[0\]: "):
            await queue.move_many([wrong])
    assert await queue.size("reserved") == 2


async def test_what_was_committed_before_is_distinguished_from_what_this_call_commits(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("remembered", id=ObjectId())
    await queue.push("plain")
    before = await queue.reserve()
    await queue.commit(before)
    shell.clock.advance(1)
    plain = await queue.reserve()
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await queue.commit_many([plain, before])
    assert list(caught.value.done) == [plain.id]
    assert caught.value.failed[before.id].certain


async def test_what_a_batch_got_alone_is_not_one_of_a_batch(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    spent = await queue.push("spent")
    await queue.reserve(lease=1)
    shell.clock.advance(2)
    await queue.push("fresh")
    assert [item.payload for item in await queue.reserve_many(5, lease=1)] == ["fresh"]
    assert (await queue.dead.get(spent)).origin.reason == "failed, no retries allowed"
    shell.clock.advance(2)
    assert await queue.reserve() is None
    assert await queue.dead.size() == 2
