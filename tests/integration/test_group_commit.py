"""Group commit: callers share commands, and each is told exactly what became of its own part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bson import ObjectId
from pymongo.monitoring import CommandStartedEvent, CommandSucceededEvent

import mongoq
from mongoq.protocol.state.batcher import CROWD
from mongoq.protocol.state.context import QueueContext
from tests.clients import opened
from tests.integration.crowds import CALLERS, Crowd, Listener, calls, failures


async def test_every_caller_gets_its_own_answer_and_few_commands_are_sent(crowd: Crowd, raw: Any) -> None:
    queue = crowd.queue()
    await crowd.one(lambda: queue.push("first"))
    ids = await crowd.together(calls(queue.push, range(CALLERS)))
    assert {document["_id"]: document["payload"] for document in raw.find({"payload": {"$type": "number"}})} == dict(
        zip(ids, range(CALLERS), strict=True)
    )
    items = await crowd.together([queue.reserve] * CALLERS)
    assert len({item.id for item in items}) == CALLERS
    assert raw.count_documents({"reserved": True, "attempts": 1}) == CALLERS
    assert await crowd.together(calls(queue.commit, items)) == [None] * CALLERS
    assert [(await crowd.one(queue.reserve)).attempts, raw.count_documents({"q": "orders"})] == [1, 1]
    assert max(crowd.commands[name] for name in ("insert", "delete", "findAndModify")) < CALLERS


async def test_callers_who_come_at_once_share_one_command(crowd: Crowd) -> None:
    if crowd.kind == "threads":
        pytest.skip("threads do not start at once")
    queue = crowd.queue()
    await crowd.together(calls(queue.push, range(2)))
    crowd.commands.clear()
    await crowd.together(calls(queue.push, range(CALLERS)))
    items = await crowd.together([queue.reserve] * CALLERS)
    await crowd.together(calls(queue.extend, items))
    await crowd.together(calls(queue.rollback, items, error="again"))
    finds = crowd.commands.pop("find")  # of ids, of what was claimed, and of the settings, read again after a second
    assert crowd.commands == {"insert": 1, "update": 3}
    assert finds < 10


async def test_what_was_claimed_together_is_given_back_when_the_calls_fail_later(
    crowd: Crowd, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = crowd.queue()
    await crowd.together(calls(queue.push, range(CALLERS)))
    monkeypatch.setattr(QueueContext, "decode_payload", lambda context, item: 1 / 0)
    told = await crowd.together([queue.reserve] * CALLERS)
    assert [type(error) for error in told] == [ZeroDivisionError] * CALLERS
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == CALLERS


async def test_one_bad_payload_among_a_hundred_fails_alone(crowd: Crowd, raw: Any) -> None:
    queue = crowd.queue()
    payloads: list[Any] = [*range(60), object(), *range(60, 99)]
    told = await crowd.together(calls(queue.push, payloads))
    (error,) = failures(told)
    assert isinstance(error, mongoq.PayloadInvalid)
    assert told[60] is error
    assert raw.count_documents({"q": "orders"}) == 99


async def test_one_document_that_the_server_refuses_fails_alone(crowd: Crowd, client: Any, raw: Any) -> None:
    queue = crowd.queue()
    await crowd.one(lambda: queue.push("ok"))
    client[raw.database.name].command("collMod", raw.name, validator={"payload": {"$ne": "bad"}})
    told = await crowd.together(calls(queue.push, ["ok"] * 10 + ["bad"] + ["ok"] * 10))
    (error,) = failures(told)
    assert error.code == 121
    assert told[10] is error
    assert raw.count_documents({"payload": "ok"}) == 21


async def test_the_same_id_pushed_by_several_at_once_is_one_item(crowd: Crowd, raw: Any) -> None:
    queue, id = crowd.queue(), ObjectId()
    told = await crowd.together(calls(queue.push, range(10), id=id))
    assert told == [id] * 10
    assert raw.count_documents({"q": "orders"}) == 1


@pytest.mark.parametrize("history", [None, 60])
@pytest.mark.parametrize("operation", ["commit", "rollback", "extend", "move"])
async def test_a_lost_reservation_is_told_to_its_caller_alone(
    crowd: Crowd, raw: Any, operation: str, history: float | None
) -> None:
    queue = crowd.queue(history=history)
    await crowd.together(calls(queue.push, range(20)))
    items = await crowd.together([queue.reserve] * 20)
    stolen = {item.id for item in items[3:6]}
    raw.update_many({"_id": {"$in": list(stolen)}}, {"$set": {"token": ObjectId(), "by": "thief"}})
    method = getattr(queue, operation)
    told = await crowd.together(calls(lambda item: method(item, *(["next"] if operation == "move" else [])), items))
    lost = [item.id for item, one in zip(items, told, strict=True) if isinstance(one, mongoq.ReservationLost)]
    assert set(lost) == stolen
    assert [one.held_by for one in failures(told)] == ["thief"] * 3
    assert raw.count_documents({"_id": {"$in": list(stolen)}, "by": "thief", "q": "orders"}) == 3


@pytest.mark.parametrize("history", [None, 60])
async def test_an_item_that_two_callers_settle_is_settled_once(crowd: Crowd, raw: Any, history: float | None) -> None:
    queue = crowd.queue(history=history)
    await crowd.together(calls(queue.push, range(5)))
    items = await crowd.together([queue.reserve] * 5)
    told = await crowd.together(calls(queue.commit, [*items, *items]))
    lost = failures(told)
    assert {type(one) for one in lost} == {mongoq.ReservationLost}
    # of deletes the server tells only how many there were, so some who did commit may be told that this is not certain
    assert len(lost) == 5 or (history is None and not all(one.certain for one in lost))
    assert raw.count_documents({"q": "orders", "when": {"$exists": True}}) == 0


async def test_what_differs_between_callers_is_kept_apart(crowd: Crowd, raw: Any) -> None:
    queue = crowd.queue(max_retries=0)
    await crowd.together(calls(queue.push, range(6)))
    leases = [100, 200, 100, 300, 200, 100]
    items = await crowd.together([lambda lease=lease: queue.reserve(lease=lease) for lease in leases])
    held = [round((item.lease_until - item.due).total_seconds(), -2) for item in items]
    assert held == leases
    told = await crowd.together(
        [
            lambda: queue.extend(items[0], lease=600),
            lambda: queue.extend(items[1], lease=900),
            lambda: queue.rollback(items[2], error="spent"),
            lambda: queue.move(items[3], "next", payload={"new": 1}),
            lambda: queue.move(items[4], "other"),
            lambda: queue.commit(items[5]),
        ]
    )
    assert failures(told) == []
    assert round((told[1].lease_until - told[0].lease_until).total_seconds()) == 300
    stored = {document["_id"]: document for document in raw.find({"q": {"$exists": True}})}
    assert [stored[item.id]["q"] if item.id in stored else None for item in items] == [
        "orders",
        "orders",
        "orders.dead",
        "next",
        "other",
        None,
    ]
    assert stored[items[2].id]["origin"]["reason"] == "failed, no retries allowed"
    assert stored[items[3].id]["payload"] == {"new": 1}


async def test_a_move_to_a_typed_queue_is_checked_for_each_caller(crowd: Crowd, raw: Any) -> None:
    queue, typed = crowd.queue(), crowd.broker.queue("numbers", model=int)
    await crowd.together(calls(queue.push, range(3)))
    items = await crowd.together([queue.reserve] * 3)
    moves = [lambda i=i: queue.move(items[i], typed, payload=[7, "seven", 8][i]) for i in range(3)]
    told = await crowd.together(moves)
    assert [type(one) for one in failures(told)] == [mongoq.PayloadInvalid]
    assert sorted(document["payload"] for document in raw.find({"q": "numbers"})) == [7, 8]


async def test_blocks_whose_items_came_together_end_each_for_itself(crowd: Crowd, raw: Any) -> None:
    if crowd.kind == "threads":
        pytest.skip("blocks are entered one after the other here")
    queue = crowd.queue()
    await crowd.together(calls(queue.push, range(12)))

    async def block(n: int) -> None:
        async with queue.reserved() as item:
            await asyncio.sleep(0.01 * (n % 3))
            if n % 2:
                raise ValueError(item.payload)

    told = await asyncio.gather(*(block(n) for n in range(12)), return_exceptions=True)
    assert [type(one) for one in failures(told)] == [ValueError] * 6
    assert raw.count_documents({"q": "orders", "error.type": "ValueError", "reserved": False}) == 6
    assert raw.count_documents({"q": "orders"}) == 6


async def test_what_is_pushed_at_once_stands_in_the_order_of_the_calls(crowd: Crowd) -> None:
    if crowd.kind == "threads":
        pytest.skip("threads call in any order")
    queue = crowd.queue()
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


async def test_the_order_of_one_callers_pushes_is_kept(crowd: Crowd) -> None:
    queue = crowd.queue()

    if crowd.kind == "threads":

        def push_some(who: int) -> None:
            for n in range(10):
                queue.push([who, n])
    else:

        async def push_some(who: int) -> None:
            for n in range(10):
                await queue.push([who, n])

    await crowd.together(calls(push_some, range(8)))
    claimed = [await crowd.one(queue.pop) for _ in range(80)]
    for who in range(8):
        assert [item.payload[1] for item in claimed if item.payload[0] == who] == list(range(10))


async def test_a_queue_with_too_few_items_gives_the_others_none(crowd: Crowd) -> None:
    queue = crowd.queue()
    await crowd.together(calls(queue.push, range(7)))
    told = await crowd.together([queue.reserve] * CALLERS)
    assert sum(item is not None for item in told) == 7
    assert failures(told) == []


async def test_what_is_part_of_a_transaction_goes_by_itself(crowd: Crowd, raw: Any) -> None:
    if crowd.kind == "threads":
        pytest.skip("the same flows; a block cannot be shared among threads")
    queue = crowd.queue()
    await queue.push("before")

    async def within(n: int) -> None:
        async with crowd.broker.transaction() as transaction:
            await queue.push(n, session=transaction.session)
            if n % 2:
                raise ValueError

    told = await asyncio.gather(
        *(within(n) for n in range(6)), *(queue.push(n) for n in range(10, 16)), return_exceptions=True
    )
    assert [type(one) for one in failures(told)] == [ValueError] * 3
    assert sorted(document["payload"] for document in raw.find({"payload": {"$type": "number"}})) == [
        0,
        2,
        4,
        *range(10, 16),
    ]


class Beside(Listener):
    """Also tells how many commands of one name were under way at a time, at most."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.under_way: set[int] = set()
        self.most = 0

    def started(self, event: CommandStartedEvent) -> None:
        super().started(event)
        if event.command_name == self.name:
            self.under_way.add(event.request_id)
            self.most = max(self.most, len(self.under_way))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.under_way.discard(event.request_id)


