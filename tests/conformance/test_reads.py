"""Get, peek, sizes, next due time, remove, purge and history, on every shell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell


async def _one_of_each(shell: Shell) -> Any:
    """A queue with one expired, one reserved, two ready, three scheduled and one processed item."""
    queue = shell.queue(history=3600)
    await queue.push("processed", priority=-100)
    await queue.commit(await queue.reserve())
    await queue.push("expired", priority=-90)
    await queue.reserve(lease=1)
    shell.clock.advance(2)
    await queue.push("reserved", priority=-100)
    await queue.reserve(lease=60)
    for n in range(2):
        await queue.push(f"ready {n}")
    for n in range(3):
        await queue.push(f"scheduled {n}", delay=100 + n)
    return queue


@pytest.mark.every_shell
async def test_counts_by_state(shell: Shell) -> None:
    queue = await _one_of_each(shell)
    counts = await queue.counts()
    assert (counts.ready, counts.scheduled, counts.reserved, counts.expired) == (2, 3, 1, 1)
    assert counts.total == await queue.size() == 7
    sizes = {state: await queue.size(state) for state in ("ready", "scheduled", "reserved", "expired", "processed")}
    assert sizes == {"ready": 2, "scheduled": 3, "reserved": 1, "expired": 1, "processed": 1}
    assert (await queue.counts(limit=3)).total == 3
    assert await shell.queue("empty").counts() == mongoq.Counts()


@pytest.mark.every_shell
async def test_peek_shows_each_state_in_order_and_takes_nothing(shell: Shell) -> None:
    queue = await _one_of_each(shell)

    async def payloads(state: str | None) -> list[str]:
        return [item.payload for item in await queue.peek(10, state=state)]

    assert await payloads("ready") == ["ready 0", "ready 1"]
    assert await payloads("scheduled") == ["scheduled 0", "scheduled 1", "scheduled 2"]
    assert await payloads("reserved") == ["reserved"]
    assert await payloads("expired") == ["expired"]
    assert await payloads("processed") == ["processed"]
    assert len(await payloads(None)) == 7
    assert [item.payload for item in await queue.peek()] == ["ready 0"]
    assert [item.state for item in await queue.peek(10, state="expired")] == ["expired"]
    assert await queue.size() == 7


async def test_get_finds_live_and_processed_items_of_this_queue(shell: Shell) -> None:
    queue = shell.queue(history=60)
    id = await queue.push("a")
    assert (await queue.get(id)).state == "ready"
    await queue.pop()
    assert (await queue.get(id)).state == "processed"
    assert await queue.get(ObjectId()) is None
    assert await shell.queue("other").get(id) is None


async def test_next_when_is_the_earliest_of_all_priorities(shell: Shell) -> None:
    queue = shell.queue()
    assert await queue.next_when() is None
    await queue.push(1, delay=50, priority=-1)
    await queue.push(2, delay=20, priority=5)
    assert await queue.next_when() == shell.clock.now() + timedelta(seconds=20)
    await queue.push(3)
    due = shell.clock.now()
    assert await queue.next_when() == due
    await queue.reserve(lease=10)
    assert await queue.next_when() == due + timedelta(seconds=10)


@pytest.mark.every_shell
async def test_remove_takes_what_nobody_holds(shell: Shell) -> None:
    queue = shell.queue(history=60, lease=5)
    id = await queue.push("ready")
    assert await queue.remove(id)
    assert not await queue.remove(id)
    id = await queue.push("scheduled", delay=10)
    assert not await shell.queue("other").remove(id)
    assert await queue.remove(id)
    id = await queue.push("held")
    item = await queue.reserve()
    assert not await queue.remove(id)
    await queue.commit(item)
    assert await queue.remove(id)
    id = await queue.push("expired")
    item = await queue.reserve()
    shell.clock.advance(6)
    assert await queue.remove(id)
    with pytest.raises(mongoq.ReservationLost) as caught:
        await queue.commit(item)
    assert caught.value.held_by is None


async def test_remove_forgets_a_remembered_id(shell: Shell) -> None:
    queue, id = shell.queue(), ObjectId()
    await queue.push("first", id=id)
    await queue.commit(await queue.reserve())
    assert await queue.remove(id)
    await queue.push("again", id=id)
    assert await queue.size() == 1


async def test_purge_leaves_history_and_what_is_held(shell: Shell) -> None:
    queue = await _one_of_each(shell)
    await shell.queue("other").push(1)
    assert await queue.purge() == 6
    assert await queue.size("reserved") == 1
    assert await queue.size("processed") == 1
    assert await shell.queue("other").size() == 1


async def test_purge_by_state(shell: Shell) -> None:
    queue = await _one_of_each(shell)
    (held,) = await queue.peek(state="reserved")
    for state, number in (("ready", 2), ("scheduled", 3), ("reserved", 1), ("expired", 1), ("processed", 1)):
        before = await queue.size()
        assert await queue.purge(state=state) == number
        assert await queue.size() == before - (0 if state == "processed" else number)
    with pytest.raises(mongoq.ReservationLost):
        await queue.commit(held)


@pytest.mark.every_shell
async def test_history_comes_oldest_first_in_pages(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    start = shell.clock.now()
    for n in range(25):
        await queue.push(n)
        await queue.pop()
        if n % 3 == 0:
            shell.clock.advance(1)
    for page in (1, 2, 7, 25, 100):
        assert [item.payload async for item in queue.history(page=page)] == list(range(25))
    since, until = start + timedelta(seconds=2), start + timedelta(seconds=4)
    assert [item.payload async for item in queue.history(since=since, until=until, page=2)] == [4, 5, 6, 7, 8, 9]


async def test_queues_are_named_while_they_hold_something(shell: Shell) -> None:
    assert await shell.broker.queues() == []
    await shell.queue("b").push(1)
    await shell.queue("a").push(1, delay=60)
    queue = shell.queue("kept", history=60)
    await queue.push(1)
    await queue.pop()
    await shell.queue("z").pause()
    assert await shell.broker.queues() == ["a", "b", "kept"]


@pytest.mark.every_shell("motor")
async def test_a_peek_that_exceeds_one_reply_is_whole(shell: Shell) -> None:
    queue = shell.queue()
    for letter in "abc":
        await queue.push(letter * 7_000_000)
    assert [item.payload[0] for item in await queue.peek(5)] == ["a", "b", "c"]
