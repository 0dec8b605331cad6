"""What a failed, cancelled or forked call leaves behind: items go back, and no state belongs to another process."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.integration.commands import Commands, failing
from tests.proxy import Proxy
from tests.waiting import PATIENCE, until


def claims(name: str, body: Mapping[str, Any]) -> bool:
    """Say whether a command claims a batch."""
    return name == "update" and bool(body["updates"][0].get("multi"))


@pytest.fixture
async def proxied(
    impatient: None, proxy: Proxy, database: str
) -> AsyncIterator[tuple[mongoq.AsyncBroker, Commands, Proxy]]:
    """A broker behind a proxy, without shared commands."""
    commands = Commands()
    client: AsyncMongoClient[Any] = AsyncMongoClient(
        proxy.uri_with(serverMonitoringMode="poll"), event_listeners=[commands]
    )
    async with client, mongoq.AsyncBroker(client[database]["mongoq"], group_commit=False) as broker:
        yield broker, commands, proxy


async def cancelled_at(commands: Commands, moment: Callable[[str, Any], bool], call: Coroutine[Any, Any, Any]) -> None:
    """Cancel a call when it sends a command."""
    commands.before = lambda name, body: moment(name, body) and not task.done() and task.cancel()
    task = asyncio.create_task(call)
    with pytest.raises(asyncio.CancelledError):
        await task
    commands.before = None


async def happens(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not check():
            await asyncio.sleep(0.02)


async def test_a_batch_whose_caller_is_cancelled_and_whose_reply_is_lost_is_given_back(proxied: Any, raw: Any) -> None:
    broker, commands, proxy = proxied
    queue = broker.queue("orders")
    await queue.push_many(range(5))
    proxy.lose("reply", "update")
    await cancelled_at(commands, claims, queue.reserve_many(5, lease=600))
    await happens(lambda: proxy.lost and not raw.count_documents({"reserved": True}))
    assert sorted(document["attempts"] for document in raw.find({"q": "orders"})) == [0] * 5


@pytest.mark.parametrize("operation", ["reserve", "pop"])
async def test_so_is_a_single_item(proxied: Any, raw: Any, operation: str) -> None:
    broker, commands, proxy = proxied
    queue = broker.queue("orders", lease=600)
    await queue.push(1, id=ObjectId())  # a pop reserves it first
    await queue.push(2, id=ObjectId())
    if operation == "pop":
        assert (await queue.pop()).payload == 1
    number = raw.count_documents({"payload": {"$exists": True}})
    proxy.lose("reply", "findAndModify")
    await cancelled_at(commands, lambda name, _: name == "findAndModify", getattr(queue, operation)())
    await happens(lambda: proxy.lost and not raw.count_documents({"reserved": True}))
    assert [document["attempts"] for document in raw.find({"payload": {"$exists": True}})] == [0] * number


async def test_an_item_whose_pop_is_cancelled_is_put_back_once(proxied: Any, raw: Any, broker: mongoq.Broker) -> None:
    """The replies to that are lost: if it was put back again, another consumer could pop it twice."""
    own, commands, proxy = proxied
    queue = own.queue("orders")
    await queue.push("only one")
    proxy.lose("reply", "update", times=2)  # also that of the driver's retry
    await cancelled_at(commands, lambda name, _: name == "findAndModify", queue.pop())
    await happens(lambda: proxy.lost == 2 and raw.count_documents({"q": "orders"}))
    popped = await asyncio.to_thread(broker.queue("orders").pop)
    await own.close()  # it waits for all that it has begun
    assert popped is not None
    assert broker.queue("orders").size() == 0


async def test_a_commit_whose_caller_is_cancelled_is_brought_to_an_end(proxied: Any, raw: Any) -> None:
    """Else the transaction would be open for a minute, and nobody could write to the sequence."""
    broker, commands, proxy = proxied
    queue = broker.queue("orders")
    await queue.push(1, sequence="a")
    proxy.lose("request", "commitTransaction", times=2)
    call = queue.push(2, sequence="a")
    await cancelled_at(commands, lambda name, _: name == "commitTransaction", call)
    await happens(lambda: proxy.lost == 2 and raw.count_documents({"payload": 2}))


async def test_what_is_tried_again_after_a_failed_commit_is_not_committed_for_a_cancelled_caller(
    proxied: Any, client: MongoClient[Any], raw: Any
) -> None:
    broker, commands, _ = proxied
    queue = broker.queue("orders")
    await queue.push(1, sequence="a")
    commits: list[str] = []

    def tries_again(name: str, _body: Any) -> bool:
        if name == "commitTransaction":
            commits.append(name)
        return name == "update" and bool(commits)

    with failing(client, "commitTransaction", errorCode=251, errorLabels=["TransientTransactionError"]):
        await cancelled_at(commands, tries_again, queue.push(2, sequence="a"))
        await broker.close()  # it waits for all that it has begun
    assert len(commits) == 1
    assert not raw.count_documents({"payload": 2})


SECONDS = 0.5
"""Deadline of a caller; on a machine that is too busy for it, nothing is taken at all."""


class Blocked:
    """Lets the server hold back the answers to finds after a claim, beyond the deadline of its caller."""

    def __init__(self, client: Any, database: str) -> None:
        self._client, self.commands, self._count = client, Commands(), 0
        self._data = {"failCommands": ["find"], "blockConnection": True, "appName": database}
        self._data["blockTimeMS"] = 2000 * SECONDS

    def begin(self) -> None:
        self.commands.after = lambda name, body: self._switch("alwaysOn") if claims(name, body) else None

    def end(self) -> None:
        self.commands.after = None
        self._switch("off")

    def _switch(self, mode: str) -> None:
        self._client.admin.command("configureFailPoint", "failCommand", mode=mode, data=self._data)


@pytest.fixture
def blocked(client: Any, database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server blocks what follows a claim; mongoq gives back what it took for as long as a busy machine needs."""
    for kind in ("threads", "aio"):
        monkeypatch.setattr(f"mongoq.drivers.{kind}.driver.UNDO_SECONDS", PATIENCE)
    opened = Blocked(client, database)
    yield opened
    opened.end()


