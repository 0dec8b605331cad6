"""Replay, on every shell: copies of what was processed, each once, in their order, and nothing for bad input."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from bson import Binary, ObjectId
from pydantic import BaseModel

import mongoq
from tests.shells import Shell


async def _processed(shell: Shell, payloads: Any, name: str = "orders", **options: Any) -> Any:
    """A queue that has processed these, a second apart."""
    queue = shell.queue(name, history=3600)
    for payload in payloads:
        await queue.push(payload, **options)
        await queue.pop()
        shell.clock.advance(1)
    return queue


async def _drained(shell: Shell, name: str) -> list[Any]:
    shell.clock.advance(1)
    queue, payloads = shell.queue(name), []
    while (item := await queue.pop()) is not None:
        payloads.append(item.payload)
    return payloads


@pytest.mark.every_shell
async def test_copies_come_in_the_order_of_their_originals(shell: Shell) -> None:
    queue = await _processed(shell, range(30))
    result = await queue.replay(to="next", page=7)
    assert (result.found, result.pushed, result.already, result.refused, result.skipped) == (30, 30, 0, 0, 0)
    assert await shell.queue("next").size("ready") == 30
    assert await _drained(shell, "next") == list(range(30))
    assert await queue.size("processed") == 30


@pytest.mark.parametrize("page", [3])
async def test_the_order_is_kept_when_all_were_processed_in_one_moment(shell: Shell, page: int) -> None:
    """With ids of their own making there is nothing in them that sorts."""
    queue = shell.queue(history=3600)
    for n in range(20):
        await queue.push(n, id=ObjectId())
    while await queue.pop() is not None:
        pass
    order = [item.payload async for item in queue.history()]
    await queue.replay(to="next", page=page)
    assert await _drained(shell, "next") == order


@pytest.mark.every_shell
async def test_a_copy_is_fresh_and_tells_where_it_comes_from(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    await queue.push({"n": 1}, priority=7, headers={"source": "web"})
    await queue.rollback(await queue.reserve(), error="again")
    await queue.commit(await queue.reserve())
    original = (await queue.peek(1, state="processed"))[0]
    shell.raw.update_one({"_id": original.id}, {"$set": {"key": "k"}})
    shell.clock.advance(5)
    await queue.replay(label="mended")
    (copy,) = await queue.peek(5)
    assert (copy.payload, copy.priority, copy.headers) == ({"n": 1}, 7, {"source": "web"})
    assert (copy.attempts, copy.key, copy.error, copy.processed) == (0, None, None, None)
    assert copy.id != original.id
    assert copy.due == shell.clock.now()
    origin = copy.origin
    assert (origin.queue, origin.id, origin.attempts, origin.key) == ("orders", original.id, 2, "k")
    assert origin.reason == "replayed: mended"
    assert origin.at == shell.clock.now()
    assert copy.once == shell.clock.now() + timedelta(days=7)


async def test_a_payload_is_copied_as_it_is(shell: Shell) -> None:
    payloads = [None, "", "$x", [], {"$set": 1}, {"a.b": {"$gt": 1}}]
    queue = await _processed(shell, payloads)
    assert (await queue.replay(to="next")).pushed == len(payloads)
    assert await _drained(shell, "next") == payloads


@pytest.mark.parametrize("page", [5])
async def test_items_of_many_kinds_are_copied_each_as_it_was(shell: Shell, page: int) -> None:
    queue = shell.queue(history=3600)
    payloads: list[Any] = [{"n": 1}, {}, {"text": "x" * 5_000, "of": {"many": [1, {"n": 2}]}}, 7, None, ["a"], {"n": 2}]
    for payload in payloads:
        for options in ({}, {"priority": 5}, {"priority": -3, "headers": {"source": "web"}}):
            await queue.push(payload, **options)
    for run in range(2):
        for place, item in enumerate(await queue.reserve_many(100)):
            await (queue.rollback(item) if run == 0 and place % 3 else queue.commit(item))
    assert (await queue.replay(to="next", page=page)).pushed == 3 * len(payloads)
    originals = {each["_id"]: each for each in shell.raw.find({"q": "orders"})}
    assert {each["attempts"] for each in originals.values()} == {1, 2}
    for copy in shell.raw.find({"q": "next"}):
        original = originals.pop(copy["origin"]["id"])
        fields = {name: original.get(name) for name in ("payload", "priority", "headers")}
        assert {name: copy.get(name) for name in fields} == fields
        assert (copy["attempts"], copy["reserved"], copy["replayed"]) == (0, False, "orders")
        assert (copy["origin"]["queue"], copy["origin"]["attempts"]) == ("orders", original["attempts"])
    assert not originals


@pytest.mark.every_shell
async def test_the_same_replay_sent_twice_pushes_each_once(shell: Shell) -> None:
    queue = await _processed(shell, range(10))
    await queue.replay(to="next")
    again = await queue.replay(to="next")
    assert (again.found, again.pushed, again.already) == (10, 0, 10)
    assert len(await _drained(shell, "next")) == 10
    shell.clock.advance(timedelta(minutes=30))
    once_more = await queue.replay(to="next", page=3)
    assert (once_more.pushed, once_more.already) == (0, 10)
    assert await shell.queue("next").size() == 0


async def test_another_label_and_another_target_are_another_replay(shell: Shell) -> None:
    queue = await _processed(shell, range(3))
    for options in ({"to": "a"}, {"to": "b"}, {"to": "a", "label": "second"}, {"label": ""}):
        assert (await queue.replay(**options)).pushed == 3
    assert await shell.queue("a").size() == 6


async def test_a_replay_into_the_same_queue_never_meets_its_copies(shell: Shell) -> None:
    queue = await _processed(shell, range(10))

    async def worked() -> list[Any]:
        return [item.payload for _ in range(30) if (item := await queue.pop()) is not None]

    assert (await queue.replay(page=2)).pushed == 10
    shell.clock.advance(1)
    assert await worked() == list(range(10))
    shell.clock.advance(1)
    again = await queue.replay()
    assert (again.found, again.pushed, again.already) == (10, 0, 10)
    second = await queue.replay(label="second")
    assert (second.found, second.pushed) == (10, 10)
    copy = (await queue.peek(20, state="processed"))[-1]
    assert copy.origin.reason == "replayed"
    assert (await queue.replay(ids=[copy.id])).pushed == 1


async def test_a_range_a_filter_and_a_limit_select(shell: Shell) -> None:
    start = shell.clock.now()
    queue = await _processed(shell, [{"n": n} for n in range(10)])
    at = [start + timedelta(seconds=n) for n in range(10)]
    selections: list[tuple[Any, list[int]]] = [
        ({"since": at[3], "until": at[6]}, [3, 4, 5]),
        ({"since": at[8]}, [8, 9]),
        ({"until": at[2]}, [0, 1]),
        ({"where": {"n": {"$in": [1, 5]}}}, [1, 5]),
        ({"where": {"n": {"$gt": 1}}, "limit": 3, "page": 2}, [2, 3, 4]),
        ({"since": at[9] + timedelta(hours=1)}, []),
        ({"where": {"n": 77}}, []),
    ]
    for place, (options, expected) in enumerate(selections):
        result = await queue.replay(to=f"next{place}", **options)
        assert (result.found, result.pushed) == (len(expected), len(expected))
        assert [payload["n"] for payload in await _drained(shell, f"next{place}")] == expected


@pytest.mark.parametrize("limit", [3])
async def test_replays_that_are_limited_go_on_one_behind_the_other(shell: Shell, limit: int) -> None:
    """Though many items were processed at the same moment, and some after it."""
    queue = shell.queue(history=3600)
    await queue.push_many(range(8))
    await queue.commit_many(await queue.reserve_many(8))
    shell.clock.advance(1)
    await queue.push_many(range(8, 10))
    await queue.commit_many(await queue.reserve_many(2))
    counts, position = [], None
    for _ in range(11):
        result = await queue.replay(to="next", limit=limit, after=position)
        counts.append(result.found)
        position = result.position or position
    assert (sum(counts), max(counts), counts[-1]) == (10, limit, 0)
    assert await _drained(shell, "next") == list(range(10))


async def test_items_are_chosen_by_id(shell: Shell) -> None:
    queue = await _processed(shell, range(10))
    await _processed(shell, ["other"], name="other")
    ids_in_history = [item.id async for item in queue.history()]
    foreign = (await shell.queue("other").peek(1, state="processed"))[0].id
    live, unknown = await queue.push("live", delay=60), ObjectId()
    await shell.queue("stubs").push("stub", id=(stub := ObjectId()))
    await shell.queue("stubs").pop()
    ids = [ids_in_history[7], live, ids_in_history[2], unknown, ids_in_history[5], ids_in_history[2], foreign, stub]
    result = await queue.replay(to="next", ids=iter(ids), page=2)
    assert (result.found, result.pushed, set(result.missing)) == (3, 3, {live, unknown, foreign, stub})
    assert await _drained(shell, "next") == [2, 5, 7]
    assert await queue.replay(to="next", ids=[]) == mongoq.Replayed()


async def test_a_transform_makes_the_payload_of_the_copy(shell: Shell) -> None:
    queue = await _processed(shell, [{"n": n} for n in range(6)])

    def doubled(payload: Any, item: mongoq.Item[Any]) -> Any:
        assert item.payload == payload
        assert item.processed is not None
        return mongoq.SKIP if payload["n"] % 2 else {"n": payload["n"] * 2}

    result = await queue.replay(to="next", transform=doubled)
    assert (result.found, result.pushed, result.skipped) == (6, 3, 3)
    assert await _drained(shell, "next") == [{"n": 0}, {"n": 4}, {"n": 8}]
    assert [item.payload["n"] async for item in queue.history()] == list(range(6))


async def test_a_transform_that_returns_nothing_is_an_error(shell: Shell) -> None:
    queue = await _processed(shell, range(3))
    with pytest.raises(mongoq.ArgumentInvalid, match="mongoq.SKIP") as caught:
        await queue.replay(to="next", transform=lambda payload, item: None)
    assert caught.value.argument == "transform"
    assert await shell.queue("next").size() == 0


async def test_what_callbacks_raise_ends_the_replay_and_sent_again_it_completes(shell: Shell) -> None:
    queue = await _processed(shell, range(10))

    def failing(payload: int, item: Any) -> int:
        if payload == 7:
            raise mongoq.PayloadInvalid("payload", "mine")
        return payload

    def interrupted(result: mongoq.Replayed) -> None:
        if result.found >= 4:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        await queue.replay(to="next", progress=interrupted, page=2)
    assert await shell.queue("next").size() == 4
    reports: list[mongoq.Replayed] = []
    with pytest.raises(mongoq.PayloadInvalid, match="mine"):
        await queue.replay(to="next", transform=failing, page=2, progress=reports.append)
    assert [step.found for step in reports] == [2, 4, 6]
    assert await shell.queue("next").size() == 6
    assert await _drained(shell, "next") == list(range(6))
    result = await queue.replay(to="next", page=2)
    assert (result.found, result.pushed, result.already) == (10, 4, 6)
    assert await _drained(shell, "next") == [6, 7, 8, 9]


async def test_a_dry_run_counts_and_writes_nothing(shell: Shell) -> None:
    queue = await _processed(shell, range(6))
    await queue.replay(to="next", limit=2)
    before = list(shell.raw.find())
    typed = shell.queue("next", model=int, history=77)
    result = await queue.replay(
        to=typed, dry_run=True, transform=lambda payload, item: "x" if payload == 5 else payload
    )
    assert (result.found, result.pushed, result.already, result.refused) == (6, 3, 2, 1)
    assert list(shell.raw.find()) == before


class Order(BaseModel):
    n: int


async def test_what_the_model_of_the_target_refuses_is_reported_and_the_rest_goes_on(shell: Shell) -> None:
    queue = await _processed(shell, [{"n": 1}, {"n": "x"}, {"n": "3"}])
    bad = [item.id async for item in queue.history()][1]
    result = await queue.replay(to=shell.queue("next", model=Order))
    assert (result.found, result.pushed, result.refused) == (3, 2, 1)
    ((id, reason),) = result.refusals
    assert id == bad
    assert "n: Input should be a valid integer" in reason
    assert await _drained(shell, "next") == [{"n": 1}, {"n": "3"}]


async def test_a_transform_gets_and_gives_typed_payloads(shell: Shell) -> None:
    await _processed(shell, [{"n": 1}, {"n": "x"}])
    typed = shell.queue(model=Order)
    result = await typed.replay(to=shell.queue("next", model=Order), transform=lambda order, item: Order(n=order.n + 1))
    assert (result.pushed, result.refused) == (1, 1)
    result = await typed.replay(to=shell.queue("numbers", model=int), transform=lambda order, item: "?")
    assert (result.pushed, result.refused) == (0, 2)
    assert await _drained(shell, "next") == [{"n": 2}]


async def test_copies_can_be_put_off_and_ranked(shell: Shell) -> None:
    queue = await _processed(shell, range(3), priority=5)
    await queue.replay(to="next", delay=60, priority=-3)
    items = await shell.queue("next").peek(5, state="scheduled")
    assert [(item.payload, item.priority) for item in items] == [(0, -3), (1, -3), (2, -3)]
    assert {item.due for item in items} == {shell.clock.now() + timedelta(seconds=60)}


AWARE = datetime(2024, 1, 1, tzinfo=UTC)


async def _awaited(result: mongoq.Replayed) -> None:
    pass


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"to": 5}, "to"),
    ({"to": "$x"}, "to"),
    ({"ids": "65920080aaaaaaaaaaaaaaaa"}, "ids"),
    ({"ids": [ObjectId(), "x"]}, "ids[1]"),
    ({"ids": [ObjectId()], "since": AWARE}, "since"),
    ({"ids": [ObjectId()], "until": AWARE}, "until"),
    ({"ids": [], "where": {"a": 1}}, "where"),
    ({"since": datetime(2024, 1, 1)}, "since"),
    ({"until": "now"}, "until"),
    ({"since": AWARE, "until": AWARE - timedelta(seconds=1)}, "until"),
    ({"where": {"a": {"$function": {}}}}, "where.a"),
    ({"where": {}}, "where"),
    ({"after": (AWARE,)}, "after"),
    ({"after": "ab"}, "after"),
    ({"after": ("a", "b")}, "after[0]"),
    ({"after": (datetime(2024, 1, 1), ObjectId())}, "after[0]"),
    ({"after": (AWARE, 2**70)}, "after[1]"),
    ({"after": (AWARE, object())}, "after[1]"),
    ({"after": (AWARE, [1])}, "after[1]"),
    ({"after": (AWARE, ObjectId()), "since": AWARE}, "after"),
    ({"after": (AWARE, ObjectId()), "ids": [ObjectId()]}, "after"),
    ({"limit": 0}, "limit"),
    ({"limit": 1.5}, "limit"),
    ({"label": None}, "label"),
    ({"label": "x" * 101}, "label"),
    ({"transform": 5}, "transform"),
    ({"transform": _awaited}, "transform"),
    ({"progress": "print"}, "progress"),
    ({"progress": _awaited}, "progress"),
    ({"delay": -1}, "delay"),
    ({"priority": 101}, "priority"),
    ({"once": 0}, "once"),
    ({"rate": 0}, "rate"),
    ({"rate": float("nan")}, "rate"),
    ({"rate": "fast"}, "rate"),
    ({"dry_run": 1}, "dry_run"),
    ({"page": 0}, "page"),
]


async def test_bad_input_is_refused_by_name_and_nothing_is_written(shell: Shell) -> None:
    queue = await _processed(shell, range(3))
    before = list(shell.raw.find())
    for options, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await queue.replay(**{"to": "next", **options})
        assert caught.value.argument == argument, options
    assert list(shell.raw.find()) == before


@pytest.mark.every_shell("motor")
async def test_what_no_server_takes_is_refused_and_the_rest_goes_on(shell: Shell) -> None:
    queue = await _processed(shell, ["first", "last"])
    then, uuid = shell.clock.now() - timedelta(seconds=1), uuid4()
    filled = {"_id": ObjectId(), "q": "orders", "processed": then, "payload": "x" * (16 * 1024 * 1024 - 200)}
    shell.raw.insert_one(filled)
    shell.raw.insert_one({"_id": Binary.from_uuid(uuid), "q": "orders", "processed": then, "payload": "odd id"})
    result = await queue.replay(to="next")
    assert (result.found, result.pushed, result.refused) == (4, 3, 1)
    assert result.refusals[0][0] == filled["_id"]
    assert "bytes" in result.refusals[0][1]
    assert sorted(await _drained(shell, "next")) == ["first", "last", "odd id"]
