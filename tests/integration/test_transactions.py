"""Transactions against a server that refuses, conflicts, loses replies, and outlives its clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import anyio
import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.clients import opened
from tests.integration.commands import Commands, failing
from tests.proxy import Proxy
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
MOMENTS = 10


class Failed(Exception):
    """What the caller's own code raises."""


@pytest.fixture
def orders(client: MongoClient[Any], database: str) -> Any:
    """The caller's own collection, by the client of the broker."""
    return client[database]["own"]


# --- where there are none ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standalone() -> Iterator[str]:
    with EmbeddedServer(replica_set=None) as server:
        yield server.uri


def test_a_standalone_server_is_refused_before_anything_is_written(standalone: str) -> None:
    with MongoClient[Any](standalone) as client:
        queue = mongoq.Broker(client["one"]["mongoq"]).queue("orders", lease=5)
        refused = pytest.raises(mongoq.TransactionsUnavailable, match=r"standalone server at 127.*rs\.initiate")
        with client.start_session() as session, session.start_transaction(), refused:
            queue.push(1, session=session)
        broker = mongoq.Broker(client["one"]["mongoq"])
        with pytest.raises(mongoq.TransactionsUnavailable), broker.transaction():
            pass
        with pytest.raises(mongoq.TransactionsUnavailable):
            broker.run_transaction(lambda tx: None)
        assert client["one"].list_collection_names() == []
        broker.queue("orders").push(1)
        with pytest.raises(mongoq.TransactionsUnavailable), broker.transaction():
            pass


async def test_and_from_asyncio(standalone: str) -> None:
    async with mongoq.connect_async(standalone, database="two") as broker:
        with pytest.raises(mongoq.TransactionsUnavailable):
            async with broker.transaction():
                pass


# --- conflicts and lost replies ------------------------------------------------------------------------


def test_a_write_conflict_is_run_again(broker: mongoq.Broker, orders: Any) -> None:
    orders.insert_one({"_id": 1, "n": 0})
    calls: list[int] = []

    def work(tx: mongoq.Transaction) -> Any:
        calls.append(orders.find_one({"_id": 1}, session=tx.session)["n"])
        if len(calls) == 1:
            orders.update_one({"_id": 1}, {"$inc": {"n": 1}})  # somebody else
        id = broker.queue("orders").push(1, session=tx.session)
        orders.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=tx.session)
        return id

    id = broker.run_transaction(work)
    assert calls == [0, 1]
    item = broker.queue("orders").reserve()
    assert item is not None
    assert item.id == id
    assert broker.queue("orders").reserve() is None


async def test_a_conflict_over_an_item_is_run_again_and_then_says_that_it_is_lost(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push(1)
        item = await queue.reserve()
        assert item is not None
        calls = []

        async def work(tx: mongoq.AsyncTransaction) -> None:
            await queue.push("more", session=tx.session)
            calls.append(1)
            if len(calls) == 1:
                await queue.extend(item)  # changed since the snapshot, and still ours
            await queue.commit(item, session=tx.session)

        await broker.run_transaction(work)
        assert len(calls) == 2
        assert await queue.size() == 1
        with pytest.raises(mongoq.ReservationLost):
            await broker.run_transaction(work)
        assert await queue.size() == 1


def test_a_transaction_without_another_attempt_raises_the_conflict_as_it_is(broker: mongoq.Broker, orders: Any) -> None:
    orders.insert_one({"_id": 1})
    with pytest.raises(OperationFailure) as caught, broker.transaction() as tx:
        broker.queue("orders").push(1, session=tx.session)
        orders.find_one(session=tx.session)
        orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
        orders.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=tx.session)
    assert caught.value.has_error_label("TransientTransactionError")
    assert broker.queue("orders").size() == 0


def test_a_commit_that_failed_for_the_moment_is_run_again_as_a_whole(broker: mongoq.Broker, client: Any) -> None:
    calls = []

    def work(tx: mongoq.Transaction) -> None:
        calls.append(1)
        broker.queue("orders").push(1, session=tx.session)

    with failing(client, "commitTransaction", errorCode=251, errorLabels=["TransientTransactionError"]):
        broker.run_transaction(work)
    assert len(calls) == 2
    assert broker.queue("orders").size() == 1


