"""Writes with numbers of our own: the server performs each once, however often its reply is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq
from mongoq.drivers.sessions import NumberedSession, SessionPool, get_numbers
from mongoq.embedded import EmbeddedServer
from mongoq.protocol.flow import SENDS
from mongoq.protocol.state.batcher import Batcher
from tests.clients import opened
from tests.proxy import Proxy
from tests.waiting import PATIENCE

WRITES = {"insert", "findAndModify"}
POLL = {"serverMonitoringMode": "poll"}


class Listener(CommandListener):
    """The numbers of writes, the sessions they are in, and the sessions that were ended."""

    def __init__(self) -> None:
        self.numbers: list[Any] = []
        self.sessions: list[Any] = []
        self.ended: list[Any] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in WRITES:
            self.numbers.append(event.command.get("txnNumber"))
            self.sessions.append(event.command.get("lsid", {}).get("id"))
        if event.command_name == "endSessions":
            self.ended += [each["id"] for each in event.command["endSessions"]]

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@pytest.fixture
def lossy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """A proxy whose clients look for the server again at once, and not in half a second, after an error."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
    return proxy


@pytest.fixture
def listened(uri: str) -> Iterator[tuple[Listener, Any]]:
    listener = Listener()
    client: MongoClient[Any] = MongoClient(uri, event_listeners=[listener])
    yield listener, client
    client.close()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
async def test_what_was_taken_before_its_push_was_confirmed_is_not_pushed_again(
    lossy: Proxy, uri: str, database: str, together: bool
) -> None:
    counts: Counter[int] = Counter()
    async with mongoq.connect_async(lossy.uri_with(**POLL), database=database) as broker, taking(uri, database, counts):
        queue = broker.queue("orders")
        await queue.push(-1)
        for number in range(60):
            lossy.lose("reply", "insert", times=number % SENDS)
            if together:
                await asyncio.gather(*(queue.push(10 * number + place) for place in range(10)))
            else:
                await queue.push(number)
        assert lossy.lost > 60
        while await queue.size():
            await asyncio.sleep(0.01)
    assert counts == dict.fromkeys(range(-1, 600 if together else 60), 1)


@asynccontextmanager
async def taking(uri: str, database: str, counts: Counter[int]) -> AsyncIterator[None]:
    """A thread that counts what it pops, until the end of the block."""
    over = threading.Event()

    def take() -> None:
        with mongoq.connect(uri, database=database) as broker:
            while not over.is_set():
                if (item := broker.queue("orders").pop()) is not None:
                    counts[item.payload] += 1

    taker = asyncio.create_task(asyncio.to_thread(take))
    try:
        yield
    finally:
        over.set()
        await taker


def test_a_pop_whose_reply_is_lost_takes_one_item(lossy: Proxy, database: str) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(20))
        payloads = []
        for number in range(20):
            lossy.lose("reply", "findAndModify", times=number % SENDS)
            item = queue.pop()
            assert item is not None
            payloads.append(item.payload)
    assert payloads == [*range(20)]


def test_an_item_refused_after_a_lost_reply_is_refused(lossy: Proxy, database: str) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue, id = broker.queue("orders"), ObjectId()
        queue.push("first", id=id)
        lossy.lose("reply", "insert", times=2)
        assert queue.push("second", id=id) == id
        assert [item.payload for item in queue.peek(5)] == ["first"]


def test_a_reply_lost_too_often_is_looked_into(lossy: Proxy, database: str) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push("first")
        lossy.lose("reply", "insert", times=SENDS)
        queue.push("second")
        lossy.lose("request", "insert", times=SENDS)
        with pytest.raises(AutoReconnect):
            queue.push("third")
        queue.push("fourth")
        assert [item.payload for item in queue.peek(5)] == ["first", "second", "fourth"]


def test_what_comes_to_nothing_else_after_a_lost_reply_stays_lost(lossy: Proxy, database: str, client: Any) -> None:
    with mongoq.connect(lossy.uri_with(**POLL), database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many([1])
        lossy.lose("reply", "insert", times=1)
        fault = {"failCommands": ["insert"], "errorCode": 13, "appName": "mongoq"}
        client.admin.command("configureFailPoint", "failCommand", mode={"skip": 1}, data=fault)
        try:
            queue.push(2)  # it is there, whatever is said the second time
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
        assert [item.payload for item in queue.peek(5)] == [1, 2]
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=fault)
        with pytest.raises(OperationFailure, match="failCommand"):
            queue.push(3)
        queue.push(4)
        assert [item.payload for item in queue.peek(5)] == [1, 2, 4]


