"""Items that are put off: no failure, no attempt, no trace of suspicion, on every shell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import mongoq
from tests.shells import Shell

MINUTE = timedelta(minutes=1)


async def _reserved(queue: Any) -> Any:
    item = await queue.reserve()
    assert item is not None
    return item


@pytest.mark.every_shell
async def test_a_released_item_is_put_off_and_its_attempt_taken_back(shell: Shell) -> None:
    queue = shell.queue(max_retries=1)
    id = await queue.push("a")
    for _ in range(4):  # more often than it has runs
        item = await _reserved(queue)
        assert item.attempts == 1
        await queue.release(item, delay=MINUTE)
        assert await queue.reserve() is None
        found = await queue.get(id)
        assert (found.state, found.due, found.attempts) == ("scheduled", shell.clock.now() + MINUTE, 0)
        assert (found.error, found.token) == (None, None)
        shell.clock.advance(60)
    assert (await queue.reserve()).id == id


async def test_without_a_delay_it_goes_back_to_its_place(shell: Shell) -> None:
    queue = shell.queue()
    first, _ = await queue.push_many(["a", "b"])
    shell.clock.advance(5)
    item = await _reserved(queue)
    due = item.due
    await queue.release(item)
    assert (await queue.get(first)).due == due
    item = await _reserved(queue)
    await queue.release(item, delay=0)
    assert (await queue.get(first)).due == shell.clock.now(), "now is later than its place"


async def test_the_error_of_an_earlier_failure_stays(shell: Shell) -> None:
    queue = shell.queue()
    id = await queue.push("a")
    await queue.rollback(await _reserved(queue), error="the first run")
    item = await _reserved(queue)
    await queue.release(item, delay=10.0)
    found = await queue.get(id)
    assert (found.error.message, found.attempts) == ("the first run", 1)


async def test_many_are_put_off_together(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push_many(["a", "b", "c"])
    items = await queue.reserve_many(3)
    await queue.release_many(items, delay=30)
    assert await queue.reserve_many(3) == []
    assert {(item.due, item.attempts) for item in await queue.peek(3, state="scheduled")} == {
        (shell.clock.now() + timedelta(seconds=30), 0)
    }
    assert shell.raw.count_documents({"q": "orders", "batch": {"$exists": True}}) == 0
    shell.clock.advance(30)
    assert [item.payload for item in await queue.reserve_many(3)] == list("abc")


async def test_an_item_of_a_batch_is_no_suspect_after_it_was_put_off(shell: Shell) -> None:
    """Later its holder dies with it alone: then it was this item, and no neighbour of a batch."""
    queue = shell.queue(max_retries=0)
    await queue.push_many(["a", "b"])
    await queue.release_many(await queue.reserve_many(2), delay=1)
    shell.clock.advance(1)
    assert await queue.reserve(lease=1)
    assert await queue.reserve(lease=1)
    shell.clock.advance(2)
    assert await queue.reserve() is None
    assert await queue.dead.size() == 2


async def test_a_suspect_that_is_put_off_is_not_buried_for_runs_that_it_did_not_have(shell: Shell) -> None:
    """Its last run was in a batch that died, so it ran once more, alone; that run put it off."""
    queue = shell.queue(max_retries=0)
    await queue.push_many(["a", "b"])
    await queue.reserve_many(2, lease=1)
    shell.clock.advance(2)
    for _ in range(3):
        (alone,) = await queue.reserve_many(2, lease=1)
        await queue.release(alone, delay=0)
    assert await queue.dead.size() == 0
    assert await queue.size() == 2


async def test_what_no_delay_can_be(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    item = await _reserved(queue)
    for delay in (-1, True, float("nan"), "soon", timedelta(days=40_000)):
        with pytest.raises(mongoq.ArgumentInvalid, match="delay"):
            await queue.release(item, delay=delay)
        with pytest.raises(mongoq.ArgumentInvalid, match="delay"):
            await queue.release_many([item], delay=delay)
    await queue.commit(item)


def test_the_outcome_takes_a_delay_or_a_time() -> None:
    for arguments in ({}, {"delay": 1, "when": mongoq.VirtualClock().now()}):
        with pytest.raises(mongoq.ArgumentInvalid, match="either a delay or when="):
            mongoq.Later(**arguments)
    for delay in (-1, True, "soon", float("inf")):
        with pytest.raises(mongoq.ArgumentInvalid, match="delay"):
            mongoq.Later(delay)
    with pytest.raises(mongoq.ArgumentInvalid, match="time zone"):
        mongoq.Later(when=mongoq.VirtualClock().now().replace(tzinfo=None))
