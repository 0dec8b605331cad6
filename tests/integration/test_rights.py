"""Rights: what users of a server that asks who they are can do with no more than they need, and what they read else."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from pymongo.errors import NotPrimaryError, OperationFailure

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.servers import spare_the_journal
from tests.shells import Awaited

READER, WRITER, NOBODY, WATCHER = "reader", "writer", "nobody", "watcher"
KINDS = pytest.mark.parametrize("kind", ["sync", "aio"])


@pytest.fixture(scope="module")
def guarded(memory: Path) -> Iterator[EmbeddedServer]:
    """A server with users: each reads or writes one database, and one may do nothing."""
    with EmbeddedServer(memory / "rights", auth=("keeper", "keeper")) as running:
        spare_the_journal(running)
        yield running


@pytest.fixture
def store(guarded: EmbeddedServer) -> Iterator[Any]:
    """A collection with some items in all states, made by the keeper, and users of its database."""
    name = f"rights_{uuid4().hex[:8]}"
    with MongoClient[Any](guarded.uri) as client, mongoq.connect(guarded.uri, database=name) as broker:
        everywhere = {"db": name, "collection": ""}
        roles = {
            READER: [{"role": "read", "db": name}],
            NOBODY: [],
            WRITER: [_role(client, name, {"db": name, "collection": "mongoq"}, "find", "insert", "update", "remove")],
            WATCHER: [_role(client, name, everywhere, "find", "insert", "update", "remove", "listCollections")],
        }
        for user, granted in roles.items():
            client[name].command("createUser", user, pwd=user, roles=granted)
        orders = broker.queue("orders", history=600)
        broker.bind("news", "orders")
        orders.push_many(range(3), headers={"a": 1})
        orders.commit(orders.reserve())
        orders.bury(orders.reserve(), reason="tests")
        yield client[name]["mongoq"]
        for user in roles:
            client[name].command("dropUser", user)
        client.drop_database(name)


def _role(client: Any, name: str, resource: dict[str, str], *actions: str) -> dict[str, str]:
    role = f"role_{uuid4().hex[:8]}"
    client[name].command("createRole", role, privileges=[{"resource": resource, "actions": actions}], roles=[])
    return {"role": role, "db": name}


def uri_of(guarded: EmbeddedServer, user: str, store: Any) -> str:
    address = guarded.uri.rpartition("@")[2].replace("authSource=admin", f"authSource={store.database.name}")
    return f"mongodb://{user}:{user}@{address}"


@asynccontextmanager
async def opened(kind: str, uri: str, store: Any) -> AsyncIterator[Any]:
    """A broker of this kind, whose calls are awaited."""
    if kind == "aio":
        async with mongoq.connect_async(uri, database=store.database.name) as broker:
            yield broker
    else:
        with mongoq.connect(uri, database=store.database.name) as sync_broker:
            yield Awaited(sync_broker)


@KINDS
async def test_who_may_only_read_reads_everything(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    ids = {each["payload"]: each["_id"] for each in store.find({"payload": {"$exists": True}})}
    async with opened(kind, uri_of(guarded, READER, store), store) as broker:
        queue = broker.queue("orders")
        assert await broker.ping()
        assert [item.payload for item in await queue.peek(5)] == [2]
        assert (await queue.get(ids[0])).state == "processed"
        assert (await queue.size(), (await queue.counts()).ready) == (1, 1)
        assert [item.payload async for item in queue.history()] == [0]
        assert (await queue.peek(1, state="processed"))[0].payload == 0
        assert (await broker.stats())["orders"].counts.ready == 1
        assert await broker.queues() == ["orders", "orders.dead"]
        assert await queue.next_when() is not None
        assert [item.payload for item in await queue.dead.peek(5)] == [1]
        assert [item.origin.reason for item in await broker.dead_queue("orders.dead").peek(5)] == ["tests"]
        assert await broker.bindings() == {"news": ("orders",)}
        assert await queue.is_paused() is False
        assert await broker.trail(ids[2]) == ()
        assert await broker.workers() == []


@KINDS
async def test_a_write_without_the_right_says_what_it_needs(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    refused = pytest.raises(OperationFailure, match="not authorized on .* to execute command")
    async with opened(kind, uri_of(guarded, READER, store), store) as broker:
        with refused as caught:
            await broker.queue("orders").push(1)
        place = store.full_name
        note = f"may not run 'insert' on {place}: grant the action 'insert' on {place}, or the role 'readWrite'"
        assert note in str(caught.value)
        advice = "; 'mongoq role producer|worker|viewer' prints roles with no more than they need"
        assert str(caught.value).endswith(advice)
        for history in (None, 60):
            with refused as caught:
                await broker.queue("orders", history=history).pop()
            assert "RawBSONDocument" not in str(caught.value)
            assert caught.value.details is not None
            assert caught.value.details["codeName"] == "Unauthorized"


def test_a_worker_that_may_only_read_ends_with_the_right_that_it_lacks(
    guarded: EmbeddedServer, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store.update_one({"payload": 2}, {"$set": {"payload": "hunter2"}})
    place = re.escape(store.full_name)
    grant = f"grant the action '(update|insert)' on {place}, or the role 'readWrite' on the database"
    with mongoq.connect(uri_of(guarded, READER, store), database=store.database.name) as broker:
        worker = mongoq.Worker(broker)
        worker.consumer("orders")(lambda _: None)
        with (
            caplog.at_level(logging.INFO, "mongoq.worker"),
            pytest.raises(
                OperationFailure, match=rf"the server knows the user, who may not run '\w+' on {place}: {grant}"
            ),
        ):
            worker.run()
    assert not re.search(r"hunter2|\{|lsid|clusterTime|not authorized", caplog.text)


@pytest.mark.parametrize("lacking", ["insert", "remove"])
@pytest.mark.parametrize("how", ["threads", "tasks", "pipeline", "pipeline in tasks"])
async def test_a_worker_that_could_not_settle_runs_no_handler(
    how: str, lacking: str, guarded: EmbeddedServer, store: Any
) -> None:
    actions = {"find", "insert", "update", "remove"} - {lacking}
    role = _role(store.database.client, store.database.name, {"db": store.database.name, "collection": ""}, *actions)
    store.database.command("createUser", "some", pwd="some", roles=[role])
    uri, ran = uri_of(guarded, "some", store), []
    with mongoq.connect(guarded.uri, database=store.database.name) as broker:
        broker.queue("bills").push_many(range(3))
    try:
        with pytest.raises(OperationFailure, match=f"code': 13.*grant the action.*'{lacking}'"):
            if how in ("threads", "pipeline"):
                with mongoq.connect(uri, database=store.database.name) as broker:
                    _work(broker, how, ran.append)
            else:
                async with mongoq.connect_async(uri, database=store.database.name) as async_broker:
                    await _work_async(async_broker, how, ran.append)
    finally:
        store.database.command("dropUser", "some")
    assert ran == []
    assert store.count_documents({"q": "bills", "attempts": 0}) == 3


def _work(broker: mongoq.Broker, how: str, handle: Any) -> None:
    if how == "pipeline":
        pipeline = mongoq.Pipeline("line", errors="line.errors")
        pipeline.sink("bills")(handle)
        pipeline.drain(broker)
    else:
        worker = mongoq.Worker(broker)
        worker.consumer("bills")(handle)
        worker.run(drain=True)


async def _work_async(broker: mongoq.AsyncBroker, how: str, handle: Any) -> None:
    async def work(payload: Any) -> None:
        handle(payload)

    if how == "pipeline in tasks":
        pipeline = mongoq.Pipeline("line", errors="line.errors")
        pipeline.sink("bills")(work)
        await pipeline.drain_async(broker)
    else:
        worker = mongoq.AsyncWorker(broker)
        worker.consumer("bills")(work)
        await worker.run(drain=True)


@pytest.mark.parametrize(("kind", "user"), [("sync", WRITER), ("aio", WATCHER)])
async def test_who_may_not_create_indexes_works_where_they_are(
    kind: str, user: str, guarded: EmbeddedServer, store: Any
) -> None:
    async with opened(kind, uri_of(guarded, user, store), store) as broker:
        queue = broker.queue("orders")
        await queue.push("pushed", key="k")
        await queue.push_many(["a", "b"])
        await broker.queue("news").push("published")
        first = await queue.reserve()
        await queue.rollback(first)
        items = await queue.reserve_many(9)
        assert {item.payload for item in items} >= {"pushed", "a", "b", "published"}
        await queue.move(items[0], "next")
        await queue.commit_many(items[1:])
        assert await queue.pop() is None
        if kind == "aio":
            async with broker.transaction() as transaction:
                await queue.push("bound", session=transaction.session)
        assert (await queue.dead.replay()).pushed == 1
        assert (await broker.stats())["orders"].counts.ready >= 1


async def test_where_there_are_no_indexes_the_right_to_make_them_is_named(guarded: EmbeddedServer, store: Any) -> None:
    store.drop_indexes()
    with mongoq.connect(uri_of(guarded, "watcher", store), database=store.database.name) as broker:
        broker.queue("orders").push(1)  # may not look at the indexes: the schema document speaks for them
    store.database.command(
        "grantPrivilegesToRole",
        store.database.command("usersInfo", WATCHER)["users"][0]["roles"][0]["role"],
        privileges=[{"resource": {"db": store.database.name, "collection": ""}, "actions": ["listIndexes"]}],
    )
    with (
        mongoq.connect(uri_of(guarded, WATCHER, store), database=store.database.name) as broker,
        pytest.raises(OperationFailure, match="createIndexes") as caught,
    ):
        broker.queue("orders").push(1)
    advice = "start a worker first, or call broker.ensure_indexes() as an administrator"
    assert f"mongoq's indexes are not there yet: {advice}" in str(caught.value)
    assert "grant the action 'createIndex'" in str(caught.value)
    assert "'mongoq role worker'" in str(caught.value)
    store.drop()
    with (
        mongoq.connect(uri_of(guarded, WATCHER, store), database=store.database.name) as broker,
        pytest.raises(OperationFailure, match="createIndexes"),
    ):
        broker.queue("orders").push(1)


@KINDS
async def test_who_is_not_let_in_reads_why_and_not_the_password(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    place, address = store.full_name, guarded.uri.rpartition("@")[2].partition("&")[0]
    missing = f"who may not run 'find' on {place}: grant the action 'find' on {place}, or the role 'read'"
    wrong = uri_of(guarded, READER, store).replace("reader:reader@", "reader:swordfish@")
    for uri, reason in (
        (uri_of(guarded, NOBODY, store), missing),
        (f"mongodb://{address}", "demands that its clients log in: give user and password"),
        (wrong, "refused the user: check user, password"),
    ):
        with pytest.raises(mongoq.AuthenticationFailed) as caught:
            async with opened(kind, uri, store):
                pass
        assert reason in str(caught.value)
        assert "swordfish" not in str(caught.value)


def test_a_server_that_is_no_primary_is_read_and_says_what_to_do_for_a_write() -> None:
    """A set of one node whose primary has stepped down; a client that asks for this server alone gets it as it is."""
    with EmbeddedServer() as server:
        uri = f"mongodb://127.0.0.1:{server.port}/?directConnection=true"
        with MongoClient[Any](uri) as client:
            mongoq.Broker(client["app"]["mongoq"]).queue("orders").push(1)
            client.admin.command("replSetStepDown", 600, secondaryCatchUpPeriodSecs=0, force=True)
            with mongoq.connect(uri, database="app") as broker:
                queue = broker.queue("orders")
                assert [item.payload for item in queue.peek()] == [1]
                assert broker.stats()["orders"].counts.ready == 1
                for write in (queue.pop, lambda: queue.push(2), queue.purge):
                    with pytest.raises(NotPrimaryError, match=r"leave directConnection=true out.*replicaSet=mongoq"):
                        write()
