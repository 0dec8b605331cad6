"""Purges that choose: by a filter of payloads, a limit, ids, or the stage that dead letters have failed in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell


async def _remaining(queue: Any) -> list[Any]:
    return [item.payload for item in await queue.peek(99, state=None)]


async def _buried(queue: Any, *payloads: Any) -> list[ObjectId]:
    ids = []
    for payload in payloads:
        ids.append(await queue.push(payload))
        await queue.bury(await queue.reserve(), reason="bad")
    return ids


@pytest.mark.parametrize(
    ("where", "remaining"),
    [
        ({"$or": [{"n": 1}, {"city": "Oslo"}]}, [{"city": "Rome", "n": 2}, 4]),
        ({"$eq": 4}, [{"city": "Rome", "n": 1}, {"city": "Rome", "n": 2}, {"city": "Oslo", "n": 3}]),
    ],
    ids=str,
)
async def test_a_filter_chooses_by_the_payload(shell: Shell, where: Any, remaining: list[Any]) -> None:
    queue = shell.queue()
    for payload in ({"city": "Rome", "n": 1}, {"city": "Rome", "n": 2}, {"city": "Oslo", "n": 3}, 4):
        await queue.push(payload)
    await shell.queue("others").push({"city": "Rome", "n": 2})
    assert await queue.purge(where=where) == 4 - len(remaining)
    assert await _remaining(queue) == remaining
    assert await shell.queue("others").size() == 1


@pytest.mark.parametrize("limit", [3, 99])
async def test_a_limit_takes_the_first_in_the_order_of_claims(shell: Shell, limit: int) -> None:
    queue = shell.queue()
    for n, priority in enumerate([5, 0, 5, -3, 0, -3]):
        await queue.push(n, priority=priority)
        shell.clock.advance(1)
    assert await queue.purge(limit=limit) == min(limit, 6)
    assert await _remaining(queue) == [3, 5, 1, 4, 0, 2][limit:]


@pytest.mark.every_shell
@pytest.mark.parametrize("limit", [None, 1])
async def test_what_is_held_stays_and_what_has_lapsed_goes(shell: Shell, limit: int | None) -> None:
    queue = shell.queue()
    for n in range(4):
        await queue.push({"n": n})
    lapsed = await queue.reserve(lease=1)
    item = await queue.reserve(lease=600)
    shell.clock.advance(2)
    options = {"limit": limit, "where": {"n": {"$lt": 3}}}
    assert await queue.purge(**options) == min(limit or 2, 2)
    remaining = {payload["n"] for payload in await _remaining(queue)}
    assert remaining >= {item.payload["n"], 3}
    assert (lapsed.payload["n"] in remaining) is (limit == 1)
    await queue.commit(item)


@pytest.mark.parametrize(
    ("state", "remaining"),
    [("scheduled", ["now", "held"]), ("reserved", ["now", "later"]), ("processed", ["now", "later", "held"])],
)
async def test_a_state_is_kept_to_as_well(shell: Shell, state: Any, remaining: list[str]) -> None:
    queue = shell.queue(history=timedelta(days=1))
    for what in ("done", "held", "now"):
        await queue.push({"what": what}, key=what)
        shell.clock.advance(1)
    await queue.push({"what": "later"}, delay=60)
    await queue.commit(await queue.reserve())
    await queue.reserve()
    assert await queue.purge(state=state, where={"what": {"$ne": "x"}}, limit=9) == 1
    assert sorted(payload["what"] for payload in await _remaining(queue)) == sorted(remaining)
    assert await queue.size("processed") == (0 if state == "processed" else 1)


async def test_of_a_history_the_oldest_go_first(shell: Shell) -> None:
    queue = shell.queue(history=timedelta(days=1))
    for n in range(5):
        await queue.push(n)
        await queue.commit(await queue.reserve())
        shell.clock.advance(1)
    assert await queue.purge(state="processed", limit=3) == 3
    assert [item.payload async for item in queue.history()] == [3, 4]


async def test_a_purge_deletes_more_than_one_command_does(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push_many([{"n": n} for n in range(2_100)])
    assert await queue.purge(where={"n": {"$gte": 5}}, limit=2_090) == 2_090
    assert [payload["n"] for payload in await _remaining(queue)] == [*range(5), *range(2_095, 2_100)]
    assert await queue.purge() == 10


async def test_dead_letters_are_chosen_by_ids(shell: Shell) -> None:
    queue = shell.queue()
    first, second, third = await _buried(queue, 1, 2, 3)
    assert await queue.dead.purge(ids=[third, ObjectId(), first, third]) == 2
    assert [letter.id for letter in await queue.dead.peek(9)] == [second]
    assert await queue.dead.purge(ids=[]) == 0
    assert await queue.dead.purge(ids=iter([second]), limit=1) == 1


async def test_dead_letters_are_chosen_by_stage_filter_and_limit(shell: Shell) -> None:
    queue = shell.queue()
    await _buried(queue, *({"n": n} for n in range(6)))
    for n, stage in enumerate(["load", "check", "load", "check", "load", "load"]):
        shell.raw.update_one({"payload.n": n}, {"$set": {"origin.stage": stage}})
    assert await queue.dead.purge(stage="load", where={"n": {"$gt": 0}}, limit=2) == 2
    assert sorted(payload["n"] for payload in await _remaining(queue.dead)) == [0, 1, 3, 5]
    assert await queue.dead.purge(stage="check") == 2
    assert await queue.dead.purge(stage="none") == 0
    assert await shell.broker.dead_queue("orders.dead").purge(limit=1) == 1
    assert [payload["n"] for payload in await _remaining(queue.dead)] == [5]


async def test_dead_letters_are_purged_by_reason_and_error_type(shell: Shell) -> None:
    queue = shell.queue()
    await _buried(queue, *({"n": n} for n in range(6)))
    for n in range(6):
        failure = {"origin.reason": "slow" if n % 2 else "lost", "error": {"type": "KeyError" if n < 4 else "OSError"}}
        shell.raw.update_one({"payload.n": n}, {"$set": failure})
    assert await queue.dead.purge(reason="slo") == await queue.dead.purge(error="Key") == 0
    assert await queue.dead.purge(reason="slow", error="KeyError", limit=1) == 1
    assert sorted(payload["n"] for payload in await _remaining(queue.dead)) == [0, 2, 3, 4, 5]
    assert await queue.dead.purge(error="OSError") == 2
    assert await queue.dead.purge(reason="lost", where={"n": {"$gt": 0}}) == 1
    assert sorted(payload["n"] for payload in await _remaining(queue.dead)) == [0, 3]


IDS = [ObjectId("0" * 24)]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit"),
    ({"limit": 2.0}, "limit"),
    ({"limit": True}, "limit"),
    ({"where": {}}, "where"),
    ({"where": {"$where": "1"}}, "where"),
    ({"where": []}, "where"),
    ({"state": "gone", "limit": 1}, "state"),
    ({"stage": 1}, "stage"),
    ({"reason": 1}, "reason"),
    ({"error": KeyError}, "error"),
    ({"ids": "abc"}, "ids"),
    ({"ids": ["abc"]}, "ids[0]"),
    ({"ids": IDS, "where": {"n": 1}}, "ids"),
    ({"ids": IDS, "stage": "load"}, "ids"),
]


async def test_what_cannot_be_used_is_named_and_nothing_is_deleted(shell: Shell) -> None:
    queue = shell.queue()
    await _buried(queue, {"n": 1})
    for options, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await queue.dead.purge(**options)
        assert caught.value.argument.startswith(argument)
    assert await queue.dead.size() == 1
