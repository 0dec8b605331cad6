"""Group commit: callers share commands, and each gets the exact outcome of its own part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient
from pydantic import BaseModel, field_validator
from pymongo.errors import OperationFailure

import mongoq
from tests.integration.commands import Commands, failing
from tests.integration.concurrent_callers import CALLERS, ConcurrentCallers, calls, failures
from tests.proxy import Proxy

TASKS = pytest.mark.parametrize("callers", ["aio"], indirect=True)
"""For what threads cannot do: to start at once, or in an order."""
ALL = pytest.mark.parametrize("callers", ["aio", "motor", "threads"], indirect=True)
CROWD = 96
"""Twice as many callers as it takes for two batches under way."""


async def test_every_caller_gets_its_own_answer_and_few_commands_are_sent(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue()
    await callers.call(lambda: queue.push("first"))
    ids = await callers.together(calls(queue.push, range(CALLERS)))
    assert {document["_id"]: document["payload"] for document in raw.find({"payload": {"$type": "number"}})} == dict(
        zip(ids, range(CALLERS), strict=True)
    )
    items = await callers.together([queue.reserve] * CALLERS)
    assert len({item.id for item in items}) == CALLERS
    assert raw.count_documents({"reserved": True, "attempts": 1}) == CALLERS
    assert await callers.together(calls(queue.commit, items)) == [None] * CALLERS
    assert [(await callers.call(queue.reserve)).attempts, raw.count_documents({"q": "orders"})] == [1, 1]
    assert max(callers.commands[name] for name in ("insert", "delete", "findAndModify")) < CALLERS


async def test_callers_who_come_at_once_share_one_command(callers: ConcurrentCallers) -> None:
    if callers.kind == "threads":
        pytest.skip("threads do not start at once")
    queue = callers.queue()
    await callers.together(calls(queue.push, range(2)))
    callers.commands.clear()
    await callers.together(calls(queue.push, range(CALLERS)))
    items = await callers.together([queue.reserve] * CALLERS)
    await callers.together(calls(queue.extend, items))
    await callers.together(calls(queue.rollback, items, error="again"))
    finds = callers.commands.pop("find")  # of ids, of what was claimed, and of the settings, read again after a second
    assert callers.commands == {"insert": 1, "update": 3}
    assert finds < 10


async def test_what_was_claimed_together_is_given_back_when_the_calls_fail_later(
    callers: ConcurrentCallers, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = callers.queue()
    await callers.together(calls(queue.push, range(CALLERS)))
    monkeypatch.setattr(QueueContext, "decode_payload", lambda context, item: 1 / 0)
    results = await callers.together([queue.reserve] * CALLERS)
    assert [type(error) for error in results] == [ZeroDivisionError] * CALLERS
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == CALLERS


async def test_one_bad_payload_among_a_hundred_fails_alone(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue()
    payloads: list[Any] = [*range(60), object(), *range(60, 99)]
    results = await callers.together(calls(queue.push, payloads))
    (error,) = failures(results)
    assert isinstance(error, mongoq.PayloadInvalid)
    assert results[60] is error
    assert raw.count_documents({"q": "orders"}) == 99


async def test_one_document_that_the_server_refuses_fails_alone(
    callers: ConcurrentCallers, client: Any, raw: Any
) -> None:
    queue = callers.queue()
    await callers.call(lambda: queue.push("ok"))
    client[raw.database.name].command("collMod", raw.name, validator={"payload": {"$ne": "bad"}})
    results = await callers.together(calls(queue.push, ["ok"] * 10 + ["bad"] + ["ok"] * 10))
    (error,) = failures(results)
    assert error.code == 121
    assert results[10] is error
    assert raw.count_documents({"payload": "ok"}) == 21


async def test_the_same_id_pushed_by_several_at_once_is_one_item(callers: ConcurrentCallers, raw: Any) -> None:
    queue, id = callers.queue(), ObjectId()
    results = await callers.together(calls(queue.push, range(10), id=id))
    assert results == [id] * 10
    assert raw.count_documents({"q": "orders"}) == 1


@pytest.mark.parametrize("history", [None, 60])
@pytest.mark.parametrize("operation", ["commit", "rollback", "extend", "move"])
async def test_a_lost_reservation_is_raised_by_its_caller_alone(
    callers: ConcurrentCallers, raw: Any, operation: str, history: float | None
) -> None:
    queue = callers.queue(history=history)
    await callers.together(calls(queue.push, range(20)))
    items = await callers.together([queue.reserve] * 20)
    stolen = {item.id for item in items[3:6]}
    raw.update_many({"_id": {"$in": list(stolen)}}, {"$set": {"token": ObjectId(), "by": "thief"}})
    method = getattr(queue, operation)
    results = await callers.together(
        calls(lambda item: method(item, *(["next"] if operation == "move" else [])), items)
    )
    lost_ids = [
        item.id for item, error in zip(items, results, strict=True) if isinstance(error, mongoq.ReservationLost)
    ]
    assert set(lost_ids) == stolen
    assert [error.held_by for error in failures(results)] == ["thief"] * 3
    assert raw.count_documents({"_id": {"$in": list(stolen)}, "by": "thief", "q": "orders"}) == 3


@pytest.mark.parametrize("history", [None, 60])
async def test_an_item_that_two_callers_settle_is_settled_once(
    callers: ConcurrentCallers, raw: Any, history: float | None
) -> None:
    queue = callers.queue(history=history)
    await callers.together(calls(queue.push, range(5)))
    items = await callers.together([queue.reserve] * 5)
    results = await callers.together(calls(queue.commit, [*items, *items]))
    errors = failures(results)
    assert {type(error) for error in errors} == {mongoq.ReservationLost}
    # of deletes the server tells only how many there were, so for callers who did commit this may be uncertain
    assert len(errors) == 5 or (history is None and not all(error.certain for error in errors))
    assert raw.count_documents({"q": "orders", "when": {"$exists": True}}) == 0


async def test_what_differs_between_callers_is_kept_apart(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue(max_retries=0)
    await callers.together(calls(queue.push, range(6)))
    leases = [100, 200, 100, 300, 200, 100]
    items = await callers.together([lambda lease=lease: queue.reserve(lease=lease) for lease in leases])
    actual = [round((item.lease_until - item.due).total_seconds(), -2) for item in items]
    assert actual == leases
    results = await callers.together(
        [
            lambda: queue.extend(items[0], lease=600),
            lambda: queue.extend(items[1], lease=900),
            lambda: queue.rollback(items[2], error="spent"),
            lambda: queue.move(items[3], "next", payload={"new": 1}),
            lambda: queue.move(items[4], "other"),
            lambda: queue.commit(items[5]),
        ]
    )
    assert failures(results) == []
    assert round((results[1].lease_until - results[0].lease_until).total_seconds()) == 300
    documents = {document["_id"]: document for document in raw.find({"q": {"$exists": True}})}
    assert [documents[item.id]["q"] if item.id in documents else None for item in items] == [
        "orders",
        "orders",
        "orders.dead",
        "next",
        "other",
        None,
    ]
    assert documents[items[2].id]["origin"]["reason"] == "failed, no retries allowed"
    assert documents[items[3].id]["payload"] == {"new": 1}


async def test_a_move_to_a_typed_queue_is_checked_for_each_caller(callers: ConcurrentCallers, raw: Any) -> None:
    queue, typed = callers.queue(), callers.broker.queue("numbers", model=int)
    await callers.together(calls(queue.push, range(3)))
    items = await callers.together([queue.reserve] * 3)
    moves = [lambda i=i: queue.move(items[i], typed, payload=[7, "seven", 8][i]) for i in range(3)]
    results = await callers.together(moves)
    assert [type(error) for error in failures(results)] == [mongoq.PayloadInvalid]
    assert sorted(document["payload"] for document in raw.find({"q": "numbers"})) == [7, 8]


async def test_blocks_whose_items_came_together_end_each_for_itself(callers: ConcurrentCallers, raw: Any) -> None:
    if callers.kind == "threads":
        pytest.skip("blocks are entered one after the other here")
    queue = callers.queue()
    await callers.together(calls(queue.push, range(12)))

    async def block(n: int) -> None:
        async with queue.reserved() as item:
            await asyncio.sleep(0.01 * (n % 3))
            if n % 2:
                raise ValueError(item.payload)

    results = await asyncio.gather(*(block(n) for n in range(12)), return_exceptions=True)
    assert [type(error) for error in failures(results)] == [ValueError] * 6
    assert raw.count_documents({"q": "orders", "error.type": "ValueError", "reserved": False}) == 6
    assert raw.count_documents({"q": "orders"}) == 6


async def test_what_is_pushed_at_once_stands_in_the_order_of_the_calls(callers: ConcurrentCallers) -> None:
    if callers.kind == "threads":
        pytest.skip("threads call in any order")
    queue = callers.queue()
    await queue.push("first of all")
    await queue.pop()
    ways: list[Callable[[int], Any]] = [
        queue.push,
        lambda n: queue.push(n, headers={"n": n}),
        lambda n: queue.push(n, delay=0),
        lambda n: queue.push(n, key=str(n)),
        lambda n: queue.push_many([n]),
    ]
    await asyncio.gather(*(ways[n % 7 % 5](n) for n in range(60)))
    assert [item.payload for item in await queue.peek(60)] == list(range(60))


async def test_the_order_of_one_callers_pushes_is_kept(callers: ConcurrentCallers) -> None:
    queue = callers.queue()

    if callers.kind == "threads":

        def push_some(who: int) -> None:
            for n in range(10):
                queue.push([who, n])
    else:

        async def push_some(who: int) -> None:
            for n in range(10):
                await queue.push([who, n])

    await callers.together(calls(push_some, range(8)))
    claimed = [await callers.call(queue.pop) for _ in range(80)]
    for who in range(8):
        assert [item.payload[1] for item in claimed if item.payload[0] == who] == list(range(10))


async def test_a_queue_with_too_few_items_gives_the_others_none(callers: ConcurrentCallers) -> None:
    queue = callers.queue()
    await callers.together(calls(queue.push, range(7)))
    results = await callers.together([queue.reserve] * CALLERS)
    assert sum(item is not None for item in results) == 7
    assert failures(results) == []


async def test_what_is_part_of_a_transaction_goes_by_itself(callers: ConcurrentCallers, raw: Any) -> None:
    if callers.kind == "threads":
        pytest.skip("the same flows; a block cannot be shared among threads")
    queue = callers.queue()
    await queue.push("before")

    async def within(n: int) -> None:
        async with callers.broker.transaction() as transaction:
            await queue.push(n, session=transaction.session)
            if n % 2:
                raise ValueError

    results = await asyncio.gather(
        *(within(n) for n in range(6)), *(queue.push(n) for n in range(10, 16)), return_exceptions=True
    )
    assert [type(error) for error in failures(results)] == [ValueError] * 3
    assert sorted(document["payload"] for document in raw.find({"payload": {"$type": "number"}})) == [
        0,
        2,
        4,
        *range(10, 16),
    ]


