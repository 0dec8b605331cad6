"""Push and pop, on every shell."""

from __future__ import annotations

from datetime import timedelta

import pytest
from bson import ObjectId

from tests.shells import Shell


@pytest.mark.every_shell
async def test_what_is_pushed_is_popped_once(shell: Shell) -> None:
    queue = shell.queue()
    id = await queue.push({"n": 1}, headers={"source": "test"})
    item = await queue.pop()
    assert (item.id, item.payload, item.headers) == (id, {"n": 1}, {"source": "test"})
    assert (item.queue, item.state, item.attempts, item.token) == ("orders", "processed", 1, None)
    assert await queue.pop() is None
    assert await queue.size() == 0


@pytest.mark.every_shell
async def test_priority_goes_before_age_and_age_before_nothing(shell: Shell) -> None:
    queue = shell.queue()
    for name, priority in [("late", 100), ("normal", 0), ("normal too", 0), ("first", -100)]:
        await queue.push(name, priority=priority)
        shell.clock.advance(1)
    got = [(await queue.pop()).payload for _ in range(4)]
    assert got == ["first", "normal", "normal too", "late"]


@pytest.mark.every_shell
async def test_a_delayed_item_waits_and_blocks_nobody(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("later", delay=timedelta(seconds=10), priority=-50)
    await queue.push("at a time", when=shell.clock.now() + timedelta(seconds=20))
    await queue.push("now")
    assert (await queue.pop()).payload == "now"
    assert await queue.pop() is None
    shell.clock.advance(10)
    assert (await queue.pop()).payload == "later"
    assert await queue.pop() is None
    shell.clock.advance(10)
    assert (await queue.pop()).payload == "at a time"


async def test_queues_in_one_collection_do_not_meet(shell: Shell) -> None:
    one, other = shell.queue("one"), shell.queue("other")
    await one.push(1)
    await other.push(2)
    assert (await other.pop()).payload == 2
    assert await other.pop() is None
    assert await one.size() == 1
    assert await shell.broker.queues() == ["one"]


@pytest.mark.every_shell
async def test_the_same_id_twice_is_one_item_while_it_is_live(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    assert await queue.push("first", id=id) == id
    assert await queue.push("second", id=id) == id
    assert await queue.size() == 1
    assert (await queue.pop()).payload == "first"


@pytest.mark.parametrize(
    ("how", "history"), [("pop", None), ("commit", None), ("pop", timedelta(days=1)), ("commit", timedelta(days=1))]
)
async def test_the_same_id_is_one_item_after_it_was_settled_for_as_long_as_once_says(
    shell: Shell, how: str, history: timedelta | None
) -> None:
    queue, id = shell.queue(history=history), ObjectId()
    await queue.push("first", id=id, once=timedelta(days=3))
    if how == "pop":
        await queue.pop()
    else:
        await queue.commit(await queue.reserve())
    await queue.push("again", id=id)
    assert await queue.size() == 0
    document = shell.raw.find_one({"_id": id})
    assert ("payload" in document) == (history is not None)
    assert document["expires"] == shell.clock.now() + timedelta(days=3)


async def test_an_id_whose_time_is_over_leaves_nothing(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    await queue.push("first", id=id, once=5)
    shell.clock.advance(6)
    await queue.commit(await queue.reserve())
    assert shell.raw.find_one({"_id": id}) is None


@pytest.mark.every_shell
async def test_a_stub_holds_no_user_data_and_is_no_history(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    await queue.push({"secret": 1}, id=id, headers={"who": "me"})
    await queue.commit(await queue.reserve())
    document = shell.raw.find_one({"_id": id})
    assert not {"payload", "headers", "error", "by", "token", "when"} & set(document)
    assert await queue.get(id) is None
    assert [item async for item in queue.history()] == []
    assert await queue.size("processed") == 0


@pytest.mark.every_shell
async def test_pop_keeps_history_when_the_queue_does(shell: Shell) -> None:
    queue = shell.queue(history=timedelta(hours=1))
    id = await queue.push("kept")
    popped = await queue.pop()
    assert popped.processed == shell.clock.now()
    (processed,) = [item async for item in queue.history()]
    assert (processed.id, processed.payload, processed.state, processed.attempts) == (id, "kept", "processed", 1)
    assert shell.raw.find_one({"_id": id})["expires"] == shell.clock.now() + timedelta(hours=1)
    assert await queue.pop() is None


@pytest.mark.every_shell
@pytest.mark.parametrize("history", [None, 60])
async def test_pop_buries_what_had_all_its_runs_and_takes_the_next(shell: Shell, history: float | None) -> None:
    queue = shell.queue(max_retries=1, history=history)
    spent = await queue.push("spent", key="k", headers={"h": 1})
    await queue.rollback(await queue.reserve(), error="failed")
    await queue.reserve(lease=1)
    await queue.push("fresh")
    shell.clock.advance(2)
    assert (await queue.pop()).payload == "fresh"
    assert await queue.pop() is None
    dead = await queue.dead.get(spent)
    assert (dead.state, dead.attempts, dead.payload, dead.headers, dead.key) == ("ready", 0, "spent", {"h": 1}, None)
    assert (dead.origin.reason, dead.origin.attempts, dead.origin.key) == ("retries exhausted", 2, "k")
    assert dead.error.message == "failed"
    assert await queue.size("processed") == (0 if history is None else 1)


async def test_pop_hands_out_what_a_neighbour_may_have_killed(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    for n in range(2):
        await queue.push(n)
    assert len(await queue.reserve_many(2, lease=1)) == 2
    shell.clock.advance(2)
    assert [(await queue.pop()).payload for _ in range(2)] == [0, 1]