def test_the_numbers_of_a_session_grow_and_its_client_keeps_few(listened: tuple[Listener, Any], database: str) -> None:
    listener, client = listened
    for turn in range(20):  # as many brokers as somebody may make, each for one push
        mongoq.Broker(client[database]["mongoq"]).queue("orders").push(turn)
        client[database]["other"].insert_one({})  # the driver goes on with its own
    writes = list(zip(listener.sessions, listener.numbers, strict=True))
    ours = [(session, number) for session, number in writes if number > 1_000_000]
    assert len(ours) >= 20
    assert len({session for session, _ in ours}) == 1
    assert [number for _, number in ours] == sorted({number for _, number in ours})
    drivers = {session for session, number in writes if number <= 1_000_000}
    assert drivers
    assert drivers.isdisjoint(session for session, _ in ours)


@pytest.fixture
def everywhere() -> Iterator[Listener]:
    """A listener of all clients that are opened from now on."""
    listener = Listener()
    listeners = pymongo.monitoring._LISTENERS.command_listeners
    listeners.append(listener)
    yield listener
    listeners.remove(listener)


def test_a_broker_that_closes_its_client_ends_its_sessions(uri: str, database: str, everywhere: Listener) -> None:
    listener = everywhere
    with mongoq.connect(uri, database=database) as broker:
        broker.queue("orders").push(1)
        broker.queue("orders").pop()
    assert listener.sessions
    assert set(listener.sessions) <= set(listener.ended)


async def test_so_does_one_on_asyncio(uri: str, database: str, everywhere: Listener) -> None:
    listener = everywhere
    async with mongoq.connect_async(uri, database=database) as broker:
        await asyncio.gather(*(broker.queue("orders").push(n) for n in range(5)))
        await asyncio.gather(*(broker.queue("orders").pop() for n in range(5)))
    assert len(set(listener.sessions)) > 1
    assert set(listener.sessions) <= set(listener.ended)


@pytest.mark.filterwarnings("ignore:MongoClient opened before fork")
def test_a_forked_child_numbers_in_sessions_of_its_own(uri: str, database: str, raw: Any) -> None:
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders")
        queue.push("before")
        child = os.fork()
        if child == 0:  # the next number of the session that the parent has free is the same for both
            status = 1
            try:
                queue.push("child")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        queue.push("parent")
    assert sorted(document["payload"] for document in raw.find({"q": "orders"})) == ["before", "child", "parent"]


@pytest.mark.parametrize("option", ["retryWrites=false", "retryWrites=true"])
def test_a_client_that_retries_no_writes_numbers_none(uri: str, database: str, option: str) -> None:
    listener = Listener()
    joined = f"{uri}{'&' if '?' in uri else '/?'}{option}"
    with MongoClient[Any](joined, event_listeners=[listener]) as client:
        queue = mongoq.Broker(client[database]["mongoq"]).queue("orders")
        queue.push(1)
        queue.push_many([2, 3])
        assert queue.pop() is not None
        without = option == "retryWrites=false"
        assert {number is None for number in listener.numbers} == {without}
        assert (get_numbers(client) is None) == without


def test_a_standalone_server_keeps_no_numbers() -> None:
    with EmbeddedServer(replica_set=None) as server:
        listener = Listener()
        with MongoClient[Any](server.uri, event_listeners=[listener]) as client:
            queue = mongoq.Broker(client["alone"]["mongoq"]).queue("orders")
            queue.push(1)
            assert queue.pop() is not None
            assert listener.numbers == [None] * len(listener.numbers)


async def test_motor_leaves_them_to_the_driver(uri: str, database: str) -> None:
    listener = Listener()
    async with (
        opened("motor", uri, event_listeners=[listener]) as client,
        mongoq.AsyncBroker(client[database]["mongoq"]) as broker,
    ):
        await broker.queue("orders").push(1)
        assert await broker.queue("orders").pop() is not None
    assert all(0 < number < 1_000_000 for number in listener.numbers)


@pytest.mark.parametrize("pause", [False, True])
async def test_who_pushes_one_item_after_the_other_sends_them_by_itself(
    uri: str, database: str, monkeypatch: pytest.MonkeyPatch, pause: bool
) -> None:
    decisions: list[bool] = []
    start_alone = Batcher.start_alone
    monkeypatch.setattr(
        Batcher, "start_alone", lambda batcher, caller: decisions.append(start_alone(batcher, caller)) or decisions[-1]
    )
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        for number in range(10):
            await queue.push(number)
            if pause:
                await asyncio.sleep(0.01)
        assert decisions == [False, *[True] * 9]
        await asyncio.gather(*(queue.push(number) for number in range(10)))
        assert decisions[10:] == [False] * 10, "one command carries them all"
        assert [item.payload for item in await queue.peek(10)] == [*range(10)]