@contextmanager
def slow(client: Any, appname: str, command: str) -> Iterator[None]:
    """Hold up each such command of one application for a second."""
    data = {"failCommands": [command], "appName": appname, "blockConnection": True, "blockTimeMS": 1000}
    client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


async def test_pushes_of_a_crowd_have_two_batches_under_way(uri: str, client: Any, database: str, raw: Any) -> None:
    listener, callers = Beside("insert"), 2 * CROWD
    async with (
        opened("aio", uri, event_listeners=[listener], appname=database) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(callers)))  # which opens the connections
        listener.counts.clear()
        listener.most = 0
        with slow(client, database, "insert"):
            await asyncio.gather(*(queue.push(n) for n in range(callers)))
        assert (listener.counts["insert"], listener.most) == (2, 2)
        assert raw.count_documents({"q": "orders"}) == 2 * callers


async def test_claims_of_a_crowd_have_two_batches_under_way_which_take_different_items(
    uri: str, client: Any, database: str, raw: Any
) -> None:
    listener, callers = Beside("update"), 2 * CROWD
    async with (
        opened("aio", uri, event_listeners=[listener], appname=database) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        await queue.push_many(range(3 * callers))
        for item in await asyncio.gather(*(queue.reserve() for _ in range(callers))):  # which opens the connections
            await queue.commit(item)
        listener.counts.clear()
        listener.most = 0
        with slow(client, database, "update"):
            items = await asyncio.gather(*(queue.reserve() for _ in range(callers)))
        assert (listener.counts["update"], listener.most) == (2, 2)
        assert len({item.id for item in items}) == callers
        assert all(item.attempts == 1 for item in items)
        prefetch = broker.queue("orders")._context.state.prefetch
        assert not prefetch.closed_until > 0, "they met"
        assert not prefetch.claimed_keys
    assert raw.count_documents({"q": "orders", "reserved": True}) == callers


@pytest.mark.parametrize("code", [13, 50, 2])
async def test_a_claim_that_fails_keeps_no_item_from_the_next_one(
    uri: str, client: Any, database: str, code: int
) -> None:
    async with opened("aio", uri, appname=database) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(CALLERS))
        fails = {"failCommands": ["update"], "appName": database, "errorCode": code}
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=fails)
        try:
            told = await asyncio.gather(*(queue.reserve() for _ in range(CALLERS)), return_exceptions=True)
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
        taken = [one for one in told if isinstance(one, mongoq.Item)]
        rest = [await queue.reserve() for _ in range(CALLERS - len(taken))]
        assert sorted(item.payload for item in [*taken, *rest]) == list(range(CALLERS))
        assert not queue._context.state.prefetch.claimed_keys
        assert await queue.reserve() is None


async def test_without_group_commit_each_caller_sends_its_own_command(uri: str, database: str) -> None:
    listener = Listener()
    async with (
        opened("aio", uri, event_listeners=[listener]) as own,
        mongoq.AsyncBroker(own[database]["mongoq"], group_commit=False) as broker,
    ):
        queue = broker.queue("orders")
        await queue.push("first")
        listener.counts.clear()
        await asyncio.gather(*(queue.push(n) for n in range(10)))
        assert listener.counts["insert"] == 10


@pytest.mark.parametrize("wrong", [1, "yes", 0])
def test_group_commit_is_yes_or_no(client: Any, database: str, wrong: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="group_commit"):
        mongoq.Broker(client[database]["mongoq"], group_commit=wrong)
