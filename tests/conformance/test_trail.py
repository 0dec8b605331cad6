"""What the stages of pipelines leave on the items that they settle, on every shell."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import bson
import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq
from mongoq.model import trail as trails
from mongoq.model.encoding.codec import SIZE_LIMIT
from mongoq.model.item import delivery_hash
from mongoq.model.outcomes import Done, Failed
from mongoq.model.trail import StageMark
from tests.shells import Shell
from tests.staged import settled, staged

MIB = 1024 * 1024
HOSTILE = {"$set": {"a.b": 1}, "$each": [1], "$slice": 1, "$ref": 2, "": "$$ROOT"}


class Point(BaseModel):
    x: int
    tags: set[str] = set()


async def _claimed(queue: Any, payload: Any = 1, **options: Any) -> Any:
    await queue.push(payload, **options)
    return await queue.reserve()


def _document(shell: Shell, id: ObjectId) -> Any:
    return shell.raw.find_one({"_id": id})


async def _moved(queue: Any, item: Any, together: bool, to: str = "next", **options: Any) -> None:
    if together:
        assert await settled(queue, (item, mongoq.Move(to, **options))) == {}
    else:
        await queue.move(item, to, **options)


async def _committed(queue: Any, item: Any, together: bool) -> None:
    if together:
        assert await settled(queue, (item, Done())) == {}
    else:
        await queue.commit(item)


async def _buried(queue: Any, item: Any, together: bool) -> None:
    if together:
        assert await settled(queue, (item, mongoq.Dead("bad"))) == {}
    else:
        await queue.bury(item, reason="bad")


TOGETHER = pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
WAYS = pytest.mark.parametrize("settle", [_moved, _committed, _buried])


@TOGETHER
async def test_each_move_by_a_stage_counts_and_no_other_does(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue())
    item = await _claimed(stage)
    assert item.hops == 0
    await _moved(stage, item, together)
    item = await shell.queue("next").reserve()
    assert item.hops == 1
    await shell.queue("next").move(item, "orders")
    item = await stage.reserve()
    assert item.hops == 1
    await _moved(stage, item, together)
    assert _document(shell, item.id)["hops"] == 2


@TOGETHER
async def test_a_patch_beside_the_marks(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(), trail=True)
    item = await _claimed(stage, {"n": 1, "l": []})
    patch = {"$inc": {"n": 1}, "$push": {"l": HOSTILE}, "$set": {"trail": 1, "hops": "x"}}
    await _moved(stage, item, together, patch=patch)
    moved = await shell.queue("next").get(item.id)
    assert moved.payload == {"n": 2, "l": [HOSTILE], "trail": 1, "hops": "x"}
    assert (moved.hops, len(moved.trail)) == (1, 1)


@WAYS
@TOGETHER
async def test_a_handle_of_no_stage_leaves_nothing(shell: Shell, settle: Any, together: bool) -> None:
    queue = shell.queue(history=3600)
    item = await _claimed(queue)
    await settle(queue, item, together)
    document = _document(shell, item.id)
    assert not {"hops", "trail"} & set(document)
    assert not {"stage", "delivery"} & set(document.get("origin", {}))


@TOGETHER
async def test_a_move_leaves_an_entry(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(), "enrich", trail=True)
    item = await _claimed(stage, {"n": 1})
    start = shell.clock.now()
    shell.clock.advance(2)
    await _moved(stage, item, together, payload={"n": 2})
    (hop,) = (await shell.queue("next").get(item.id)).trail
    assert hop == mongoq.Hop(
        "orders", "enrich", item.by, start, start + timedelta(seconds=2), 1, "moved", "next", None, False, False
    )


@TOGETHER
async def test_so_do_a_commit_into_history_and_a_burial(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(history=3600, max_retries=5), "load", trail=True)
    committed = await _claimed(stage)
    await _committed(stage, committed, together)
    (hop,) = (await shell.queue().get(committed.id)).trail
    assert (hop.stage, hop.ended, hop.to, hop.settled) == ("load", "done", None, shell.clock.now())
    item = await _claimed(stage)
    await stage.rollback(item)
    item = await stage.reserve()
    await _buried(stage, item, together)
    (hop,) = (await shell.queue().dead.get(item.id)).trail
    assert (hop.queue, hop.ended, hop.to, hop.attempts) == ("orders", "dead", "orders.dead", 2)


@TOGETHER
async def test_a_rollback_and_a_release_leave_none(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(), trail=True)
    item = await _claimed(stage)
    if together:
        await settled(stage, (item, Failed("again")))
    else:
        await stage.rollback(item)
    await stage.release(await stage.reserve())
    assert not {"hops", "trail"} & set(_document(shell, item.id))


@TOGETHER
async def test_a_stub_keeps_neither(shell: Shell, together: bool) -> None:
    stage, next_stage = staged(shell.queue(), trail=True), staged(shell.queue("next"), trail=True)
    item = await _claimed(stage, id=ObjectId())
    await stage.move(item, "next")
    item = await next_stage.reserve()
    assert (item.hops, len(item.trail)) == (1, 1)
    await _committed(next_stage, item, together)
    assert not {"hops", "trail", "payload"} & set(_document(shell, item.id))


@TOGETHER
async def test_the_payload_before_is_kept_as_it_was_stored(shell: Shell, together: bool) -> None:
    typed = staged(shell.queue(model=Point), trail=True, payloads=True)
    item = await _claimed(typed, Point(x=1, tags={"a"}))
    assert item.payload == Point(x=1, tags={"a"})
    await _moved(typed, item, together, payload={"x": 2})
    (hop,) = (await shell.queue("next").get(item.id)).trail
    assert (hop.payload, hop.kept) == ({"x": 1, "tags": ["a"]}, True)


@TOGETHER
async def test_and_not_as_a_handler_has_changed_it(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(), trail=True, payloads=True)
    item = pickle.loads(pickle.dumps(await _claimed(stage, {"n": 1, "l": [1]})))
    item.payload["l"].append(2)
    await _moved(stage, item, together, payload=item.payload)
    moved = await shell.queue("next").get(item.id)
    assert (moved.payload, moved.trail[0].payload) == ({"n": 1, "l": [1, 2]}, {"n": 1, "l": [1]})


@WAYS
@TOGETHER
@pytest.mark.parametrize("payload", [HOSTILE, {"a": [HOSTILE]}, [1, {"$push": 2}], None, "", 5, b"x"])
async def test_what_is_kept_is_taken_literally(shell: Shell, settle: Any, together: bool, payload: Any) -> None:
    stage = staged(shell.queue(history=3600), "$stage", trail=True, payloads=True)
    item = await _claimed(stage, payload)
    await settle(stage, item, together)
    (entry,) = _document(shell, item.id)["trail"]
    assert (entry["payload"], entry["stage"]) == (payload, "$stage")


@TOGETHER
async def test_a_trail_has_fifty_entries_at_most(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(), trail=True)
    item = await _claimed(stage, 0)
    for n in range(1, 53):
        await _moved(stage, item, together, to="orders", payload=n)
        item = await stage.reserve()
    assert (len(item.trail), item.hops) == (50, 52)
    settlements = [hop.settled for hop in item.trail]
    assert settlements == sorted(settlements)


async def test_a_trail_of_long_names_is_shorter(shell: Shell) -> None:
    """So that it fits beside the largest payload."""
    name = "q" * 120
    stage = staged(shell.queue(name), "s" * 120, trail=True)
    item = await _claimed(stage)
    for _ in range(25):
        await stage.move(item, name)
        item = await stage.reserve()
    assert len(item.trail) == 20
    assert len(bson.encode({"trail": _document(shell, item.id)["trail"]})) < 16 * 1024


@TOGETHER
async def test_a_payload_beyond_64_kib_is_not_kept(shell: Shell, together: bool) -> None:
    stage = staged(shell.queue(), trail=True, payloads=True)
    room = trails.MAX_KEPT_PAYLOAD_BYTES - len(bson.encode({"payload": b""}))
    small, large = await _claimed(stage, b"x" * room), await _claimed(stage, b"x" * (room + 1))
    await _moved(stage, small, together)
    await _moved(stage, large, together)
    hops = [(await shell.broker.trail(item.id))[0] for item in (small, large)]
    assert [(hop.kept, hop.large) for hop in hops] == [(True, False), (False, True)]


@TOGETHER
@pytest.mark.parametrize("payloads", [False, True])
async def test_an_item_at_the_limit_goes_on_with_a_full_trail(shell: Shell, together: bool, payloads: bool) -> None:
    stage = staged(shell.queue(), trail=True, payloads=True)
    item = await _claimed(stage, b"x" * (trails.MAX_KEPT_PAYLOAD_BYTES - 100), headers={"h": "x" * 16_000})
    entry = {**_entry(shell), "payload": b"x" * (trails.MAX_KEPT_PAYLOAD_BYTES - 100)}
    await stage.release(item)
    shell.raw.update_one({"_id": item.id}, {"$set": {"trail": [entry] * 50}})
    next_stage = staged(shell.queue(), "last", trail=True, payloads=True) if payloads else shell.queue()
    room = SIZE_LIMIT - len(bson.encode({"payload": b""}))
    await _moved(next_stage, await next_stage.reserve(), together, payload=b"x" * room)
    moved = await shell.queue("next").reserve()
    assert len(moved.payload) == room
    assert [(hop.kept, hop.large) for hop in moved.trail] == [(False, True)] * 50
    await shell.queue("next").bury(moved, error=ValueError("x" * 5_000))


@pytest.mark.parametrize("marked", [False, True])
@TOGETHER
async def test_a_patch_has_the_room_that_a_trail_takes(shell: Shell, together: bool, marked: bool) -> None:
    queue = shell.queue()
    item = await _claimed(queue, {"b": b"x" * 12 * MIB})
    await queue.release(item)
    entry = {**_entry(shell), "payload": b"x" * (trails.MAX_KEPT_PAYLOAD_BYTES - 100)}
    shell.raw.update_one({"_id": item.id}, {"$set": {"trail": [entry] * 50}})
    handle = staged(queue, trail=True, payloads=True) if marked else queue
    await _moved(handle, await handle.reserve(), together, patch={"$set": {"c": b"x" * 2 * MIB}})
    moved = await shell.queue("next").get(item.id)
    assert len(moved.payload["c"]) == 2 * MIB
    assert not any(hop.kept for hop in moved.trail)


def _entry(shell: Shell) -> dict[str, Any]:
    now = shell.clock.now()
    names = {"queue": "orders", "stage": "enrich", "by": "h:1:a", "ended": "moved", "to": "orders"}
    return {**names, "taken": now, "settled": now, "attempts": 1}


BAD = [
    "text",
    None,
    -7,
    {"queue": "orders"},
    [1, None, "x", {"queue": 1}, {"queue": "orders", "stage": "a"}],
]


@WAYS
@TOGETHER
@pytest.mark.parametrize("trail", BAD)
async def test_a_trail_of_another_program_does_not_stop_an_item(
    shell: Shell, settle: Any, together: bool, trail: Any
) -> None:
    stage = staged(shell.queue(history=3600), trail=True)
    id = await stage.push(1)
    shell.raw.update_one({"_id": id}, {"$set": {"trail": trail, "hops": trail}})
    item = await stage.reserve()
    assert (item.trail, item.hops) == ((), 0)
    await settle(stage, item, together)
    document = _document(shell, id)
    assert document["trail"][-1]["queue"] == "orders"
    assert document["hops"] == (1 if settle is _moved else trail)
    assert len(await shell.broker.trail(id)) == 1


@pytest.mark.parametrize(("payloads", "statements"), [(False, 1), (True, 3)])
@pytest.mark.parametrize("outcome", [mongoq.Move("next"), Done()])
async def test_items_that_end_alike_share_a_statement_unless_each_keeps_its_payload(
    broker: mongoq.Broker, payloads: bool, statements: int, outcome: Any
) -> None:
    stage = staged(broker.queue("orders", history=3600), trail=True, payloads=payloads)
    stage.push_many(range(3))
    items, sender, commands = stage.reserve_many(3), stage._driver._sender, []
    send = sender.send
    sender.send = lambda command: commands.append(command) or send(command)
    await settled(stage, *((item, outcome) for item in items))
    (bulk,) = [command for command in commands if command.method == "bulk_write"]
    assert len(bulk.arguments["requests"]) == statements
    assert all(len(broker.trail(item.id) or ()) == 1 for item in items)


@WAYS
async def test_batches_and_single_commands_leave_the_same(shell: Shell, settle: Any) -> None:
    stage = staged(shell.queue(history=3600), trail=True, payloads=True)
    documents = []
    for together in (False, True):
        item = await _claimed(stage, {"n": 1}, id=ObjectId())
        await settle(stage, item, together)
        document = _document(shell, item.id)
        for own in ("_id", "settled", "once", "expires"):
            document.pop(own, None)
        if "origin" in document:
            assert document["origin"].pop("id") == item.id
            assert document["origin"].pop("delivery") == delivery_hash("enrich", [item])
        documents.append(document)
    assert documents[0] == documents[1]


async def test_move_many_commit_many_and_blocks_leave_entries(shell: Shell) -> None:
    stage = staged(shell.queue(history=3600), trail=True)
    await stage.push_many(range(3))
    moved, committed = await stage.reserve_many(2)
    await stage.move_many([(moved, mongoq.Move("next"))])
    await stage.commit_many([committed])
    async with stage.reserved() as three:
        pass
    ended = [(await shell.broker.trail(item.id))[0].ended for item in (moved, committed, three)]
    assert ended == ["moved", "done", "done"]


def test_the_hash_of_a_delivery_is_the_same_for_each_attempt_and_another_after_a_hop() -> None:
    def item(id: ObjectId, hops: int, attempts: int) -> mongoq.Item[Any]:
        document = {"_id": id, "q": "orders", "hops": hops, "attempts": attempts}
        return mongoq.Item(document, None, datetime.now().astimezone(), "app.mongoq")

    a, b = ObjectId(), ObjectId()
    expected = delivery_hash("orders", [item(a, 0, 1), item(b, 0, 1)])
    assert expected == sha256("\0".join(["orders", *sorted([str(a), str(b)])]).encode()).hexdigest()
    assert expected == delivery_hash("orders", [item(b, 0, 3), item(a, 0, 2)])
    hashes = {
        delivery_hash("orders", [item(a, 1, 1), item(b, 0, 1)]),
        delivery_hash("orders", [item(a, 0, 1), item(b, 1, 1)]),
        delivery_hash("orders", [item(a, 0, 1)]),
        delivery_hash("other", [item(a, 0, 1), item(b, 0, 1)]),
    }
    assert len(hashes | {expected}) == 5


async def _beyond_retries(queue: Any, item: Any, together: bool) -> None:
    if together:
        await settled(queue, (item, Failed("bad")))
    else:
        await queue.rollback(item, error="bad")


@TOGETHER
@pytest.mark.parametrize("settle", [_buried, _beyond_retries])
async def test_the_origin_of_what_a_stage_buries_names_it(shell: Shell, settle: Any, together: bool) -> None:
    stage = staged(shell.queue(max_retries=0), "load")
    item = await _claimed(stage)
    await settle(stage, item, together)
    origin = (await stage.dead.get(item.id)).origin
    assert (origin.stage, origin.delivery) == ("load", delivery_hash("load", [item]))


@pytest.mark.parametrize("claim", ["reserve", "pop", "reserve_many"])
@pytest.mark.parametrize("exhausted", [False, True])
async def test_so_does_that_of_what_a_claim_buries(shell: Shell, claim: str, exhausted: bool) -> None:
    queue = shell.queue(max_retries=1, model=Point, lease=10)
    ids = [await shell.queue().push({"x": 1} if exhausted else "no point") for _ in range(2)]
    if exhausted:
        for _ in range(2):
            for _ in ids:
                await queue.reserve()
            shell.clock.advance(11)
    stage = staged(queue, "load", trail=True, payloads=True)
    await getattr(stage, claim)(*([9] if claim == "reserve_many" else []))
    assert await queue.dead.size() == 2
    for id in ids:
        dead = await queue.dead.get(id)
        assert (dead.origin.stage, dead.origin.delivery) == ("load", delivery_hash("load", [dead]))
        assert dead.origin.attempts == (2 if exhausted else 1)
        (hop,) = dead.trail
        assert (hop.ended, hop.to, hop.attempts) == ("dead", "orders.dead", dead.origin.attempts)
        assert hop.payload == ({"x": 1} if exhausted else "no point")


async def test_what_goes_back_keeps_its_trail_and_a_copy_has_none(shell: Shell) -> None:
    stage = staged(shell.queue(history=3600), trail=True)
    item = await _claimed(stage)
    await stage.bury(item)
    await shell.queue().dead.replay()
    item = await stage.reserve()
    assert [hop.ended for hop in item.trail] == ["dead"]
    await stage.commit(item)
    await shell.queue().replay(to="copies")
    (copy,) = await shell.queue("copies").peek()
    assert (copy.trail, copy.hops, copy.origin.id) == ((), 0, item.id)


async def test_a_replaced_item_starts_without_a_trail(shell: Shell) -> None:
    stage = staged(shell.queue(), trail=True)
    item = await _claimed(stage)
    await stage.move(item, "orders", key="k")
    await stage.push(2, key="k", on_duplicate="replace")
    again = await stage.get(item.id)
    assert (again.payload, again.trail, again.hops) == (2, (), 1)


async def test_the_trail_of_an_item_wherever_it_is(shell: Shell) -> None:
    stage, next_stage = (
        staged(shell.queue(), "first", trail=True),
        staged(shell.queue("next", history=60), "last", trail=True),
    )
    item = await _claimed(stage)
    assert await shell.broker.trail(item.id) == ()
    await stage.move(item, "next")
    await next_stage.commit(await next_stage.reserve())
    hops = await shell.broker.trail(item.id)
    assert [(hop.queue, hop.stage, hop.ended) for hop in hops] == [
        ("orders", "first", "moved"),
        ("next", "last", "done"),
    ]
    assert hops == (await shell.queue("next").get(item.id)).trail
    assert await shell.broker.trail(ObjectId()) is None
    with pytest.raises(mongoq.ArgumentInvalid, match="id: a bson.ObjectId"):
        await shell.broker.trail("x")


async def test_a_stub_is_no_item(shell: Shell) -> None:
    item = await _claimed(shell.queue(), id=ObjectId())
    await shell.queue().commit(item)
    assert await shell.broker.trail(item.id) is None


@pytest.mark.parametrize("name", [5, "x" * 121])
def test_a_stage_has_a_short_name(name: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="name: "):
        StageMark(name)
