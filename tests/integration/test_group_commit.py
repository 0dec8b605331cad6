"""Group commit: callers share commands, and each is told exactly what became of its own part."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq
from mongoq.drive.aio_lanes import AioLanes
from mongoq.embedded import EmbeddedServer
from mongoq.protocol.lane import CROWD
from tests.clients import opened
from tests.proxy import Proxy

CALLERS = 40


class Listener(CommandListener):
    """Counts the commands that a client sends, by their name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        self.counts[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


Call = Callable[[], Any]


@dataclass(frozen=True)
class Crowd:
    """A broker whose callers share commands, and a way to call it from many of them at once."""

    kind: str
    broker: Any
    commands: Counter[str]
    together: Callable[[Iterable[Call]], Awaitable[list[Any]]]

    def queue(self, **options: Any) -> Any:
        return self.broker.queue("orders", **options)

    async def one(self, call: Call) -> Any:
        """Call by itself; raise what it raises."""
        (told,) = await self.together([call])
        if isinstance(told, BaseException):
            raise told
        return told


async def _gathered(calls: Iterable[Call]) -> list[Any]:
    return await asyncio.gather(*(call() for call in calls), return_exceptions=True)


def _in_threads(pool: ThreadPoolExecutor) -> Callable[[Iterable[Call]], Awaitable[list[Any]]]:
    async def together(calls: Iterable[Call]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls), return_exceptions=True)

    return together


@pytest.fixture(params=["aio", "motor", "threads"])
async def crowd(request: pytest.FixtureRequest, uri: str, database: str) -> AsyncIterator[Crowd]:
    listener = Listener()
    if request.param == "threads":
        client: MongoClient[Any] = MongoClient(uri, event_listeners=[listener])
        with ThreadPoolExecutor(CALLERS) as pool:
            broker = mongoq.Broker(client[database]["mongoq"], group_commit=True)
            broker.ensure_indexes()
            yield Crowd("threads", broker, listener.counts, _in_threads(pool))
            broker.close()
        client.close()
        return
    async with (
        opened(request.param, uri, event_listeners=[listener]) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as shared,
    ):
        await shared.ensure_indexes()
        yield Crowd(request.param, shared, listener.counts, _gathered)


def failures(told: Iterable[Any]) -> list[Any]:
    return [one for one in told if isinstance(one, BaseException)]


def calls(method: Any, subjects: Iterable[Any], **options: Any) -> list[Call]:
    return [lambda subject=subject: method(subject, **options) for subject in subjects]


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
    assert stored[items[2].id]["origin"]["reason"] == "retries exhausted"
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
        *(within(n) for n in range(6)), *calls_now(queue.push, range(10, 16)), return_exceptions=True
    )
    assert [type(one) for one in failures(told)] == [ValueError] * 3
    assert sorted(document["payload"] for document in raw.find({"payload": {"$type": "number"}})) == [
        0,
        2,
        4,
        *range(10, 16),
    ]


def calls_now(method: Any, subjects: Iterable[Any]) -> list[Any]:
    return [method(subject) for subject in subjects]


