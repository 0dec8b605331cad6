"""Documents that another program wrote and that cannot be decoded: they hold up no others, and can be removed."""

from __future__ import annotations

import logging
import pickle
from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import Binary, ObjectId
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel

import mongoq
from tests.shells import Shell

PAYLOADS: dict[str, tuple[Any, bytes, bytes]] = {
    "text": ("ABC", b"ABC", b"\xff\xfe\xfd"),
    "within": ({"a": [{"n": 1, "b": "ABC"}]}, b"ABC", b"\xff\xfe\xfd"),
    "a uuid": ({"n": 2, "u": Binary(b"short", 4)}, b"", b""),
}


def payload_of(raw: bytes) -> bytes:
    """Return the bytes of the payload, up to the field behind it."""
    return raw[raw.index(b"payload") : raw.index(b"priority")]


class Payload(BaseModel):
    n: int


def put(shell: Shell, name: str, queue: str, **fields: Any) -> tuple[ObjectId, bytes]:
    """Write such a document as another program does, and return its id and its bytes."""
    payload, old, new = PAYLOADS[name]
    envelope = {"_id": ObjectId(), "q": queue, "payload": payload, "priority": -1, "attempts": 0, "reserved": False}
    if "processed" not in fields:
        fields.setdefault("when", shell.clock.now() - timedelta(seconds=9))
    raw = bson.encode({**envelope, **fields})
    raw = raw.replace(old, new) if old else raw
    shell.raw.insert_one(RawBSONDocument(raw))
    return envelope["_id"], raw


