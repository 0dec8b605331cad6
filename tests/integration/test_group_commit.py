"""Group commit: callers share commands, and each gets the exact outcome of its own part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel, model_validator
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

import mongoq
from tests.integration.commands import Commands, failing
from tests.integration.concurrent_callers import CALLERS, ConcurrentCallers, calls, failures
from tests.waiting import until

ALL = pytest.mark.parametrize("callers", ["aio", "motor", "threads"], indirect=True)
TASKS = pytest.mark.parametrize("callers", ["aio"], indirect=True)
"""For what threads cannot do: start at once, and in an order."""


@ALL
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
    results = await callers.together([queue.reserve] * CALLERS)  # too few items give the others none
    assert [item.attempts for item in results if item is not None] == [1]
    assert raw.count_documents({"q": "orders"}) == 1
    assert max(callers.commands.names().count(name) for name in ("insert", "delete", "findAndModify")) < CALLERS


@TASKS
async def test_callers_who_come_at_once_share_one_command(callers: ConcurrentCallers) -> None:
    queue = callers.queue()
    await callers.together(calls(queue.push, range(2)))
    callers.commands.sent.clear()
    await callers.together(calls(queue.push, range(CALLERS)))
    assert callers.commands.names().count("insert") == 1
    items = await callers.together([queue.reserve] * CALLERS)
    await callers.together(calls(queue.extend, items))
    await callers.together(calls(queue.rollback, items, error="again"))
    updates = [command for command in callers.commands.sent if "update" in command]
    assert sum("token" in str(command) for command in updates) == 3  # and one may be of counters


@TASKS
async def test_without_group_commit_each_caller_sends_its_own_command(
    callers: ConcurrentCallers, uri: str, database: str
) -> None:
    commands = Commands()
    async with (
        AsyncMongoClient[Any](uri, event_listeners=[commands]) as client,
        mongoq.AsyncBroker(client[database]["mongoq"], group_commit=False) as broker,
    ):
        await asyncio.gather(*(broker.queue("orders").push(n) for n in range(10)))
        assert commands.names().count("insert") == 10
        with pytest.raises(mongoq.ArgumentInvalid, match="group_commit"):
            mongoq.AsyncBroker(client[database]["mongoq"], group_commit="yes")  # type: ignore[arg-type]


class Stop(BaseException):
    """Ends a call, as an interrupt does."""


class Stopping(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def stop(cls, value: Any) -> Any:
        raise Stop


async def test_what_was_claimed_together_is_given_back_when_the_calls_fail_later(
    callers: ConcurrentCallers, raw: Any
) -> None:
    await callers.together(calls(callers.queue().push, range(10)))
    results = await callers.together([callers.queue(model=Stopping).reserve] * 10)
    assert [type(error) for error in results] == [Stop] * 10
    free = {"q": "orders", "reserved": False, "attempts": 0}
    await asyncio.to_thread(until, lambda: raw.count_documents(free) == 10)


async def test_what_cannot_be_pushed_fails_alone(callers: ConcurrentCallers, client: Any, raw: Any) -> None:
    """A payload that cannot be stored, and a document that the server refuses."""
    queue = callers.queue()
    await callers.call(lambda: queue.push("ok"))
    client[raw.database.name].command("collMod", raw.name, validator={"payload": {"$ne": "bad"}})
    results = await callers.together(calls(queue.push, ["ok"] * 10 + ["bad"] + ["ok"] * 10 + [object()]))
    assert [type(error) for error in failures(results)] == [type(results[10]), mongoq.PayloadInvalid]
    assert (results[10].code, type(results[21])) == (121, mongoq.PayloadInvalid)
    assert raw.count_documents({"payload": "ok"}) == 21


async def test_each_push_keeps_its_options_and_is_counted(callers: ConcurrentCallers, client: Any, raw: Any) -> None:
    queue = callers.queue()
    await callers.call(lambda: queue.push(-1))
    client[raw.database.name].command("collMod", raw.name, validator={"payload": {"$ne": 7}})
    headers = [{"n": n} if n % 4 else None for n in range(20)]
    options = [{"priority": n % 3, "headers": headers[n], "delay": 60 * (n % 2)} for n in range(20)]
    results = await callers.together([lambda n=n: queue.push(n, **options[n]) for n in range(20)])
    assert [results.index(error) for error in failures(results)] == [7]
    for document in raw.find({"payload": {"$gte": 0}}):
        n = document["payload"]
        assert (document["priority"], document.get("headers")) == (n % 3, headers[n])
    assert await callers.call(lambda: queue.size("scheduled")) == 9
    counted = await callers.call(callers.broker.stats)
    assert counted["orders"].put == 20


async def test_the_same_id_pushed_by_several_at_once_is_one_item(callers: ConcurrentCallers, raw: Any) -> None:
    queue, id = callers.queue(), ObjectId()
    results = await callers.together(calls(queue.push, range(10), id=id))
    assert results == [id] * 10
    assert raw.count_documents({"q": "orders"}) == 1


@pytest.mark.parametrize(
    ("operation", "history"), [("commit", None), ("commit", 60), ("rollback", None), ("extend", None), ("move", None)]
)
async def test_a_lost_reservation_is_raised_by_its_caller_alone(
    callers: ConcurrentCallers, raw: Any, operation: str, history: float | None
) -> None:
    queue = callers.queue(history=history)
    await callers.together(calls(queue.push, range(12)))
    items = await callers.together([queue.reserve] * 12)
    stolen = {item.id for item in items[3:6]}
    raw.update_many({"_id": {"$in": list(stolen)}}, {"$set": {"token": ObjectId(), "by": "thief"}})
    method, further = getattr(queue, operation), ["next"] if operation == "move" else []
    results = await callers.together(calls(lambda item: method(item, *further), items))
    lost = [item.id for item, error in zip(items, results, strict=True) if isinstance(error, mongoq.ReservationLost)]
    assert set(lost) == stolen
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
    # of deletes, and of commits within one millisecond, the server tells only how many there were: some stay uncertain
    assert len(errors) == 5 or not all(error.certain for error in errors)
    assert sum(error.certain for error in errors) <= 5, "a caller that has settled its item is not told that it lost it"
    assert raw.count_documents({"q": "orders", "when": {"$exists": True}}) == 0


async def test_what_differs_between_callers_is_kept_apart(callers: ConcurrentCallers, raw: Any) -> None:
    queue, typed = callers.queue(max_retries=0), callers.broker.queue("numbers", model=int)
    await callers.together(calls(queue.push, range(8)))
    leases = [100, 200, 100, 300, 200, 100, 100, 100]
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
            lambda: queue.move(items[6], typed, payload="seven"),
            lambda: queue.move(items[7], typed, payload=7),
        ]
    )
    assert [type(error) for error in failures(results)] == [mongoq.PayloadInvalid]
    assert round((results[1].lease_until - results[0].lease_until).total_seconds(), -2) == 300
    documents = {document["_id"]: document for document in raw.find({"q": {"$exists": True}})}
    queues = [documents[item.id]["q"] if item.id in documents else None for item in items]
    assert queues == ["orders", "orders", "orders.dead", "next", "other", None, "orders", "numbers"]
    assert documents[items[2].id]["origin"]["reason"] == "failed, no retries allowed"
    assert [documents[items[place].id]["payload"] for place in (3, 7)] == [{"new": 1}, 7]


@TASKS
async def test_blocks_whose_items_came_together_end_each_for_itself(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue()
    await callers.together(calls(queue.push, range(12)))

    async def block(n: int) -> None:
        async with queue.reserved() as item:
            if n % 2:
                raise ValueError(item.payload)

    results = await asyncio.gather(*(block(n) for n in range(12)), return_exceptions=True)
    assert [type(error) for error in failures(results)] == [ValueError] * 6
    assert raw.count_documents({"q": "orders", "error.type": "ValueError", "reserved": False}) == 6
    assert raw.count_documents({"q": "orders"}) == 6


@TASKS
async def test_what_is_pushed_at_once_stands_in_the_order_of_the_calls(callers: ConcurrentCallers) -> None:
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

    async def push_some(who: int) -> None:
        for n in range(5):
            await queue.push([who, n])

    def push_some_in_a_thread(who: int) -> None:
        for n in range(5):
            queue.push([who, n])

    await callers.together(calls(push_some_in_a_thread if callers.kind == "threads" else push_some, range(8)))
    pushed = [item.payload for item in await callers.call(lambda: queue.peek(40))]
    for who in range(8):
        assert [payload[1] for payload in pushed if payload[0] == who] == list(range(5))


@TASKS
async def test_what_is_part_of_a_transaction_goes_by_itself(callers: ConcurrentCallers, raw: Any) -> None:
    queue = callers.queue()
    await queue.push("before")

    async def within(n: int) -> None:
        async with callers.broker.transaction() as transaction:
            await queue.push(n, session=transaction.session)
            if n % 2:
                raise ValueError

    transactions, pushes = [within(n) for n in range(4)], [queue.push(n) for n in range(10, 16)]
    results = await asyncio.gather(*transactions, *pushes, return_exceptions=True)
    assert [type(error) for error in failures(results)] == [ValueError] * 2
    found = raw.find({"payload": {"$type": "number"}}).sort("payload")
    assert [document["payload"] for document in found] == [0, 2, *range(10, 16)]


async def test_a_claim_that_fails_keeps_no_item_from_the_next_one(
    listened: tuple[mongoq.AsyncBroker, Commands], client: Any, database: str
) -> None:
    queue = listened[0].queue("orders")
    await queue.push_many(range(CALLERS))
    with failing(client, "update", errorCode=13, appName=database):
        results = await asyncio.gather(*(queue.reserve() for _ in range(CALLERS)), return_exceptions=True)
    errors = failures(results)
    assert {type(error) for error in errors} == {OperationFailure}
    assert len({id(error) for error in errors}) == len(errors)
    items = [result for result in results if isinstance(result, mongoq.Item)]
    rest = [await queue.reserve() for _ in errors]
    assert sorted(item.payload for item in [*items, *rest]) == list(range(CALLERS))  # type: ignore[union-attr]
    assert await queue.reserve() is None
