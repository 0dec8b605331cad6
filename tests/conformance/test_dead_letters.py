"""Dead letters: looked at, handed back to where they died or elsewhere, and purged."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell

KEY_TAKEN = "a live item has its key; settle that one first, or give to="


async def _dead(queue: Any, payload: Any, **options: Any) -> Any:
    id = await queue.push(payload, **options)
    item = await queue.reserve()
    assert item.id == id
    await queue.bury(item, error=ValueError(f"bad {payload}"))
    return id


@pytest.mark.every_shell
async def test_all_go_back_in_their_order_with_a_fresh_budget(shell: Shell) -> None:
    queue = shell.queue(max_retries=0)
    ids = []
    for n in range(3):
        ids.append(await queue.push(n, headers={"n": n}))
        await queue.rollback(await queue.reserve(), error="bad")
    await queue.dead.release(await queue.dead.reserve())
    for _ in range(3):
        await queue.dead.rollback(await queue.dead.reserve(), error="still bad")
        shell.clock.advance(1)
    result = await queue.dead.replay()
    assert (result.found, result.pushed, result.refused, result.skipped, result.missing) == (3, 3, 0, 0, ())
    assert await queue.dead.size() == 0
    for n in range(3):
        item = await queue.reserve()
        assert (item.id, item.payload, item.attempts, item.headers, item.error) == (ids[n], n, 1, {"n": n}, None)
        assert item.origin.reason == "failed, no retries allowed"


async def test_one_or_a_few_by_their_ids(shell: Shell) -> None:
    queue = shell.queue()
    ids = [await _dead(queue, n) for n in range(4)]
    stranger = ObjectId()
    result = await queue.dead.replay(ids=[ids[2], stranger, ids[0], ids[2]])
    assert (result.found, result.pushed, result.missing) == (2, 2, (stranger,))
    assert [item.payload for item in await queue.peek(9)] == [0, 2]
    assert [item.payload for item in await queue.dead.peek(9)] == [1, 3]


async def test_those_chosen_by_their_ids_go_in_the_order_of_claims_as_all_others(shell: Shell) -> None:
    queue = shell.queue()
    first = await _dead(queue, 1, key="k")
    second = await _dead(queue, 2, key="k", priority=-1)
    result = await queue.dead.replay(ids=[first, second])
    assert (result.pushed, [id for id, _ in result.refusals]) == (1, [first])
    assert [item.id for item in await queue.peek(9)] == [second]


async def test_those_that_a_filter_matches(shell: Shell) -> None:
    queue = shell.queue()
    for n in range(6):
        await _dead(queue, {"n": n})
    result = await queue.dead.replay(where={"n": {"$gte": 2}}, limit=3)
    assert result.pushed == 3
    assert [item.payload["n"] for item in await queue.peek(9)] == [2, 3, 4]


async def test_elsewhere(shell: Shell) -> None:
    queue = shell.queue()
    await _dead(queue, 1)
    await _dead(queue, 2)
    await queue.dead.replay(to="repair", limit=1)
    await queue.dead.replay(to=shell.queue("inspect"))
    assert [item.payload for item in await shell.queue("repair").peek(9)] == [1]
    assert [item.payload for item in await shell.queue("inspect").peek(9)] == [2]


async def test_a_dead_queue_is_there_by_its_own_name(shell: Shell) -> None:
    name = "graves"
    for queue in ("a", "b"):
        await _dead(shell.queue(queue, dead=name), queue)
    graves = shell.broker.dead_queue(name)
    assert [item.payload for item in await graves.peek(9)] == ["a", "b"]
    await graves.rollback(await graves.reserve(), error="still bad")
    with pytest.raises(mongoq.ArgumentInvalid, match="has no dead queue"):
        await graves.bury(await graves.reserve(), error="worse")
    assert (await graves.replay(where={"x": 1})).found == 0
    assert (await graves.replay()).pushed == 1
    with pytest.raises(mongoq.QueueNameInvalid):
        shell.broker.dead_queue("")


async def test_letters_are_replayed_by_reason_and_error_type(shell: Shell) -> None:
    queue = shell.queue()
    failures = [("no city", KeyError("a")), ("no city", ValueError("b")), (None, TimeoutError("c")), (None, "text")]
    for n, (reason, error) in enumerate(failures):
        await queue.push({"n": n})
        await queue.bury(await queue.reserve(), reason=reason, error=error)
    await queue.push({"n": 4})
    await queue.bury(await queue.reserve())
    replay = queue.dead.replay
    # Whole values match, and no parts of them.
    assert [(await replay(**part)).found for part in ({"reason": "no"}, {"error": "Error"}, {"reason": ""})] == [
        0,
        0,
        0,
    ]
    assert (await replay(reason="no city", error="KeyError")).pushed == 1
    assert (await replay(reason="c")).pushed == 1
    assert [item.payload["n"] for item in await queue.peek(9)] == [0, 2]
    # An error that was given as a text has no type; a letter without an error is not selected.
    assert (await replay(error="", where={"n": {"$gte": 0}})).pushed == 1
    assert [item.payload["n"] for item in await queue.dead.peek(9)] == [1, 4]


async def test_a_failure_that_cannot_be_selected_is_refused(shell: Shell) -> None:
    letters = shell.queue().dead
    for name in ("stage", "reason", "error"):
        for value, match in ((1, "a string"), ("x" * 5000, "is the limit")):
            with pytest.raises(mongoq.ArgumentInvalid, match=match) as caught:
                await letters.replay(**{name: value})
            assert caught.value.argument == name
        with pytest.raises(mongoq.ArgumentInvalid, match="not by both"):
            await letters.replay(**{name: "x"}, ids=[ObjectId()])


async def test_a_key_comes_back_unless_it_is_taken(shell: Shell) -> None:
    queue = shell.queue()
    first = await _dead(queue, 1, key="k")
    await _dead(queue, 2, key="l")
    holder = await queue.push(3, key="k")
    result = await queue.dead.replay()
    assert (result.found, result.pushed, result.refused, result.refusals) == (
        2,
        1,
        1,
        ((first, KEY_TAKEN),),
    )
    assert {item.key for item in await queue.peek(9)} == {"k", "l"}
    assert (await queue.dead.peek(9))[0].id == first
    await queue.remove(holder)
    assert (await queue.dead.replay()).pushed == 1
    assert (await queue.get(first)).key == "k"


async def test_what_somebody_holds_stays(shell: Shell) -> None:
    queue = shell.queue()
    await _dead(queue, 1)
    await _dead(queue, 2)
    item = await queue.dead.reserve()
    result = await queue.dead.replay()
    assert (result.found, result.pushed, result.skipped) == (2, 1, 1)
    await queue.dead.commit(item)
    assert await queue.dead.size() == 0


async def test_what_never_was_elsewhere_needs_a_destination(shell: Shell) -> None:
    queue = shell.queue()
    id = await queue.dead.push("straight into it")
    result = await queue.dead.replay()
    assert result.refusals == ((id, "it has no origin to go back to; give to="),)
    assert (await queue.dead.replay(to="orders")).pushed == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ids": [1]}, "ids[0]"),
    ({"ids": "abc"}, "ids"),
    ({"ids": [], "where": {"a": 1}}, "ids"),
    ({"limit": 0}, "limit"),
    ({"limit": 1.5}, "limit"),
    ({"to": ""}, "to"),
    ({"to": "orders.dead"}, "to"),
    ({"where": {"$where": "1"}}, "where"),
]


async def test_arguments_that_cannot_be_used_are_named(shell: Shell) -> None:
    queue = shell.queue()
    await _dead(queue, {"a": 1})
    for options, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await queue.dead.replay(**options)
        assert caught.value.argument == argument
    assert await queue.dead.size() == 1


async def test_a_letter_that_died_in_the_dead_queue_does_not_go_round(shell: Shell) -> None:
    queue = shell.queue(dead="graves")
    for n in range(3):
        await _dead(queue, n)
    shell.raw.update_many({"q": "graves"}, {"$set": {"origin.queue": "graves"}})
    result = await queue.dead.replay()
    assert (result.found, result.pushed, result.refused) == (3, 0, 3)
