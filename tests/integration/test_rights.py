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
from mongoq.drivers.errors import describe_missing_right
from mongoq.embedded import EmbeddedServer
from tests.servers import spare_the_journal
from tests.shells import Awaited
from tests.worker.conftest import Desk

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
async def test_who_may_only_read_reads_counters_though_its_own_counts_cannot_be_written(
    kind: str, guarded: EmbeddedServer, store: Any
) -> None:
    async with opened(kind, uri_of(guarded, READER, store), store) as broker:
        before = (await broker.stats())["orders"]
        broker._context.stats = None  # an answer holds for a second
        broker._context.counters.add("orders", "put", 2)
        broker._context.counters.add("new", "put")
        stats = await broker.stats()
        assert stats["orders"].put == before.put + 2
        assert stats["orders"].counts == before.counts
        assert stats["new"] == mongoq.QueueStats(put=1)


@KINDS
async def test_a_push_without_the_right_says_what_it_needs(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    async with opened(kind, uri_of(guarded, READER, store), store) as broker:
        with pytest.raises(OperationFailure, match="not authorized on .* to execute command") as caught:
            await broker.queue("orders").push(1)
    place = store.full_name
    note = f"may not run 'insert' on {place}: grant the action 'insert' on {place}, or the role 'readWrite'"
    assert note in str(caught.value)
    assert str(caught.value).endswith("; 'mongoq role producer|worker|viewer' prints roles with no more than they need")


@KINDS
@pytest.mark.parametrize("history", [None, 60])
async def test_a_pop_without_the_right_says_so_in_words(
    kind: str, history: Any, guarded: EmbeddedServer, store: Any
) -> None:
    async with opened(kind, uri_of(guarded, READER, store), store) as broker:
        with pytest.raises(OperationFailure, match="not authorized on .* to execute command") as caught:
            await broker.queue("orders", history=history).pop()
    assert "RawBSONDocument" not in str(caught.value)
    assert caught.value.details is not None
    assert caught.value.details["codeName"] == "Unauthorized"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_worker_that_may_only_read_ends_with_the_right_that_it_lacks(
    kind: str, guarded: EmbeddedServer, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(_: Any) -> None: ...

    store.update_one({"payload": 2}, {"$set": {"payload": "hunter2"}})
    desk = Desk(kind, uri_of(guarded, READER, store), store.database.name, mongoq.Broker(store))
    desk.consume("orders", handle)
    place = re.escape(store.full_name)
    grant = f"grant the action '(update|insert)' on {place}, or the role 'readWrite' on the database"
    with (
        caplog.at_level(logging.INFO, "mongoq.worker"),
        pytest.raises(OperationFailure, match=rf"the server knows the user, who may not run '\w+' on {place}: {grant}"),
    ):
        desk.start().join()
    assert "OperationFailure: code 13" in caplog.text
    assert not re.search(r"hunter2|\{|lsid|clusterTime|not authorized", caplog.text)


@KINDS
@pytest.mark.parametrize("user", [WRITER, WATCHER])
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
async def test_a_missing_right_is_named_and_not_the_password(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    with pytest.raises(mongoq.AuthenticationFailed) as caught:
        async with opened(kind, uri_of(guarded, NOBODY, store), store):
            pass
    message = str(caught.value)
    place = store.full_name
    assert f"who may not run 'find' on {place}: grant the action 'find' on {place}, or the role 'read'" in message
    assert "password" not in message


@KINDS
async def test_a_client_that_has_not_logged_in_is_asked_to(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    address = guarded.uri.rpartition("@")[2].partition("&")[0]
    with pytest.raises(mongoq.AuthenticationFailed, match="demands that its clients log in: give user and password"):
        async with opened(kind, f"mongodb://{address}", store):
            pass


@KINDS
async def test_a_wrong_password_is_still_reported(kind: str, guarded: EmbeddedServer, store: Any) -> None:
    uri = uri_of(guarded, READER, store).replace("reader:reader@", "reader:swordfish@")
    with pytest.raises(mongoq.AuthenticationFailed, match="refused the user: check user, password") as caught:
        async with opened(kind, uri, store):
            pass
    assert "swordfish" not in str(caught.value)


@KINDS
async def test_a_server_that_is_no_primary_is_read_and_says_what_to_do_for_a_write(kind: str) -> None:
    """A set of one node whose primary has stepped down; a client that asks for this server alone gets it as it is."""
    with EmbeddedServer() as server:
        uri = f"mongodb://127.0.0.1:{server.port}/?directConnection=true"
        with MongoClient[Any](uri) as client:
            mongoq.Broker(client["app"]["mongoq"]).queue("orders").push(1)
            client.admin.command("replSetStepDown", 600, secondaryCatchUpPeriodSecs=0, force=True)
            async with opened(kind, uri, client["app"]["mongoq"]) as broker:
                queue = broker.queue("orders")
                assert [item.payload for item in await queue.peek()] == [1]
                assert (await broker.stats())["orders"].counts.ready == 1
                for write in (queue.pop, lambda: queue.push(2), queue.purge):
                    with pytest.raises(NotPrimaryError, match=r"leave directConnection=true out.*replicaSet=mongoq"):
                        await write()


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ({"serverStatus": 1}, "grant the action 'serverStatus' on the cluster, or the role 'clusterMonitor'"),
        ({"replSetGetConfig": 1}, "grant the action 'replSetGetConfig' on the cluster, or the role 'clusterMonitor'"),
        (
            {"getParameter": 1, "quiet": 1},
            "grant the action 'getParameter' on the cluster, or the role 'clusterMonitor'",
        ),
        ({"collStats": "mongoq"}, "grant the action 'collStats' on PLACE.mongoq, or the role 'read' on"),
        ({"explain": {"find": "mongoq"}}, "grant the action 'find' on PLACE"),
        ({"aggregate": "mongoq", "pipeline": [{"$changeStream": {}}], "cursor": {}}, "'changeStream' and 'find' on"),
        ({"findAndModify": "mongoq", "query": {}, "remove": True}, "grant the action 'remove' on PLACE.mongoq, or"),
        (
            {"findAndModify": "mongoq", "query": {}, "update": {"$set": {"remove": True}}, "upsert": True},
            "grant the actions 'update' and 'insert' on PLACE.mongoq, or the role 'readWrite'",
        ),
        (
            {"update": "mongoq", "updates": [{"q": {}, "u": {"$set": {"n": 1}}, "upsert": True}]},
            "grant the action 'update' on PLACE.mongoq, or the role 'readWrite' on the database 'PLACE'; an update "
            "that may add a document needs 'insert' too",
        ),
        ({"find": "mongoq"}, "on the database 'PLACE'; 'mongoq role producer|worker|viewer' prints roles"),
        ({"drop": "mongoq"}, "grant the action 'dropCollection' on PLACE.mongoq"),
        ({"dropRole": "viewer"}, "grant the action 'dropRole' on PLACE"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_advice_names_a_role_that_has_the_right(
    guarded: EmbeddedServer, store: Any, command: dict[str, Any], advice: str
) -> None:
    name = store.database.name
    with MongoClient[Any](uri_of(guarded, NOBODY, store)) as client, pytest.raises(OperationFailure) as refused:
        client["admin" if "clusterMonitor" in advice and "serverStatus" not in command else name].command(command)
    assert advice.replace("PLACE", name) in describe_missing_right(refused.value)
