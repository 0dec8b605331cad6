"""What the stages of pipelines leave on the items that they settle, on every shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq
from tests.conformance.draining import drain
from tests.shells import Shell

KIB = 1024
MIB = 1024 * 1024
SIZE_LIMIT = 16 * MIB - 64 * KIB
"""Bytes that a payload may take."""
HOSTILE = {"$set": {"a.b": 1}, "$each": [1], "$slice": 1, "$ref": 2, "": "$$ROOT"}


class Point(BaseModel):
    x: int
    tags: set[str] = set()


def stage(
    work: Callable[..., Any], *, name: str = "enrich", queue: str = "orders", trail: Any = True, **options: Any
) -> mongoq.Pipeline:
    """A pipeline of one stage, between ``orders`` and ``next``."""
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="next", trail=trail)
    pipeline.stage(queue, to="next", name=name, **{"max_retries": 0, **options})(work)
    return pipeline


def entry(shell: Shell, **fields: Any) -> dict[str, Any]:
    """An entry of a trail, as it is stored."""
    now = shell.clock.now()
    names = {"queue": "orders", "stage": "enrich", "by": "h:1:a", "ended": "moved", "to": "orders"}
    return {**names, "taken": now, "settled": now, "attempts": 1, **fields}


def as_it_is(payload: Any) -> Any:
    return payload


async def test_each_settlement_by_a_stage_counts_and_leaves_an_entry(shell: Shell) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", trail=True)
    runs: list[tuple[int, str]] = []

    @pipeline.stage("orders", to="rich")
    def enrich(payload: dict[str, int]) -> dict[str, int]:
        return {"n": payload["n"] + 1}

    @pipeline.sink("rich", max_retries=1, retry=mongoq.Fixed(0))
    def load(payload: dict[str, int], job: mongoq.Job) -> None:
        if payload["n"] == 3:
            runs.append((job.item.attempts, job.delivery_hash))
            raise ValueError("bad")

    await shell.queue("rich").configure(history=3600)
    fine, bad = await shell.queue().push_many([{"n": 1}, {"n": 2}])
    now = shell.clock.now()
    assert await shell.broker.trail(fine) == ()
    await drain(shell, pipeline)
    item, letter = await shell.queue("rich").get(fine), await shell.broker.dead_queue("line.errors").get(bad)
    assert item.trail == await shell.broker.trail(fine)
    by = item.trail[0].by
    assert item.trail[0] == mongoq.Hop(
        "orders", "enrich", by, now, item.trail[0].settled, 1, "moved", "rich", None, False, False
    )
    assert [(hop.queue, hop.stage, hop.ended, hop.to, hop.attempts) for hop in (item.trail[1], *letter.trail)] == [
        ("rich", "load", "done", None, 1),
        ("orders", "enrich", "moved", "rich", 1),
        ("rich", "load", "dead", "line.errors", 2),
    ]
    assert item.hops == letter.hops == 1
    assert runs == [(1, letter.origin.delivery), (2, letter.origin.delivery)]
    assert letter.origin.stage == "load"
    assert await shell.broker.trail(ObjectId()) is None
    with pytest.raises(mongoq.ArgumentInvalid, match="id: a bson.ObjectId"):
        await shell.broker.trail("x")


async def test_a_move_by_hand_leaves_no_entry_and_a_round_is_another_delivery(shell: Shell) -> None:
    hashes: list[str] = []

    def work(payload: int, job: mongoq.Job) -> int:
        hashes.append(job.delivery_hash)
        return payload

    id = await shell.queue().push(1)
    for visit in (1, 2):
        await drain(shell, stage(work))
        item = await shell.queue("next").reserve()
        assert (item.hops, len(item.trail)) == (2 * visit - 1, visit)
        await shell.queue("next").move(item, "orders")
    assert (await shell.queue().get(id)).hops == 4
    assert len(set(hashes)) == 2


async def test_a_patch_beside_the_marks(shell: Shell) -> None:
    patch = {"$inc": {"n": 1}, "$push": {"l": HOSTILE}, "$set": {"trail": 1, "hops": "x"}}
    id = await shell.queue().push({"n": 1, "l": []})
    await drain(shell, stage(lambda payload: mongoq.Move("next", patch=patch)))
    moved = await shell.queue("next").get(id)
    assert moved.payload == {"n": 2, "l": [HOSTILE], "trail": 1, "hops": "x"}
    assert (moved.hops, len(moved.trail)) == (1, 1)


async def test_a_stub_keeps_neither(shell: Shell) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", trail=True)
    pipeline.stage("orders", to="next", name="first")(as_it_is)
    pipeline.sink("next", name="last")(as_it_is)
    id = await shell.queue().push(1, id=ObjectId())
    await drain(shell, pipeline)
    assert not {"hops", "trail", "payload"} & set(shell.raw.find_one({"_id": id}))
    assert await shell.broker.trail(id) is None


async def test_the_payload_before_is_kept_as_it_was_stored_and_not_as_a_handler_has_changed_it(shell: Shell) -> None:
    def grow(payload: Point) -> dict[str, Any]:
        payload.tags.add("b")
        return {"x": 2, "tags": sorted(payload.tags)}

    id = await shell.queue(model=Point).push(Point(x=1, tags={"a"}))
    await drain(shell, stage(grow, trail="payloads", model=Point))
    moved = await shell.queue("next").get(id)
    assert (moved.payload, moved.trail[0].payload) == ({"x": 2, "tags": ["a", "b"]}, {"x": 1, "tags": ["a"]})


async def test_what_is_kept_is_taken_literally(shell: Shell) -> None:
    payloads: list[Any] = [HOSTILE, [1, {"$push": 2}], None, "", b"x", "dead"]
    pipeline = mongoq.Pipeline("line", errors="line.errors", trail="payloads")
    pipeline.stage("orders", to="next", name="$stage")(lambda payload: mongoq.Move("next", payload=payload))
    pipeline.sink("next", name="$end")(lambda payload: mongoq.Dead("bad") if payload == "dead" else None)
    await shell.queue("next").configure(history=3600)
    ids = await shell.queue().push_many(payloads)
    await drain(shell, pipeline)
    for id, payload in zip(ids, payloads, strict=True):
        hops = await shell.broker.trail(id)
        assert [(hop.payload, hop.kept, hop.stage) for hop in hops] == [
            (payload, True, "$stage"),
            (payload, True, "$end"),
        ]


async def test_a_trail_has_fifty_entries_at_most(shell: Shell) -> None:
    id = await shell.queue().push(1)
    shell.raw.update_one({"_id": id}, {"$set": {"trail": [entry(shell)] * 50, "hops": 50}})
    await drain(shell, stage(as_it_is))
    item = await shell.queue("next").get(id)
    assert (len(item.trail), item.hops, item.trail[-1].to) == (50, 51, "next")


async def test_a_trail_of_long_names_is_shorter(shell: Shell) -> None:
    """So that it fits beside the largest payload."""
    queue, name = "q" * 120, "s" * 120
    id = await shell.queue(queue).push(1)
    shell.raw.update_one({"_id": id}, {"$set": {"trail": [entry(shell, queue=queue, stage=name, to=queue)] * 25}})
    await drain(shell, stage(as_it_is, name=name, queue=queue))
    trail = shell.raw.find_one({"_id": id})["trail"]
    assert (len(trail), trail[-1]["to"]) == (20, "next")
    assert len(bson.encode({"trail": trail})) < 16 * KIB


async def test_a_payload_beyond_64_kib_is_not_kept(shell: Shell) -> None:
    room = 64 * KIB - len(bson.encode({"payload": b""}))
    ids = await shell.queue().push_many([b"x" * room, b"x" * (room + 1)])
    await drain(shell, stage(as_it_is, trail="payloads"))
    hops = [(await shell.broker.trail(id))[0] for id in ids]
    assert [(hop.kept, hop.large) for hop in hops] == [(True, False), (False, True)]


@pytest.mark.parametrize("trail", [False, "payloads"])
async def test_an_item_at_the_limit_goes_on_with_a_full_trail(shell: Shell, trail: Any) -> None:
    kept = b"x" * (64 * KIB - 100)
    id = await shell.queue().push(kept, headers={"h": "x" * 16_000})
    shell.raw.update_one({"_id": id}, {"$set": {"trail": [entry(shell, payload=kept)] * 50}})
    room = SIZE_LIMIT - len(bson.encode({"payload": b""}))
    await drain(shell, stage(lambda payload: b"x" * room, trail=trail))
    moved = await shell.queue("next").reserve()
    assert len(moved.payload) == room
    assert [(hop.kept, hop.large) for hop in moved.trail] == [(False, True)] * 50
    await shell.queue("next").bury(moved, error=ValueError("x" * 5_000))


@pytest.mark.parametrize("trail", [False, "payloads"])
async def test_a_patch_has_the_room_that_a_trail_takes(shell: Shell, trail: Any) -> None:
    id = await shell.queue().push({"b": b"x" * 12 * MIB})
    shell.raw.update_one({"_id": id}, {"$set": {"trail": [entry(shell, payload=b"x" * (64 * KIB - 100))] * 50}})
    patch = {"$set": {"c": b"x" * 2 * MIB}}
    await drain(shell, stage(lambda payload: mongoq.Move("next", patch=patch), trail=trail))
    moved = await shell.queue("next").get(id)
    assert len(moved.payload["c"]) == 2 * MIB
    assert not any(hop.kept for hop in moved.trail)


async def test_a_trail_of_another_program_does_not_stop_an_item(shell: Shell) -> None:
    ids = await shell.queue().push_many(range(4))
    odd = ["text", None, {"queue": "orders"}, [1, None, "x", {"queue": 1}, {"queue": "orders", "stage": "a"}]]
    for id, value in zip(ids, odd, strict=True):
        shell.raw.update_one({"_id": id}, {"$set": {"trail": value, "hops": value}})
        item = await shell.queue().get(id)
        assert (item.trail, item.hops) == ((), 0)
    await drain(shell, stage(as_it_is))
    for id in ids:
        document = shell.raw.find_one({"_id": id})
        assert (document["q"], document["trail"][-1]["queue"], document["hops"]) == ("next", "orders", 1)
        assert len(await shell.broker.trail(id)) == 1


@pytest.mark.parametrize("exhausted", [False, True])
async def test_what_a_claim_of_a_stage_buries_names_the_stage(shell: Shell, exhausted: bool) -> None:
    queue = shell.queue(max_retries=1, lease=10)
    payload = {"x": 1} if exhausted else "no point"
    id = await queue.push(payload)
    if exhausted:
        for _ in range(2):
            await queue.reserve()
            shell.clock.advance(11)

    def load(point: Point) -> Point:
        raise AssertionError("not to be called")

    await drain(shell, stage(load, name="load", trail="payloads", model=Point, max_retries=1))
    letter = await shell.broker.dead_queue("line.errors").get(id)
    assert (letter.origin.stage, letter.origin.attempts) == ("load", 2 if exhausted else 1)
    assert letter.origin.delivery
    (hop,) = letter.trail
    assert (hop.ended, hop.to, hop.payload, hop.attempts) == ("dead", "line.errors", payload, letter.origin.attempts)


async def test_what_goes_back_keeps_its_trail_and_a_copy_has_none(shell: Shell) -> None:
    errors = shell.broker.dead_queue("line.errors")
    id = await shell.queue(history=3600).push(1)
    await drain(shell, stage(lambda payload: mongoq.Dead("bad")))
    await errors.replay()
    item = await shell.queue().reserve()
    assert [hop.ended for hop in item.trail] == ["dead"]
    await shell.queue().commit(item)
    await shell.queue().replay(to="copies")
    (copy,) = await shell.queue("copies").peek()
    assert (copy.trail, copy.hops, copy.origin.id) == ((), 0, id)


async def test_a_replaced_item_starts_without_a_trail(shell: Shell) -> None:
    id = await shell.queue().push(1)
    await drain(shell, stage(as_it_is))
    item = await shell.queue("next").reserve()
    assert len(item.trail) == 1
    await shell.queue("next").move(item, "orders", key="k")
    await shell.queue().push(2, key="k", on_duplicate="replace")
    again = await shell.queue().get(id)
    assert (again.payload, again.trail) == (2, ())