@pytest.mark.parametrize("how", ["with", "run"])
def test_a_commit_whose_result_is_unknown_is_asked_for_again(broker: mongoq.Broker, client: Any, how: str) -> None:
    calls = []

    def work(tx: mongoq.Transaction) -> None:
        calls.append(1)
        broker.queue("orders").push(1, session=tx.session)

    with failing(client, "commitTransaction", times=4, errorCode=64, errorLabels=["UnknownTransactionCommitResult"]):
        if how == "run":
            broker.run_transaction(work)
        else:
            with broker.transaction() as tx:
                work(tx)
    assert len(calls) == 1
    assert broker.queue("orders").size() == 1


@pytest.mark.usefixtures("impatient")
def test_a_commit_whose_reply_is_lost_is_committed_once(proxy: Proxy, database: str) -> None:
    with mongoq.connect(proxy.uri_with(serverMonitoringMode="poll"), database=database) as broker:
        queue = broker.queue("orders")
        queue.push(1)
        with queue.reserved() as item, broker.transaction() as tx:
            assert item is not None
            queue.push(2, session=tx.session)
            queue.commit(item, session=tx.session)
            proxy.lose("reply", "commitTransaction", times=3)
        assert proxy.lost == 3
        assert [item.payload for item in queue.peek(9)] == [2]


@pytest.mark.usefixtures("impatient")
def test_a_push_whose_reply_is_lost_is_not_sent_again_but_the_whole_is(proxy: Proxy, database: str) -> None:
    with mongoq.connect(proxy.uri_with(serverMonitoringMode="poll"), database=database) as broker:
        queue, id = broker.queue("orders"), ObjectId()
        queue.push(0)
        proxy.lose("reply", "update")
        with pytest.raises(AutoReconnect) as caught, broker.transaction() as tx:
            queue.push(1, id=id, session=tx.session)
        assert caught.value.has_error_label("TransientTransactionError")
        assert (proxy.lost, queue.size()) == (1, 1)
        proxy.calm()
        proxy.lose("reply", "update")
        broker.run_transaction(lambda tx: queue.push(1, id=id, session=tx.session))
        assert (proxy.lost, queue.size()) == (1, 2)


# --- beginnings ----------------------------------------------------------------------------------------


def test_the_first_write_of_a_collection_may_happen_in_a_transaction(broker: mongoq.Broker, orders: Any) -> None:
    orders.insert_one({"_id": 0})
    with broker.transaction() as tx:
        orders.insert_one({"_id": 1}, session=tx.session)
        broker.queue("orders", lease=7, history=60).push(1, session=tx.session)
    assert broker.queue("orders").size() == 1


def test_also_in_one_of_the_callers_own(client: MongoClient[Any], raw: Any) -> None:
    queue = mongoq.Broker(raw).queue("orders")
    with client.start_session() as session, session.start_transaction():
        queue.push(1, session=session)
    assert queue.size() == 1


def test_settings_are_stored_whatever_becomes_of_the_transaction(broker: mongoq.Broker, raw: Any) -> None:
    with pytest.raises(Failed), broker.transaction() as tx:
        broker.queue("orders", lease=7).push(1, session=tx.session)
        raise Failed
    document = raw.find_one({"_id": "queue:orders"})
    assert "lease" in document["settings"]
    assert broker.queue("orders").size() == 0


def test_a_session_of_another_client_is_refused(broker: mongoq.Broker, uri: str) -> None:
    broker.queue("orders").push(1)
    refused = pytest.raises(mongoq.ArgumentInvalid, match="another client")
    with MongoClient[Any](uri) as own, own.start_session() as session, session.start_transaction(), refused:
        broker.queue("orders").push(1, session=session)
    assert broker.queue("orders").size() == 1


def test_what_a_transaction_sends(uri: str, database: str) -> None:
    sent = Commands()
    with MongoClient[Any](uri, event_listeners=[sent], w=1, readConcernLevel="local") as client:
        broker = mongoq.Broker(client[database]["mongoq"])
        queue = broker.queue("orders")
        queue.push(0)
        item = queue.reserve()
        assert item is not None
        sent.sent.clear()
        with broker.transaction() as tx:
            queue.push(1, key="k", session=tx.session)
            queue.move(item, "next", session=tx.session)
    commands = [command for command in sent.sent if "txnNumber" in command]
    assert [command.get("startTransaction") for command in commands] == [True] + [None] * (len(commands) - 1)
    assert all(command["autocommit"] is False for command in commands)
    commit = commands[-1]
    assert (next(iter(commit)), commit["writeConcern"]) == ("commitTransaction", {"w": "majority"})
    assert commands[0]["readConcern"]["level"] == "snapshot"


# --- blocks, threads and tasks -------------------------------------------------------------------------