def test_a_batch_whose_caller_has_no_time_left_is_given_back(
    uri: str, database: str, raw: Any, blocked: Blocked
) -> None:
    with (
        MongoClient[Any](uri, appname=database, event_listeners=[blocked.commands]) as own,
        mongoq.Broker(own[database]["mongoq"]) as broker,
    ):
        queue = broker.queue("orders")
        queue.push_many(range(5))
        queue.release_many(queue.reserve_many(5))  # a claim of items that are not new reads them after it
        blocked.begin()
        with pytest.raises(PyMongoError), pymongo.timeout(SECONDS):
            queue.reserve_many(5, lease=600)
        blocked.end()
    until(lambda: raw.count_documents({"reserved": True}) == 0)


async def test_so_it_is_with_asyncio(uri: str, database: str, raw: Any, blocked: Blocked) -> None:
    own: AsyncMongoClient[Any] = AsyncMongoClient(uri, appname=database, event_listeners=[blocked.commands])
    async with own, mongoq.AsyncBroker(own[database]["mongoq"]) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(5))
        await queue.release_many(await queue.reserve_many(5))
        blocked.begin()
        with pytest.raises(PyMongoError), pymongo.timeout(SECONDS):
            await queue.reserve_many(5, lease=600)
        blocked.end()
    until(lambda: raw.count_documents({"reserved": True}) == 0)


def test_a_child_forked_during_a_transaction_of_another_thread_has_transactions_of_its_own(
    uri: str, database: str
) -> None:
    inside, go = threading.Event(), threading.Event()
    with mongoq.connect(uri, database=database) as broker:
        queue = broker.queue("orders")
        queue.push("before")

        def run() -> None:
            with broker.transaction() as tx:
                queue.push("of the thread", session=tx.session)
                inside.set()
                assert go.wait(PATIENCE)

        def push_in_thread() -> None:
            """A thread of the child may get the ident of the one that it has lost."""

            def push() -> None:
                with broker.transaction() as tx:
                    queue.push("of the child", session=tx.session)

            with ThreadPoolExecutor(1) as pool:
                pool.submit(push).result(PATIENCE)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert inside.wait(PATIENCE)
            in_a_child(push_in_thread)
        finally:
            go.set()
            thread.join()
        assert {item.payload for item in queue.peek(9)} == {"before", "of the child", "of the thread"}


def in_a_child(work: Any) -> None:
    """Run a function in a forked child; it fails here when it fails there."""
    pid = os.fork()
    if not pid:
        warnings.simplefilter("ignore")  # PyMongo warns of clients in children
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
