"""Reservations: leases, fences, commit, rollback, release, extend, on every shell."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

import mongoq
from tests.shells import Shell


@pytest.mark.every_shell
async def test_a_reserved_item_is_nobody_elses(shell: Shell) -> None:
    queue = shell.queue(lease=30)
    await queue.push("a")
    item = await queue.reserve()
    assert (item.state, item.attempts, item.retries) == ("reserved", 1, 0)
    assert item.lease_until == shell.clock.now() + timedelta(seconds=30)
    assert item.token is not None
    assert item.by.count(":") == 2
    assert await queue.reserve() is None
    assert await queue.pop() is None


@pytest.mark.every_shell
async def test_commit_with_history_keeps_the_item_and_drops_its_token(shell: Shell) -> None:
    queue = shell.queue(history=timedelta(days=7))
    id = await queue.push("a", headers={"h": 1})
    item = await queue.reserve()
    await queue.commit(item)
    document = shell.raw.find_one({"_id": id})
    assert document["settled"] == item.token
    assert not {"token", "when"} & set(document)
    saved = await queue.get(id)
    assert (saved.state, saved.payload, saved.headers, saved.by) == ("processed", "a", {"h": 1}, item.by)


async def test_commit_may_replace_the_payload(shell: Shell) -> None:
    queue = shell.queue(history=60)
    id = await queue.push({"n": 1})
    other = await queue.push({"n": 2})
    await queue.commit(await queue.reserve(), payload=None)
    assert (await queue.get(id)).payload is None
    await queue.commit(await queue.reserve(), payload={"n": 2, "result": [1, 2]})
    assert (await queue.get(other)).payload == {"n": 2, "result": [1, 2]}
    assert len([item async for item in queue.history()]) == 2


@pytest.mark.every_shell
async def test_rollback_hands_the_item_back_with_its_error(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    await queue.rollback(await queue.reserve(), error=ValueError("broken"))
    again = await queue.reserve()
    assert (again.attempts, again.retries) == (2, 1)
    assert (again.error.type, again.error.message, again.error.at) == ("ValueError", "broken", shell.clock.now())


@pytest.mark.every_shell
async def test_rollback_with_a_delay_waits(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    await queue.rollback(await queue.reserve(), delay=10, error="as text")
    assert await queue.reserve() is None
    shell.clock.advance(10)
    again = await queue.reserve()
    assert (again.error.type, again.error.message) == ("", "as text")


async def test_what_was_rolled_back_goes_behind_what_is_ready(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("first")
    await queue.push("second")
    shell.clock.advance(1)
    await queue.rollback(await queue.reserve())
    assert (await queue.reserve()).payload == "second"
    assert (await queue.reserve()).payload == "first"


@pytest.mark.every_shell
async def test_release_hands_back_unused_at_the_old_place(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("first")
    shell.clock.advance(1)
    await queue.push("second")
    shell.clock.advance(1)
    item = await queue.reserve()
    await queue.release(item)
    again = await queue.reserve()
    assert (again.payload, again.attempts, again.due) == ("first", 1, item.due)


@pytest.mark.every_shell
async def test_a_lease_that_ran_out_makes_the_item_eligible_and_counts(shell: Shell) -> None:
    queue = shell.queue(lease=5)
    await queue.push("a")
    first = await queue.reserve()
    shell.clock.advance(5)
    assert (await queue.get(first.id)).state == "expired"
    second = await queue.reserve()
    assert (second.id, second.attempts) == (first.id, 2)
    assert second.token != first.token


SETTLE = ["commit", "rollback", "release", "extend", "move", "bury"]


@pytest.mark.every_shell
@pytest.mark.parametrize(("operation", "history"), [("commit", 60), *((operation, None) for operation in SETTLE)])
async def test_whoever_lost_the_reservation_changes_nothing(
    shell: Shell, operation: str, history: float | None
) -> None:
    queue = shell.queue(lease=5, history=history)
    await queue.push("a")
    stale = await queue.reserve()
    shell.clock.advance(6)
    holder = await queue.reserve()
    before = shell.raw.find_one({"_id": stale.id})
    with pytest.raises(mongoq.ReservationLost) as caught:
        await _settle(queue, operation, stale)
    error = caught.value
    assert (error.item_id, error.queue, error.held_by, error.certain) == (stale.id, "orders", holder.by, True)
    assert error.held_until == holder.lease_until
    assert shell.raw.find_one({"_id": stale.id}) == before


@pytest.mark.parametrize(
    ("first", "history"), [("commit", 60), *((operation, None) for operation in SETTLE if operation != "extend")]
)
async def test_an_item_is_settled_once(shell: Shell, first: str, history: float | None) -> None:
    queue = shell.queue(history=history)
    await queue.push("a")
    item = await queue.reserve()
    await _settle(queue, first, item)
    before = shell.raw.find_one({"_id": item.id})
    for second in SETTLE:
        with pytest.raises(mongoq.ReservationLost):
            await _settle(queue, second, item)
        assert shell.raw.find_one({"_id": item.id}) == before, second


async def _settle(queue: Any, operation: str, item: Any) -> None:
    if operation == "move":
        await queue.move(item, "elsewhere")
    else:
        await getattr(queue, operation)(item)


async def test_a_lease_that_ran_out_but_was_taken_by_nobody_still_settles(shell: Shell) -> None:
    queue = shell.queue(lease=5)
    for operation in SETTLE:
        await queue.push("a")
        item = await queue.reserve()
        shell.clock.advance(60)
        await _settle(queue, operation, item)
        await queue.purge(state="reserved")
        await queue.purge()


@pytest.mark.every_shell
async def test_extend_moves_the_end_of_the_lease(shell: Shell) -> None:
    queue = shell.queue(lease=10)
    await queue.push("a")
    item = await queue.reserve()
    shell.clock.advance(9)
    extended = await queue.extend(item, lease=20)
    assert extended.lease_until == shell.clock.now() + timedelta(seconds=20)
    assert (extended.token, extended.id) == (item.token, item.id)
    shell.clock.advance(19)
    assert await queue.reserve() is None
    item = await queue.extend(item)
    assert item.lease_until == shell.clock.now() + timedelta(seconds=10)
    await queue.commit(item)
    assert shell.raw.find_one({"_id": item.id}) is None


@pytest.mark.every_shell
async def test_an_item_settles_in_another_process(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push({"n": 1})
    item = pickle.loads(pickle.dumps(await queue.reserve()))
    await shell.another().queue("orders").commit(item)
    assert await queue.size() == 0


async def test_an_item_of_another_queue_is_refused(shell: Shell) -> None:
    queue, mails = shell.queue("one"), shell.queue("other")
    await queue.push("a")
    item = await queue.reserve()
    for operation in SETTLE:
        with pytest.raises(mongoq.ItemForeign) as caught:
            await _settle(mails, operation, item)
        assert caught.value.item_id == item.id
    await queue.commit(item)


async def test_an_item_that_nobody_reserved_cannot_be_settled(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    (unreserved,) = await queue.peek()
    with pytest.raises(mongoq.ReservationLost):
        await queue.commit(unreserved)
    with pytest.raises(mongoq.ArgumentInvalid, match="item"):
        await queue.commit({"_id": unreserved.id})
    assert await queue.size() == 1


@pytest.mark.every_shell
async def test_a_block_commits(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    async with queue.reserved() as item:
        assert item.payload == "a"
    assert await queue.size() == 0


@pytest.mark.every_shell
async def test_a_block_that_raises_rolls_back_with_the_error(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    with pytest.raises(ZeroDivisionError):
        async with queue.reserved():
            _ = 1 / 0
    again = await queue.reserve()
    assert (again.attempts, again.error.type) == (2, "ZeroDivisionError")


async def test_a_block_that_raises_may_wait_for_its_next_run(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    with pytest.raises(ValueError, match="broken"):
        async with queue.reserved(delay=60):
            raise ValueError("broken")
    assert await queue.reserve() is None
    shell.clock.advance(60)
    assert (await queue.reserve()).attempts == 2
    with pytest.raises(mongoq.ArgumentInvalid, match="delay"):
        queue.reserved(delay=-1)


async def test_a_block_that_is_interrupted_releases(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    with pytest.raises(SystemExit):
        async with queue.reserved():
            raise SystemExit
    assert (await queue.reserve()).attempts == 1


async def test_a_block_may_settle_the_item_itself(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    async with queue.reserved() as item:
        await queue.move(item, "next")
    assert await shell.queue("next").size() == 1


async def test_a_block_may_settle_the_item_among_others(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push_many(["a", "b"])
    async with queue.reserved() as item:
        await queue.rollback_many([item, *(await queue.reserve_many(1))])
    assert [item.attempts for item in await queue.reserve_many(2)] == [2, 2]


async def test_a_block_that_lost_its_item_says_so(shell: Shell) -> None:
    queue = shell.queue(lease=5)
    await queue.push("a")
    with pytest.raises(mongoq.ReservationLost):
        async with queue.reserved():
            shell.clock.advance(6)
            await queue.reserve()


async def test_a_block_that_lost_its_item_and_raises_shows_the_blocks_error(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    queue = shell.queue(lease=5)
    await queue.push("a")
    with pytest.raises(ZeroDivisionError):
        async with queue.reserved():
            shell.clock.advance(6)
            await queue.reserve()
            _ = 1 / 0
    assert "is lost" in caplog.text


async def test_waiting_ends_when_the_time_is_up(shell: Shell) -> None:
    assert await shell.queue().reserve(wait=0.05) is None


@pytest.mark.every_shell
async def test_pause_hands_out_nothing_and_takes_pushes(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push("a")
    await queue.pause()
    assert await queue.is_paused()
    assert await shell.another().queue("orders").is_paused()
    assert await queue.reserve() is None
    assert await queue.reserve_many(2) == await queue.reserve_many(2, wait=0.02) == []
    assert await shell.another().queue("orders").pop() is None
    await queue.push("b")
    await queue.resume()
    assert not await queue.is_paused()
    assert (await queue.reserve()).payload == "a"
    assert not await shell.queue("other").is_paused()