def test_writes_that_are_refused_or_given_up_leave_no_sessions_behind(uri: str, database: str, client: Any) -> None:
    listener = Listener()
    fault = {"failCommands": ["insert"], "errorCode": 13, "appName": database}
    with MongoClient[Any](uri, event_listeners=[listener], appname=database) as own:
        queue = mongoq.Broker(own[database]["mongoq"]).queue("orders")
        queue.push(0)
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=fault)
        try:
            for number in range(20):
                with pytest.raises(OperationFailure, match="failCommand"):
                    queue.push(number)
            slow = {"failCommands": ["insert"], "blockConnection": True, "blockTimeMS": 200, "appName": database}
            client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)
            refused = len(listener.numbers)
            while len(listener.numbers) < refused + 5:  # a call may be given up before its command is sent
                with pytest.raises(PyMongoError), pymongo.timeout(0.05):
                    queue.push(0)
        finally:
            client.admin.command("configureFailPoint", "failCommand", mode="off")
        ours = [session for session, number in zip(listener.sessions, listener.numbers, strict=True) if number > 10**9]
        assert len(ours) >= 26
        assert len(set(ours)) == 1


def test_what_is_labelled_to_be_sent_again_is(broker: mongoq.Broker, client: Any) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    fault = {"failCommands": ["insert", "findAndModify"], "errorCode": 8000, "errorLabels": ["RetryableWriteError"]}
    try:
        for call in (partial(queue.push, 2), queue.pop, queue.reserve):
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 2}, data=fault)
            assert call() is not None
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


async def test_a_lone_caller_sends_from_its_own_task_and_may_be_cancelled(uri: str, database: str, raw: Any) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        pushed = 0

        async def produce() -> None:
            nonlocal pushed
            while True:
                await queue.push(pushed)
                pushed += 1

        for pause in range(40):
            producer = asyncio.create_task(produce())
            await asyncio.sleep(pause / 1000)
            producer.cancel()
            beside = asyncio.create_task(queue.push("beside"))
            await asyncio.wait([producer])
            await asyncio.wait_for(beside, PATIENCE)
        for _ in range(200):  # a push that was cancelled may still happen
            there = raw.count_documents({"q": "orders", "payload": {"$ne": "beside"}})
            await asyncio.sleep(0.001)
    assert pushed <= there <= pushed + 40
    assert raw.count_documents({"payload": "beside"}) == 40


async def test_a_broker_that_closes_waits_for_a_lone_caller(uri: str, database: str, client: Any, raw: Any) -> None:
    slow = {"failCommands": ["insert"], "appName": database, "blockConnection": True, "blockTimeMS": 700}
    broker = await mongoq.connect_async(f"{uri}{'&' if '?' in uri else '/?'}appName={database}", database=database)
    queue = broker.queue("orders")
    sending = asyncio.Event()

    async def produce() -> None:
        await queue.push(1)
        await queue.push(2)
        sending.set()
        await queue.push(3)

    client.admin.command("configureFailPoint", "failCommand", mode={"skip": 2}, data=slow)
    try:
        producer = asyncio.create_task(produce())
        await sending.wait()
        await asyncio.sleep(0.2)
        await broker.close()
        payloads = [document["payload"] for document in raw.find({"q": "orders"}).sort("_id")]
        await producer
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert payloads == [1, 2, 3], "close() waits for what is under way"


def test_what_was_lost_is_sent_again_and_what_was_answered_is_raised() -> None:
    numbers, client = SessionPool(), MongoClient[Any]("mongodb://127.0.0.1:1", connect=False)
    assert numbers.lend(client) is None, "no server is seen"
    lost_reply, refused, denied = AutoReconnect("gone"), DuplicateKeyError("dup"), OperationFailure("denied")
    session = lent(numbers, client)
    number = session.number
    assert error_of_write(session, [lost_reply] * (SENDS - 1), []) is None
    assert session.number > number
    assert error_of_write(session, [lost_reply] * (SENDS - 1) + [AutoReconnect("again")], []) is lost_reply
    assert error_of_write(session, [lost_reply], [denied]) is lost_reply, "it may have happened the first time"
    assert error_of_write(session, [lost_reply], [refused]) is refused
    assert error_of_write(session, [], [denied]) is denied
    numbers.free.clear()
    other_session = lent(numbers, client)
    error_of_write(session, [], [denied])
    assert error_of_write(other_session, [], [ValueError()]) is not None
    assert [numbers.lend(client), numbers.lend(client)] == [session, other_session], (
        "what may be under way is waited for"
    )


def error_of_write(session: NumberedSession, losses: list[Exception], answers: list[Exception]) -> Exception | None:
    """Return the error of a write under a number: replies are lost, and then the server answers with errors."""
    try:
        with session:
            for error in losses:
                session.retry_or_raise(error, lost=True)
            for error in answers:
                session.retry_or_raise(error, lost=False)
    except Exception as error:
        return error
    return None


def lent(numbers: SessionPool, client: Any) -> NumberedSession:
    return NumberedSession(numbers, client.start_session())