async def test_a_caller_that_is_cancelled_leaves_its_item_to_the_next_one(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        for n in range(3):
            await queue.push(n)
        await queue.reserve()
        first = [asyncio.create_task(queue.reserve()) for _ in range(2)]
        await asyncio.sleep(0)  # they wait in the lane
        await asyncio.sleep(0)  # and their batch is under way
        heirs = [asyncio.create_task(queue.reserve()) for _ in range(2)]
        await asyncio.sleep(0)
        for task in first:
            task.cancel()
        items = await asyncio.gather(*heirs)
        assert sorted(item.payload for item in items) == [1, 2]
        assert raw.count_documents({"attempts": 1}) == 3


async def test_a_caller_cancelled_in_the_moment_its_item_comes_keeps_nothing(
    uri: str, database: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is there, and the task that waits for it has not run yet."""
    deliver = AioLanes._deliver

    def at_once(lanes: AioLanes, ticket: Any, told: Any) -> None:
        deliver(lanes, ticket, told)
        if isinstance(told, mongoq.Item):
            task.cancel()

    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push(1)
        monkeypatch.setattr(AioLanes, "_deliver", at_once)
        task = asyncio.create_task(queue.reserve())
        with pytest.raises(asyncio.CancelledError):
            await task
    assert raw.count_documents({"attempts": 0, "reserved": False}) == 1


CANCELLATIONS = 2_000


async def test_thousands_of_cancelled_calls_leave_nothing_reserved_and_lose_nothing(
    uri: str, database: str, raw: Any
) -> None:
    chance = random.Random(20261121)
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders", max_retries=None)
        pushed = set(await asyncio.gather(*(queue.push(n) for n in range(60))))
        done: set[ObjectId] = set()
        committing: set[ObjectId] = set()  # a commit that was cancelled may still have happened

        async def work() -> None:
            item = await queue.reserve()
            if item is None:
                return
            if chance.random() < 0.3:
                await queue.rollback(item)
            elif chance.random() < 0.5:
                await queue.extend(item)
                await queue.release(item)
            else:
                committing.add(item.id)
                await queue.commit(item)
                done.add(item.id)
                pushed.add(await queue.push(0))

        async def cancelled() -> None:
            task = asyncio.create_task(work())
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            await asyncio.wait([task])

        for _ in range(CANCELLATIONS // 50):
            await asyncio.gather(*(cancelled() for _ in range(50)))
    left = {document["_id"] for document in raw.find({"q": "orders"})}
    assert not done & left
    assert pushed - committing <= left
    # what a cancelled task had in its hands stays reserved to the end of its lease; nothing else does
    assert all(document["attempts"] > 0 for document in raw.find({"reserved": True}))


async def test_cancelled_reservations_alone_leave_nothing_reserved(uri: str, database: str, raw: Any) -> None:
    chance = random.Random(7)
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders", max_retries=None)
        await asyncio.gather(*(queue.push(n) for n in range(60)))
        got: list[Any] = []

        async def cancelled() -> None:
            task = asyncio.create_task(queue.reserve())
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.result() is not None:
                got.append(task.result())

        for _ in range(10_000 // 50):
            await asyncio.gather(*(cancelled() for _ in range(50)))
            held, got = got, []
            await asyncio.gather(*(queue.release(item) for item in held))
    assert raw.count_documents({"q": "orders", "reserved": False, "attempts": 0}) == 60


@pytest.fixture
def proxy(uri: str) -> Iterator[Proxy]:
    with Proxy(uri) as running:
        yield running


@pytest.mark.parametrize("kind", ["request", "reply"])
async def test_a_shared_command_whose_message_is_lost_tells_each_caller(
    proxy: Proxy, database: str, raw: Any, kind: Any
) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders", history=60)
        await queue.push("first")
        proxy.lose(kind, "insert", times=1)
        ids = await asyncio.gather(*(queue.push(n) for n in range(30)))
        assert raw.count_documents({"_id": {"$in": ids}}) == 30
        proxy.lose(kind, "update", times=1)
        items = await asyncio.gather(*(queue.reserve() for _ in range(30)))
        assert len({item.id for item in items}) == 30
        proxy.lose(kind, "update", times=1)
        assert await asyncio.gather(*(queue.commit(item) for item in items)) == [None] * 30
        assert raw.count_documents({"processed": {"$exists": True}}) == 30


async def test_a_callers_timeout_is_not_that_of_the_others(crowd: Crowd, raw: Any) -> None:
    if crowd.kind == "threads":
        pytest.skip("which thread sends is chance")
    queue = crowd.queue()
    await queue.push("first")
    await asyncio.sleep(0.01)  # what sent it has ended, and the next one begins with who is in a hurry

    async def hurried() -> Any:
        with pymongo.timeout(0.000_001):
            return await queue.push("hurried")

    told = await asyncio.gather(hurried(), *(queue.push(n) for n in range(5)))
    assert raw.count_documents({"_id": {"$in": told}}) == 6


async def test_an_error_of_all_is_raised_by_each_for_itself(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push("first")
        item = await queue.reserve()
        fault = {"configureFailPoint": "failCommand", "mode": {"times": 1}}
        admin: Any = MongoClient(uri).admin
        admin.command({**fault, "data": {"failCommands": ["insert"], "errorCode": 13}})
        try:
            told = await asyncio.gather(*(queue.push(n) for n in range(5)), return_exceptions=True)
        finally:
            admin.command({"configureFailPoint": "failCommand", "mode": "off"})
            admin.client.close()
        assert [one.code for one in told if isinstance(one, OperationFailure)] == [13] * 5
        assert len({id(one) for one in told}) == 5
        await queue.commit(item)


async def test_a_shared_commit_whose_reply_is_lost_is_done(proxy: Proxy, database: str, raw: Any) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(10)))
        items = await asyncio.gather(*(queue.reserve() for _ in range(10)))
        proxy.lose("reply", "delete", times=1)
        assert await asyncio.gather(*(queue.commit(item) for item in items)) == [None] * 10
    assert raw.count_documents({"q": "orders"}) == 0


async def test_a_shared_claim_survives_several_lost_messages(proxy: Proxy, database: str) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(10)))
        proxy.lose("request", "update", times=3)
        items = await asyncio.gather(*(queue.reserve() for _ in range(10)))
        assert len({item.id for item in items}) == 10


async def test_a_broker_that_closes_without_its_server_leaves_no_caller_behind() -> None:
    with EmbeddedServer() as server:
        broker = await mongoq.connect_async(server.uri)
        queue = broker.queue("orders")
        await queue.push("first")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        first = asyncio.create_task(queue.push("under way"))
        await asyncio.sleep(0.3)
        waiting = [asyncio.create_task(queue.push(n)) for n in range(5)]
        await asyncio.sleep(0)
        await broker.close()
        told = await asyncio.wait_for(asyncio.gather(first, *waiting, return_exceptions=True), 20)
        assert all(isinstance(one, mongoq.BrokerClosed | AutoReconnect) for one in told), told


async def test_an_id_of_another_program_disturbs_no_caller(crowd: Crowd, raw: Any) -> None:
    queue = crowd.queue()
    await crowd.together(calls(queue.push, range(3)))
    odd = {"_id": {"a": 1}, "q": "orders", "payload": "odd", "when": datetime.now(UTC), "priority": 5, "attempts": 0}
    raw.insert_one(odd)
    items = [await crowd.one(queue.reserve) for _ in range(4)]
    assert await crowd.together(calls(queue.commit, items)) == [None] * 4
    told = await crowd.together(calls(queue.commit, items))
    assert [type(one) for one in told] == [mongoq.ReservationLost] * 4


async def test_errors_of_a_shared_settling_are_each_their_callers_own(uri: str, database: str, client: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(5)))
        items = await asyncio.gather(*(queue.reserve() for _ in range(5)))
        fault = {"failCommands": ["delete"], "errorCode": 13}
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fault})
        told = await asyncio.gather(*(queue.commit(item) for item in items), return_exceptions=True)
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        assert len({id(one) for one in told if isinstance(one, OperationFailure)}) == 5


REENTRANT = """
import signal, sys, threading, time
from pymongo import MongoClient
from pymongo.monitoring import CommandListener
import mongoq

class Nosy(CommandListener):
    nested = 0
    def started(self, event):
        if event.command_name == "insert" and Nosy.nested < 20 and not getattr(here, "inside", False):
            here.inside = True
            Nosy.nested += 1
            queue.push("nested")
            here.inside = False
    def succeeded(self, event): pass
    def failed(self, event): pass

here = threading.local()
client = MongoClient(sys.argv[1], event_listeners=[Nosy()])
broker = mongoq.Broker(client[sys.argv[2]]["mongoq"], group_commit=True)
queue = broker.queue("orders")

def push():
    for _ in range(30):
        queue.push("own")

threads = [threading.Thread(target=push) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
broker.close()
print("done", Nosy.nested)
"""


class Beside(Listener):
    """Also tells how many inserts were under way at a time, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: set[int] = set()
        self.most = 0

    def started(self, event: CommandStartedEvent) -> None:
        super().started(event)
        if event.command_name == "insert":
            self.under_way.add(event.request_id)
            self.most = max(self.most, len(self.under_way))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.under_way.discard(event.request_id)


async def test_pushes_of_a_crowd_have_two_batches_under_way(uri: str, client: Any, database: str, raw: Any) -> None:
    listener, callers = Beside(), 2 * CROWD
    slow = {"failCommands": ["insert"], "appName": database, "blockConnection": True, "blockTimeMS": 1000}
    async with (
        opened("aio", uri, event_listeners=[listener], appname=database) as own,
        mongoq.AsyncBroker(own[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        await asyncio.gather(*(queue.push(n) for n in range(callers)))  # which opens the connections
        listener.counts.clear()
        listener.most = 0
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)
        try:
            await asyncio.gather(*(queue.push(n) for n in range(callers)))
            assert (listener.counts["insert"], listener.most) == (2, 2)
            assert raw.count_documents({"q": "orders"}) == 2 * callers
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")


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


SCRIPT = """
import os, signal, sys, threading, time
import mongoq

broker = mongoq.connect(sys.argv[1], database=sys.argv[2], group_commit=True)
queue = broker.queue("orders")
stop = threading.Event()

def push(who):
    while not stop.is_set():
        queue.push(who)

threads = [threading.Thread(target=push, args=(who,)) for who in range(4)]
for thread in threads:
    thread.start()
"""

FORKED = (
    SCRIPT
    + """
for _ in range(20):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        pushing = threading.Thread(target=queue.push, args=("child",))  # the main thread never shares
        pushing.start()
        pushing.join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
broker.close()
print("done")
"""
)

INTERRUPTED = (
    SCRIPT
    + """
interrupted = 0
timer = None
for n in range(40):
    timer = threading.Timer(0.002 + 0.005 * (n % 5), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            queue.push("main")
    except KeyboardInterrupt:
        interrupted += 1
    timer.join()
before = queue.size()
time.sleep(0.3)
assert queue.size() > before  # the others go on
stop.set()
for thread in threads:
    thread.join()
broker.close()
print("done", interrupted)
"""
)


@pytest.mark.parametrize(
    ("script", "told"),
    [(FORKED, "done"), (INTERRUPTED, "done 40"), (REENTRANT, "done 20")],
    ids=["forks", "Ctrl-C", "listens"],
)
def test_threads_go_on_sharing_whatever_happens_to_one(
    uri: str, database: str, raw: Any, script: str, told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, uri, database],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == (told, 0), done.stderr
    if script is FORKED:
        assert raw.count_documents({"payload": "child"}) == 20
