"""Counters of what was done to each queue, and its depth by state."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo.errors import PyMongoError

import mongoq
from tests.shells import Shell
from tests.waiting import PATIENCE


async def _stats(shell: Shell, name: str = "orders") -> Any:
    return (await shell.broker.stats())[name]


async def test_a_broker_without_queues_has_no_stats(shell: Shell) -> None:
    assert await shell.broker.stats() == {}


@pytest.mark.every_shell
async def test_every_operation_is_counted(shell: Shell) -> None:
    queue = shell.queue(max_retries=1)
    for n in range(8):
        await queue.push(n)
    await queue.pop()
    await queue.commit(await queue.reserve())
    await queue.release(await queue.reserve())
    await queue.move(await queue.reserve(), "next")
    await queue.bury(await queue.reserve())
    await queue.rollback(await queue.reserve(), delay=9)
    await queue.extend(await queue.reserve())
    await queue.push("later", delay=60)
    assert await _stats(shell) == mongoq.QueueStats(
        put=9,
        get=1,
        reserve=6,
        commit=1,
        rollback=1,
        release=1,
        move=1,
        dead=1,
        counts=mongoq.Counts(ready=2, scheduled=2, reserved=1),
    )
    assert await _stats(shell, "next") == mongoq.QueueStats(put=1, counts=mongoq.Counts(ready=1))
    assert await _stats(shell, "orders.dead") == mongoq.QueueStats(put=1, counts=mongoq.Counts(ready=1))


async def test_what_comes_from_another_queue_is_put_there(shell: Shell) -> None:
    queue, dying = shell.queue(on_expired="dead"), shell.queue("next", max_retries=0)
    await queue.push_many(range(6))
    await queue.push("late", expires=1)
    shell.clock.advance(2)
    items = await queue.reserve_many(5)
    await queue.move(items[0], "next")
    await queue.move_many([(item, mongoq.Move("next")) for item in items[1:3]])
    for item in items[3:]:
        await queue.move(item, "next", sequence="s")  # the second one is blocked
    assert await queue.reserve() is not None
    assert await queue.reserve() is None
    for item in await dying.reserve_many(9):
        await dying.rollback(item)
    assert await dying.dead.replay() == mongoq.Replayed(4, 4)
    puts = {name: each.put for name, each in (await shell.broker.stats()).items()}
    assert puts == {"orders": 7, "orders.dead": 1, "next": 9, "next.dead": 4}


async def test_of_a_batch_each_item_is_counted(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push_many(range(5))
    items = await queue.reserve_many(3)
    await queue.commit_many(items[:2])
    await queue.release_many(items[2:])
    totals = await _stats(shell)
    assert (totals.put, totals.reserve, totals.commit, totals.release) == (5, 3, 2, 1)


async def test_what_changed_nothing_is_not_counted(shell: Shell) -> None:
    queue = shell.queue()
    id = await queue.push(1, id=ObjectId(), key="k")
    await queue.push(2, id=id)
    await queue.push(3, key="k")
    assert await queue.push(4, key="k", on_duplicate="replace") == id
    item = await queue.reserve()
    await queue.commit(item)
    with pytest.raises(mongoq.ReservationLost):
        await queue.commit(item)
    assert await queue.pop() is None
    assert await queue.reserve() is None
    assert await _stats(shell) == mongoq.QueueStats(put=1, reserve=1, commit=1)


async def test_burials_of_every_kind_are_counted(shell: Shell) -> None:
    queue = shell.queue(model=int, max_retries=0)
    raw = shell.queue()
    await raw.push("no number")
    await raw.push("no number")
    assert await queue.reserve() is None
    await queue.push(1)
    await queue.rollback(await queue.reserve())
    await queue.push(2)
    await queue.reserve(lease=1)
    shell.clock.advance(2)
    assert await queue.reserve() is None
    await raw.push("no number")
    assert await queue.pop() is None
    counted = await _stats(shell)
    assert (counted.dead, counted.rollback, counted.counts.total) == (5, 0, 0)


async def test_counters_add_up_over_brokers_and_are_written_on_close(shell: Shell) -> None:
    for n in range(3):
        broker = shell.another()
        await broker.queue("orders").push(n)
        await broker.close()
        await broker.close()
    assert shell.raw.find_one({"_id": "stats:orders"}) == {"_id": "stats:orders", "put": 3}
    await shell.queue().pop()
    assert await _stats(shell) == mongoq.QueueStats(put=3, get=1, counts=mongoq.Counts(ready=2))


async def test_a_queue_may_have_any_name(shell: Shell) -> None:
    for name in ("a.b", "ключ", "stats:", "~", " "):
        await shell.queue(name).push(1)
    assert {name: each.put for name, each in (await shell.broker.stats()).items()} == dict.fromkeys(
        ("a.b", "ключ", "stats:", "~", " "), 1
    )


@pytest.mark.prove
async def test_counters_are_written_by_and_by(shell: Shell) -> None:
    """Although the deadline of the first caller is over, and nothing was to be written at first."""
    with suppress(PyMongoError), pymongo.timeout(0.001):
        await shell.queue().size()
    for number in (1, 2):
        await shell.queue().push(number)
        deadline = time.monotonic() + PATIENCE
        while (shell.raw.find_one({"_id": "stats:orders"}) or {}).get("put") != number:
            assert time.monotonic() < deadline, "not written"
            await asyncio.sleep(0.05)
