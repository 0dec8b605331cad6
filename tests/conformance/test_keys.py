"""Keys: at most one live item for each, and what becomes of a key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell

LATER = timedelta(hours=1)


async def test_a_live_item_with_the_key_is_kept(shell: Shell) -> None:
    queue = shell.queue()
    first = await queue.push({"n": 1}, key="k")
    assert await queue.push({"n": 2}, key="k", delay=5, priority=3, headers={"h": 1}) == first
    (item,) = await queue.peek(5, state=None)
    assert (item.id, item.payload, item.key, item.priority, item.headers) == (first, {"n": 1}, "k", 0, {})


@pytest.mark.parametrize(
    ("state", "on_duplicate"),
    [
        ("ready", "raise"),
        ("scheduled", "replace"),
        ("reserved", "keep"),
        ("reserved", "replace"),
        ("expired", "raise"),
        ("expired", "replace"),
    ],
)
async def test_every_live_state_counts(shell: Shell, state: str, on_duplicate: str) -> None:
    queue = shell.queue()
    first = await queue.push(1, key="k", delay=LATER if state == "scheduled" else None)
    if state in ("reserved", "expired"):
        await queue.reserve(lease=10)
    if state == "expired":
        shell.clock.advance(11)
    if on_duplicate == "raise":
        with pytest.raises(mongoq.DuplicateItem) as caught:
            await queue.push(2, key="k", on_duplicate="raise")
        assert (caught.value.item_id, caught.value.key, caught.value.queue) == (first, "k", "orders")
    else:
        assert await queue.push(2, key="k", on_duplicate=on_duplicate) == first
    (item,) = await queue.peek(5, state=None)
    assert item.state == ("ready" if on_duplicate == "replace" else state)
    assert item.payload == (2 if on_duplicate == "replace" else 1)


async def test_a_replaced_item_takes_all_that_was_pushed(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1, key="k", priority=5, headers={"old": 1}, delay=LATER)
    await queue.push(2, key="k", on_duplicate="replace", priority=-5)
    item = await queue.reserve()
    assert (item.payload, item.priority, item.headers, item.key) == (2, -5, {}, "k")
    await queue.push(3, key="k", on_duplicate="replace", headers={"new": 1})
    assert (await queue.peek())[0].headers == {"new": 1}


@pytest.mark.every_shell
async def test_replacing_takes_the_fence_away_and_starts_afresh(shell: Shell) -> None:
    queue = shell.queue(max_retries=1)
    await queue.push(1, key="k")
    await queue.rollback(await queue.reserve(), error="bad")
    item = await queue.reserve()
    assert item.attempts == 2
    await queue.push(2, key="k", on_duplicate="replace")
    for settle in (queue.commit, queue.rollback, queue.release, queue.extend, queue.bury):
        with pytest.raises(mongoq.ReservationLost):
            await settle(item)
    with pytest.raises(mongoq.ReservationLost):
        await queue.move(item, "next")
    again = await queue.reserve()
    assert (again.payload, again.attempts, again.error) == (2, 1, None)


async def test_what_replaces_a_copy_is_replayed_like_any_other_item(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    await queue.push(1)
    await queue.commit(await queue.reserve())
    await queue.replay()
    copy = await queue.reserve()
    await queue.move(copy, "orders", key="k")
    assert await queue.push(2, key="k", on_duplicate="replace") == copy.id
    await queue.commit(await queue.reserve())
    assert (await queue.replay(label="again")).pushed == 2


@pytest.mark.every_shell("mongomock")
@pytest.mark.parametrize(
    ("end", "history"),
    [("commit", 3600), ("pop", 3600), *((end, None) for end in ("commit", "pop", "move", "bury", "remove", "purge"))],
)
async def test_a_key_is_free_when_its_item_is_no_longer_live_there(shell: Shell, end: str, history: Any) -> None:
    queue = shell.queue(history=history)
    first = await queue.push(1, key="k")
    if end == "pop":
        await queue.pop()
    elif end == "remove":
        await queue.remove(first)
    elif end == "purge":
        await queue.purge()
    else:
        item = await queue.reserve()
        await (queue.move(item, "next") if end == "move" else getattr(queue, end)(item))
    second = await queue.push(2, key="k", on_duplicate="raise")
    assert second != first
    assert (await queue.get(second)).key == "k"


async def test_what_is_handed_back_keeps_its_key(shell: Shell) -> None:
    queue = shell.queue()
    first = await queue.push(1, key="k")
    for back in (queue.rollback, queue.release):
        await back(await queue.reserve())
        assert await queue.push(2, key="k") == first


async def test_a_key_stays_behind_in_a_move_and_in_the_origin_of_a_burial(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1, key="k")
    await queue.move(await queue.reserve(), "next")
    assert (await shell.queue("next").peek())[0].key is None
    await queue.push(2, key="k")
    await queue.bury(await queue.reserve())
    (dead,) = await queue.dead.peek()
    assert (dead.key, dead.origin.key) == (None, "k")


async def test_a_move_may_give_a_key(shell: Shell) -> None:
    queue, following = shell.queue(), shell.queue("next")
    await queue.push(1, key="k")
    await queue.move(await queue.reserve(), "next", key="l")
    (item,) = await following.peek()
    assert item.key == "l"
    assert await following.push(2, key="l") == item.id


@pytest.mark.every_shell("motor")
async def test_a_move_to_a_key_that_is_taken_leaves_the_item_reserved(shell: Shell) -> None:
    queue, following = shell.queue(), shell.queue("next")
    holder = await following.push(1, key="l")
    await queue.push(2)
    item = await queue.reserve()
    with pytest.raises(mongoq.DuplicateItem) as caught:
        await queue.move(item, "next", key="l")
    assert (caught.value.item_id, caught.value.queue) == (holder, "next")
    assert await queue.size("reserved") == 1
    await queue.commit(item)


@pytest.mark.every_shell
async def test_an_id_and_a_key_are_one_item_also_after_it_was_done(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    assert await queue.push(1, id=id, key="k") == id
    assert await queue.push(2, id=id, key="k") == id
    await queue.commit(await queue.reserve())
    assert await queue.push(3, id=id, key="k") == id
    assert await queue.size() == 0
    live = await queue.push(4, key="k")
    assert await queue.push(5, id=ObjectId(), key="k") == live


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
async def test_a_push_that_is_sent_again_when_it_was_done_disturbs_nothing_newer(
    shell: Shell, on_duplicate: str
) -> None:
    queue, id = shell.queue(), ObjectId()
    await queue.push("old", id=id, key="k", on_duplicate=on_duplicate)
    await queue.commit(await queue.reserve())
    await queue.push("new", key="k")
    item = await queue.reserve()
    assert await queue.push("old", id=id, key="k", on_duplicate=on_duplicate) == id
    assert item.payload == "new"
    await queue.commit(item)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "key"),
    ({"key": 7}, "key"),
    ({"key": "k" * 1025}, "key"),
    ({"key": "\ud800"}, "key"),
    ({"key": {"$ne": None}}, "key"),
    ({"key": "k", "on_duplicate": "drop"}, "on_duplicate"),
    ({"key": "k", "on_duplicate": None}, "on_duplicate"),
    ({"on_duplicate": "replace"}, "on_duplicate"),
]


async def test_keys_that_cannot_be_used_are_named(shell: Shell) -> None:
    queue = shell.queue()
    for options, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await queue.push(1, **options)
        assert caught.value.argument == argument
    assert await queue.size() == 0
    await queue.push(1)
    item = await queue.reserve()
    with pytest.raises(mongoq.ArgumentInvalid, match="^key: "):
        await queue.move(item, "next", key="")
    await queue.commit(item)