@pytest.mark.every_shell("motor")
@pytest.mark.parametrize("name", PAYLOADS)
async def test_unreadable_letters_leave_the_others_to_be_looked_at(
    shell: Shell, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dead = shell.queue().dead
    bad, _ = put(shell, name, "orders.dead")
    good = [await dead.push({"n": n}) for n in range(3)]
    worse, _ = put(shell, name, "orders.dead", priority=1)
    with caplog.at_level(logging.WARNING, "mongoq.foreign"):
        assert [item.id for item in await dead.peek(2)] == good[:2]
        assert [item.id for item in await dead.peek(10)] == good
        assert [item.id async for item in dead.history(state="ready", page=2)] == good
        assert [item.id async for item in shell.queue("orders.dead", model=Payload).history(state=None)] == good
    assert str(bad) in caplog.text
    assert str(worse) in caplog.text
    assert await dead.size() == 5


@pytest.mark.parametrize("name", ["text"])
async def test_unreadable_letters_are_named_by_a_replay_that_sends_back_the_others(shell: Shell, name: str) -> None:
    queue = shell.queue()
    ids = await queue.push_many([{"n": n} for n in range(3)])
    for item in await queue.reserve_many(3):
        await queue.bury(item, reason="wrong")
    origin = {"queue": "orders", "reason": "theirs", "attempts": 1, "key": None, "at": shell.clock.now()}
    bad, _ = put(shell, name, "orders.dead", origin=origin)
    result = await queue.dead.replay(ids=[bad, ids[0]])
    assert (result.pushed, result.refused, [id for id, _ in result.refusals]) == (1, 1, [bad])
    assert "cannot be read" in result.refusals[0][1]
    rest = await queue.dead.replay()
    assert (rest.found, rest.pushed, [id for id, _ in rest.refusals]) == (3, 2, [bad])
    assert {item.id for item in await queue.reserve_many(9)} == set(ids)
    assert await queue.dead.size() == 1


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", ["text"])
async def test_unreadable_letters_are_put_off_by_claims_that_take_the_others(
    shell: Shell, name: str, batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dead = shell.queue().dead
    bad = [put(shell, name, "orders.dead")[0] for _ in range(3)]
    good = [await dead.push({"n": n}) for n in range(2)]
    with caplog.at_level(logging.WARNING, "mongoq.foreign"):
        items = await dead.reserve_many(10) if batch else [await dead.reserve(), await dead.reserve()]
        assert await dead.reserve() is None
    assert [item.id for item in items] == good
    assert all(str(id) in caplog.text for id in bad)
    assert [document["reserved"] for document in shell.raw.find({"_id": {"$in": bad}}, {"reserved": 1})] == [False] * 3
    counts = await dead.counts()
    assert (counts.scheduled, counts.reserved) == (3, 2)
    shell.clock.advance(3_601)
    assert (await dead.counts()).ready == 3
    assert await dead.remove(bad[0])


async def test_unreadable_letters_are_passed_by_however_many_there_are(shell: Shell) -> None:
    dead = shell.queue().dead
    for _ in range(30):
        put(shell, "text", "orders.dead")
    good = await dead.push("good")
    assert (await dead.reserve()).id == good
    assert [item.id for item in await dead.peek(3, state=None)] == [good]


@pytest.mark.parametrize(("state", "name"), [("ready", "text"), ("processed", "a uuid")])
async def test_unreadable_items_are_had_as_their_bytes_and_removed(shell: Shell, state: str, name: str) -> None:
    queue = shell.queue(history=60)
    fields = {"processed": shell.clock.now()} if state == "processed" else {}
    id, raw = put(shell, name, "orders", headers={"h": 1}, **fields)
    for handle in (queue, shell.queue(model=Payload)):
        with pytest.raises(mongoq.PayloadInvalid, match=f"cannot be read.*{id}.*remove") as caught:
            await handle.get(id)
        assert caught.value.raw == raw
        assert (caught.value.item.id, caught.value.item.headers) == (id, {"h": 1})
        assert pickle.loads(pickle.dumps(caught.value)).raw == raw
    assert await queue.remove(id)
    assert await queue.get(id) is None


@pytest.mark.parametrize("transform", [None, lambda payload, item: payload])
@pytest.mark.parametrize("name", ["text"])
async def test_unreadable_history_leaves_the_others_to_be_read_and_replayed(
    shell: Shell, name: str, transform: Any
) -> None:
    queue = shell.queue(history=60)
    await queue.push_many([{"n": n} for n in range(4)])
    await queue.commit_many(await queue.reserve_many(2))
    bad, _ = put(shell, name, "orders", processed=shell.clock.now())
    shell.clock.advance(1)
    await queue.commit_many(await queue.reserve_many(2))
    shell.clock.advance(1)
    assert [item.payload["n"] async for item in queue.history(page=1)] == [0, 1, 2, 3]
    assert [item.payload["n"] for item in await queue.peek(9, state="processed")] == [0, 1, 2, 3]
    result = await queue.replay(to="again", transform=transform, page=2)
    assert result.found == 5
    shell.clock.advance(1)  # copies whose ids do not ascend are due a millisecond later
    again = [item.payload["n"] for item in await shell.queue("again").reserve_many(9)]
    assert sorted(again) == [0, 1, 2, 3]
    if transform is not None:
        assert [id for id, _ in result.refusals] == [bad]
    result = await queue.replay(to="chosen", ids=[bad], transform=lambda payload, item: payload)
    assert [id for id, _ in result.refusals] == [bad]


@pytest.mark.parametrize(
    ("name", "history", "remembers"), [("text", None, False), ("a uuid", None, True), ("within", 60, False)]
)
async def test_unreadable_items_that_a_pop_meets_are_buried_as_they_are(
    shell: Shell, name: str, history: Any, remembers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = shell.queue(history=history)
    if remembers:  # then pops leave stubs
        await queue.push("remembered", id=ObjectId(), priority=-2)
        assert (await queue.pop()).payload == "remembered"
    once = {"once": shell.clock.now() + timedelta(hours=1)} if remembers else {}
    bad, raw = put(shell, name, "orders", key="k", **once)
    good = await queue.push("good")
    with caplog.at_level(logging.WARNING, "mongoq.foreign"):
        assert (await queue.pop()).id == good
        assert await queue.pop() is None
    assert f"buried document {bad}" in caplog.text
    with pytest.raises(mongoq.PayloadInvalid, match="cannot be read") as caught:
        await queue.dead.get(bad)
    assert payload_of(caught.value.raw) == payload_of(raw)
    assert caught.value.item.origin.queue == "orders"
    assert await queue.dead.size("ready") == 1
    assert shell.raw.count_documents({"_id": bad, "settled": {"$exists": True}}, limit=1) == 0


@pytest.mark.parametrize("history", [None, 60])
async def test_unreadable_letters_that_a_pop_meets_are_put_off(shell: Shell, history: Any) -> None:
    dead = shell.queue("orders.dead", history=history)
    bad, raw = put(shell, "text", "orders.dead")
    good = await dead.push("good")
    assert (await dead.pop()).id == good
    assert (await dead.counts()).scheduled == 1
    with pytest.raises(mongoq.PayloadInvalid, match="cannot be read") as caught:
        await dead.get(bad)
    assert payload_of(caught.value.raw) == payload_of(raw)
    shell.clock.advance(3_601)
    assert await dead.size("ready") == 1
    assert await dead.remove(bad)


async def test_pops_pass_by_however_many_unreadable_items_there_are(shell: Shell) -> None:
    queue = shell.queue(history=60)
    for _ in range(30):
        put(shell, "text", "orders")
    good = await queue.push("good")
    assert (await queue.pop()).id == good
    assert await queue.dead.size() == 30