def test_a_block_has_the_calls_of_its_client_and_of_its_thread(
    broker: mongoq.Broker, client: MongoClient[Any], uri: str, database: str
) -> None:
    sibling = mongoq.Broker(client[database]["sibling"])
    sibling.ensure_indexes()
    with mongoq.connect(uri, database=database, collection="stranger") as stranger:
        brokers = (broker, sibling, stranger)
        with pytest.raises(Failed), broker.transaction():
            for each in brokers:
                each.queue("orders").push(1)
            threads = [threading.Thread(target=push, args=(broker, 2)), ContextThread(push, broker, 3)]
            for thread in threads:
                thread.start()
                thread.join()
            with stranger.transaction():
                broker.queue("orders").push(4)
            raise Failed
        assert [[item.payload for item in each.queue("orders").peek(9)] for each in brokers] == [[2], [], [1]]


def push(broker: mongoq.Broker, payload: Any) -> None:
    broker.queue("orders").push(payload)


class ContextThread(threading.Thread):
    """A thread in the context of the thread that made it, as of ``asyncio.to_thread``."""

    def __init__(self, work: Any, *args: Any) -> None:
        super().__init__(target=copy_context().run, args=(work, *args))


async def test_tasks_of_a_block_belong_to_it_and_cannot_outlive_it_unnoticed(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        queue, over = broker.queue("orders"), asyncio.Event()

        async def push_later(**options: Any) -> None:
            await over.wait()
            await queue.push("late", **options)

        for commits in (False, True):
            over.clear()
            try:
                others = [asyncio.create_task(queue.push("other")) for _ in range(5)]
                async with broker.transaction():
                    await asyncio.gather(*(queue.push("ours") for _ in range(5)), *others)
                    late = [asyncio.create_task(push_later()), asyncio.create_task(push_later(session=None))]
                    if not commits:
                        raise Failed
            except Failed:
                pass
            over.set()
            refused, done = await asyncio.gather(*late, return_exceptions=True)
            assert isinstance(refused, mongoq.ArgumentInvalid)
            assert "has ended" in str(refused)
            assert done is None
        pushed = Counter([item.payload for item in await queue.peek(99)])
        assert pushed == {"other": 10, "ours": 5, "late": 2}


async def test_a_task_that_pushes_while_its_block_ends_pushes_with_it_or_not_at_all(uri: str, database: str) -> None:
    """However many of its pushes come before the end: none comes after it."""
    async with mongoq.connect_async(uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push("warm")
        pushed: list[int] = []

        async def push_on(block: int) -> None:
            for _ in range(500):
                await queue.push(block)
                pushed.append(block)

        for block in range(MOMENTS):
            with pytest.raises(Failed):
                async with broker.transaction():
                    task = asyncio.create_task(push_on(block))
                    while pushed.count(block) <= block:
                        await asyncio.sleep(0)
                    raise Failed
            with pytest.raises(mongoq.ArgumentInvalid):
                await task
        assert [item.payload for item in await queue.peek(999)] == ["warm"]


async def test_a_block_that_ends_before_its_calls_commits_nothing(uri: str, database: str) -> None:
    """Otherwise a part of a call could happen."""
    async with mongoq.connect_async(uri, database=database) as broker:
        await broker.bind("news", "a", "b")
        with pytest.raises(mongoq.ArgumentInvalid, match="await the task"):
            async with broker.transaction():
                await broker.queue("a").push("before")
                task = asyncio.create_task(broker.queue("news").push("all"))
                await asyncio.sleep(0)  # it begins
        with pytest.raises(mongoq.ArgumentInvalid, match="has ended"):
            await task
        assert (await broker.queue("a").size(), await broker.queue("b").size()) == (0, 0)


async def test_a_reserved_block_that_outlives_the_transaction_around_it_settles_its_item(
    uri: str, database: str
) -> None:
    async with opened("aio", uri) as client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        queue, has_ended, is_held = broker.queue("orders"), asyncio.Event(), asyncio.Event()
        await queue.push(1)

        async def work() -> None:
            async with queue.reserved():
                is_held.set()
                await has_ended.wait()

        async with broker.transaction():
            task = asyncio.create_task(work())
            await is_held.wait()
        has_ended.set()
        await task
        assert (await queue.counts()).total == 0


async def test_a_block_may_end_in_another_task_than_it_began_in(uri: str, database: str) -> None:
    async with mongoq.connect_async(uri, database=database) as broker:
        block = broker.transaction()
        await asyncio.create_task(block.__aenter__())
        await broker.queue("orders").push(1)
        await asyncio.create_task(block.__aexit__(None, None, None))
        async with broker.transaction():
            await broker.queue("orders").push(2)
        assert await broker.queue("orders").size() == 2


def test_a_forked_child_is_in_no_block_of_its_parent(broker: mongoq.Broker) -> None:
    with pytest.raises(Failed), broker.transaction():
        broker.queue("orders").push("parent")
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore")  # PyMongo warns of clients in children
            try:
                broker.queue("orders").push("child")
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        raise Failed
    assert [item.payload for item in broker.queue("orders").peek(9)] == ["child"]


# --- ends ----------------------------------------------------------------------------------------------


def test_an_interrupt_aborts(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    main = threading.main_thread().ident
    assert main is not None
    with pytest.raises(KeyboardInterrupt), queue.reserved() as item, broker.transaction() as tx:
        assert item is not None
        queue.push(2, session=tx.session)
        queue.commit(item, session=tx.session)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(60)  # until the signal comes
    assert raw.find_one({"payload": 1})["attempts"] == 0, "released"
    assert queue.counts() == mongoq.Counts(ready=1)
    with broker.transaction():
        pass


@pytest.mark.parametrize(("kind", "scope"), [("aio", "anyio"), ("motor", "task")])
async def test_a_cancelled_block_aborts_and_releases_its_item(
    uri: str, database: str, raw: Any, scope: str, kind: str
) -> None:
    """In whatever of many moments the cancellation comes."""
    async with opened(kind, uri) as own, mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        await queue.push(1)
        for moment in range(MOMENTS):
            await _cancelled_block(broker, queue, scope, moment / 500)
    (document,) = raw.find({"q": "orders"})
    assert (document["payload"], document["attempts"], document["reserved"]) == (1, 0, False)


async def _cancelled_block(broker: mongoq.AsyncBroker, queue: mongoq.AsyncQueue[Any], scope: str, after: float) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with queue.reserved(wait=60) as item, broker.transaction() as tx:
            assert item is not None
            await queue.commit(item, session=tx.session)
            inside.set()
            while True:
                await queue.push(2, session=tx.session)

    if scope == "task":
        task = asyncio.create_task(work())
        await inside.wait()
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await inside.wait()
            await anyio.sleep(after)
            group.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["aio", "motor"])
async def test_many_cancelled_transactions_leave_nothing_half_done(
    uri: str, database: str, raw: Any, kind: str
) -> None:
    """At whatever moment the cancellation comes: all of it, or nothing."""
    async with opened(kind, uri) as client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        own, queue = client[database]["own"], broker.queue("orders")
        await own.insert_one({"_id": "first"})
        await queue.push("warm")

        async def work(n: int) -> None:
            async with broker.transaction() as tx:
                await queue.push(n, session=tx.session)
                await queue.push(n, session=tx.session)
                await own.insert_one({"_id": n}, session=tx.session)

        for n in range(20):
            task = asyncio.create_task(work(n))
            await asyncio.sleep(0.0005 * n)
            task.cancel()
            await asyncio.wait([task])
    ours = {document["_id"] for document in raw.database["own"].find()} - {"first"}
    theirs = Counter(document["payload"] for document in raw.find({"q": "orders"}))
    assert theirs == {"warm": 1} | dict.fromkeys(ours, 2)


DIES = """
import sys, mongoq
with mongoq.connect(sys.argv[1], database=sys.argv[2]) as broker:
    queue = broker.queue("orders", lease=1)
    item = queue.reserve()
    with broker.transaction() as tx:
        queue.push("more", session=tx.session)
        queue.commit(item, session=tx.session)
        print("within", flush=True)
        sys.stdin.read()
"""


def test_a_process_that_is_killed_within_leaves_nothing_and_its_item_comes_back(
    uri: str, broker: mongoq.Broker, client: MongoClient[Any], database: str
) -> None:
    limit = {"setParameter": 1, "transactionLifetimeLimitSeconds": 5}
    before = client.admin.command(limit)["was"]
    try:
        queue = broker.queue("orders", lease=1)
        id = queue.push("one")
        command = [sys.executable, "-c", DIES, uri, database]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"within\n"
        finally:
            process.kill()
            process.communicate()
        assert queue.size() == 1
        item = queue.reserve(wait=PATIENCE)
        assert item is not None
        assert (item.id, item.payload, item.attempts) == (id, "one", 2)
        queue.commit(item)
        assert queue.size() == 0
    finally:
        client.admin.command({**limit, "transactionLifetimeLimitSeconds": before})
