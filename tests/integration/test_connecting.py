"""Connecting: a broker, or a sentence that says what to do and holds no credentials."""

from __future__ import annotations

import gc
import re
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, IndexModel, MongoClient, ReadPreference, WriteConcern
from pymongo.database import Database

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.integration.commands import Commands, failing
from tests.proxy import Proxy

PASSWORD = "hunter2:secret"
KINDS = pytest.mark.parametrize("kind", ["connect", "connect_async"])
# PyMongo's monitors, cancelled by close() in the middle of a refused connection, leave its socket to the collector
LEAVES_SOCKETS = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedServer]:
    """A standalone server with a user."""
    with EmbeddedServer(replica_set=None, auth=("keeper", PASSWORD)) as running:
        yield running


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port on which nobody listens, and which nobody else gets meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


async def fail_to_connect(kind: str, uri: Any, *secrets: str, **options: Any) -> mongoq.MongoqError:
    """Connect with the call of this kind, and return the error that it raises, which holds no secret."""
    with pytest.raises(mongoq.MongoqError) as caught:
        await mongoq.connect_async(uri, **options) if kind == "connect_async" else mongoq.connect(uri, **options)
    error: BaseException | None = caught.value
    while error is not None:
        for secret in ("hunter2", *secrets):
            assert secret not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__
    return caught.value


# --- a broker ------------------------------------------------------------------------------------


def test_a_broker_from_a_uri_works_and_closes(uri: str, database: str) -> None:
    with mongoq.connect(uri, database=database, collection="jobs") as broker:
        assert broker.namespace == f"{database}.jobs"
        assert broker.ping() > timedelta(0)
        broker.queue("a").push(1)
        assert repr(broker) == f"<Broker {database}.jobs>"
        assert repr(broker.queue("a")) == f"<Queue 'a' in {database}.jobs>"
    with pytest.raises(mongoq.BrokerClosed):
        broker.queue("a").push(1)


async def test_connect_async_awaits_or_opens_a_block(uri: str, database: str) -> None:
    broker = await mongoq.connect_async(uri, database=database)
    await broker.queue("a").push(1)
    await broker.close()
    async with mongoq.connect_async(uri, database=database) as broker:
        assert await broker.queue("a").size() == 1


def test_the_database_comes_from_the_uri_unless_it_is_named(uri: str, database: str) -> None:
    base, _, options = uri.partition("?")
    with mongoq.connect(f"{base.rstrip('/')}/{database}?{options}") as broker:
        assert broker.namespace == f"{database}.mongoq"
    with mongoq.connect(uri) as broker:
        assert broker.namespace == "mongoq.mongoq"


@pytest.mark.parametrize(("options", "name"), [("", "mongoq"), ("&appName=shop-{}", "shop-{}")])
def test_the_server_knows_the_client_by_the_name_in_the_uri(
    uri: str, database: str, client: MongoClient[Any], options: str, name: str
) -> None:
    with mongoq.connect(uri + options.format(database), database=database) as broker:
        broker.queue("orders").push(1)
        connections = client.admin.aggregate([{"$currentOp": {"idleConnections": True, "allUsers": True}}])
        assert name.format(database) in {connection.get("appName") for connection in connections}


def test_a_name_that_is_too_long_for_the_driver_is_left_out(uri: str, database: str) -> None:
    with (
        pytest.warns(UserWarning, match="appname must be"),
        mongoq.connect(f"{uri}&appName={'x' * 200}", database=database) as broker,
    ):
        broker.queue("orders").push(1)


def test_a_standalone_server_serves_single_items(guarded: EmbeddedServer) -> None:
    with mongoq.connect(guarded.uri, database="alone") as broker:
        assert "hunter2" not in repr(broker) + repr(broker.queue("a"))
        queue = broker.queue("orders", history=60)
        queue.push({"n": 1})
        queue.push({"n": 2})
        item = queue.reserve()
        assert item is not None
        queue.move(item, "next", patch={"$inc": {"n": 10}})
        queue.pop()
        assert [processed.payload for processed in queue.history()] == [{"n": 2}]
        (moved,) = broker.queue("next").peek()
        assert moved.payload == {"n": 11}


# --- no server -----------------------------------------------------------------------------------


@KINDS
@LEAVES_SOCKETS
async def test_no_server_is_a_sentence_and_the_search_ends_when_the_uri_says(kind: str, unused_port: int) -> None:
    address = f"127.0.0.1:{unused_port}"
    long, short = "serverSelectionTimeoutMS=3600000", "serverSelectionTimeoutMS=400"
    for options, timeout, limit in (
        (long, 0.4, "timeout=0.4 s"),
        (short, 3_600, short),
        (f"{long}&timeoutMS=400", None, "timeout=0.4 s"),
    ):
        error = await fail_to_connect(kind, f"mongodb://me:hunter2@{address}/?{options}", timeout=timeout)
        assert isinstance(error, mongoq.ServerUnavailable)
        assert f"answered at {address} in time ({limit}): start one" in str(error)
        assert re.search("Errno|found yet", str(error))  # a busy machine has not looked yet when the time is over
    gc.collect()


@pytest.mark.usefixtures("impatient")
def test_a_server_that_hangs_up_is_not_said_to_be_late(uri: str, client: MongoClient[Any], database: str) -> None:
    with (
        failing(client, "ping", "listCollections", "find", times=None, closeConnection=True, appName=database),
        pytest.raises(mongoq.ServerUnavailable, match=r"answered at [\d.:]+: start one") as caught,
    ):
        mongoq.connect(f"{uri}&appName={database}", timeout=20)
    assert "timeout" not in str(caught.value)


@LEAVES_SOCKETS
async def test_a_server_that_speaks_no_tls_is_reported(server: EmbeddedServer) -> None:
    uri = f"mongodb://127.0.0.1:{server.port}/?tls=true&serverSelectionTimeoutMS=1000"
    error = await fail_to_connect("connect", uri)
    assert isinstance(error, mongoq.ServerUnavailable)
    assert re.search("SSL|connection closed|reset|found yet", str(error))
    gc.collect()


def test_a_short_search_does_not_shorten_the_commands_behind_it(
    uri: str, client: MongoClient[Any], database: str
) -> None:
    slow = {"blockConnection": True, "blockTimeMS": 5_100, "appName": database}
    with failing(client, "listCollections", **slow):
        mongoq.connect(f"{uri}&appName={database}&serverSelectionTimeoutMS=5000").close()


def test_a_broker_closes_soon_when_its_server_has_gone(uri: str) -> None:
    """Without looking for it as long as a call would, which is longer than the limit of this test."""
    with Proxy(uri) as proxy:
        broker = mongoq.connect(proxy.uri_with(serverSelectionTimeoutMS="3600000"))
        broker.queue("orders").push(1)
        proxy.stop()
        broker.close()


# --- connection strings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("mongodb+srv://me:hunter2@a.b.c:27017/", "must not include a port number"),
        ("mongodb://me:hunter2@h/?tlsCertificateKeyFile=/nowhere/key.pem", "not readable|key.pem"),
        (f"mongodb://h/?tls=true&tlsCertificateKeyFile={__file__}&tlsCertificateKeyFilePassword=hunter2", "PEM"),
        ("mongodb://me:hunter2@h/?datetime_conversion=hunter2", "datetime_conversion|KeyError|…"),
        ("mongodb://me:hunter2@h/?minPoolSize=9&maxPoolSize=5", "minPoolSize must be smaller"),
        ("mongodb://me:hun@ter2@h/", "must be escaped according to RFC 3986"),
        ("mongodb://localhost:99999", "Port must be an integer between 0 and 65535"),
    ],
)
async def test_a_uri_that_the_driver_refuses_has_the_drivers_sentence(uri: str, sentence: str) -> None:
    error = await fail_to_connect("connect", uri, "ter2")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert re.search(f"^uri: the driver cannot use this connection string: .*({sentence})", str(error))
    assert "percent-encoded" not in str(error)


async def test_a_host_without_srv_records_has_the_drivers_sentence() -> None:
    error = await fail_to_connect("connect_async", "mongodb+srv://me:hunter2@nowhere.invalid/?connectTimeoutMS=500")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert "DNS" in str(error)
    assert "nowhere.invalid" in str(error)


async def test_a_server_that_is_no_load_balancer_is_the_drivers_sentence(server: EmbeddedServer) -> None:
    error = await fail_to_connect("connect", f"mongodb://127.0.0.1:{server.port}/?loadBalanced=true")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert "load balancing mode" in str(error)


@pytest.mark.parametrize(
    ("userinfo", "scheme"),
    [("me:hun@ter2/w", "mongodb"), ("me:hunter2?w", "mongodb"), ("me/x:hunter2", "mongodb+srv")],
)
async def test_a_user_or_password_that_is_not_escaped_is_reported(userinfo: str, scheme: str) -> None:
    error = await fail_to_connect("connect", f"{scheme}://{userinfo}@nowhere/app", "ter2")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert "; user and password must be percent-encoded where they hold '@'" in str(error)


@LEAVES_SOCKETS
async def test_a_part_of_a_password_that_the_driver_takes_for_a_host_is_hidden() -> None:
    """The dots let the driver take the rest of the string for a database and a collection."""
    with pytest.raises(mongoq.ServerUnavailable, match="must be percent-encoded where they hold '@'") as caught:
        mongoq.connect("mongodb://hunter2:12/w@db.nowhere.invalid/app", timeout=0.3)
    assert "hunter2" not in str(caught.value)
    gc.collect()


@KINDS
@pytest.mark.parametrize(
    "uri",
    [
        "",
        "localhost",
        "http://localhost",
        "mongodb://",
        "mongodb://me:hunter2@:secret@host",
        "mongodb://me:hunter2:x@host:12",
        "mongodb://me:hunter2/x@host",
        "mongodb://host:hunter2",
        "mongodb://host/?hunter2",
        None,
    ],
)
async def test_a_uri_that_cannot_be_used_loses_what_may_be_a_credential(kind: str, uri: Any) -> None:
    error = await fail_to_connect(kind, uri)
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert str(error).startswith("uri: ")


@KINDS
@pytest.mark.parametrize("options", ["nonsense=hunter2", "authMechanism=hunter2"])
async def test_what_the_driver_only_warns_of_is_a_warning(kind: str, uri: str, options: str) -> None:
    with pytest.warns(UserWarning, match=r"option|[Mm]ust be") as caught:  # noqa: PT031
        if kind == "connect_async":
            await (await mongoq.connect_async(f"{uri}&{options}")).close()
        else:
            mongoq.connect(f"{uri}&{options}").close()
    assert all("hunter2" not in str(each.message) for each in caught)


def test_a_warning_that_the_caller_made_an_error_stays_what_it_is(uri: str) -> None:
    with pytest.raises(UserWarning, match="Unknown option"):
        mongoq.connect(f"{uri}&nonsense=1")


async def test_a_user_whom_the_server_refuses_is_a_sentence(guarded: EmbeddedServer) -> None:
    address = f"127.0.0.1:{guarded.port}"
    for uri, words in (
        (f"mongodb://keeper:hunter2@{address}/", f"{address} refused the user: check user"),
        (f"mongodb://{address}/", ""),
        (f"mongodb://me:hunter2@{address}/?authMechanism=PLAIN", "PLAIN"),
    ):
        error = await fail_to_connect("connect", uri)
        assert isinstance(error, mongoq.AuthenticationFailed)
        assert words in str(error)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("database", name) for name in ("a b", "a.b", "", 5)),
        *(("collection", name) for name in ("", "a..b", ".a", "$a", 5)),
        ("timeout", -1),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(uri: str, option: str, wrong: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=option):
        mongoq.connect(uri, **{option: wrong})


async def test_what_is_no_broker_yet_and_what_is_no_collection_say_how_to_make_a_broker(uri: str, raw: Any) -> None:
    pending: Any = mongoq.connect_async(uri)
    with pytest.raises(AttributeError, match=r"no 'queue': await connect_async"):
        pending.queue("orders")
    with pytest.raises(TypeError, match=r"mongoq.connect\(uri\) makes a broker"):
        mongoq.Broker(uri)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"await mongoq.connect_async\(uri\) makes a broker"):
        mongoq.AsyncBroker(uri)
    with pytest.raises(TypeError, match="collection: a PyMongo"):
        mongoq.Broker(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use mongoq\.Broker"):
        mongoq.AsyncBroker(raw)
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri, connect=False)
    with pytest.raises(TypeError, match=r"use mongoq\.AsyncBroker"):
        mongoq.Broker(client["a"]["b"])  # type: ignore[arg-type]
    await client.close()


# --- what is there -------------------------------------------------------------------------------


def test_a_schema_from_the_future_is_refused_before_anything_is_written(uri: str, database: str, raw: Any) -> None:
    raw.insert_one({"_id": "schema:mongoq", "version": 9, "oldest_reader": 7})
    with pytest.raises(mongoq.SchemaTooNew, match="upgrade mongoq-driver") as caught:
        mongoq.connect(uri, database=database)
    assert (caught.value.version, caught.value.oldest_reader, caught.value.supported) == (9, 7, 1)
    queue = mongoq.Broker(raw).queue("a")
    for attempt in (lambda: queue.push(1), lambda: queue.reserve(), lambda: queue.size(), lambda: queue.peek()):
        with pytest.raises(mongoq.SchemaTooNew):
            attempt()
    assert raw.count_documents({}) == 1
    assert list(raw.index_information()) == ["_id_"]


def test_a_later_schema_that_admits_this_reader_is_used_and_kept(uri: str, database: str, raw: Any) -> None:
    raw.insert_one({"_id": "schema:mongoq", "version": 9, "oldest_reader": 1})
    with mongoq.connect(uri, database=database) as broker:
        broker.queue("a").push(1)
    assert raw.find_one({"_id": "schema:mongoq"})["version"] == 9


def test_the_first_write_makes_indexes_and_schema_and_a_look_makes_nothing(broker: mongoq.Broker, raw: Any) -> None:
    assert broker.queue("a").size() == 0
    assert broker.queues() == []
    assert raw.database.list_collection_names() == []
    broker.queue("a").push(1)
    assert raw.find_one({"_id": "schema:mongoq"}) == {"_id": "schema:mongoq", "version": 1, "oldest_reader": 1}
    names = {"_id_", "mongoq1_claim", "mongoq1_key", "mongoq1_history", "mongoq1_sequence", "mongoq1_expires"}
    assert set(raw.index_information()) == names
    broker.ensure_indexes()
    assert set(raw.index_information()) == names


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_sharded_collection_is_refused(raw: Any, monkeypatch: pytest.MonkeyPatch, is_sharded: bool) -> None:
    """What mongos answers: there is none among the tests' servers."""
    ask = Database.command

    def answer(database: Any, command: Any, *args: Any, **options: Any) -> Any:
        if "collStats" in command:
            return {"sharded": is_sharded}
        reply = ask(database, command, *args, **options)
        return {**reply, "msg": "isdbgrid"} if "hello" in command else reply

    monkeypatch.setattr(Database, "command", answer)
    with mongoq.Broker(raw) as broker:
        for call in (broker.queue("orders").size, broker.ensure_indexes):
            if is_sharded:
                with pytest.raises(mongoq.CollectionSharded, match="is sharded"):
                    call()
            else:
                call()


@pytest.mark.parametrize(
    "options",
    [
        {"capped": True, "size": 10_000},
        {"collation": {"locale": "en", "strength": 2}},
        {"viewOn": "other"},
        {"validator": {"name": {"$exists": True}}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_collection_that_is_not_plain_is_refused(uri: str, database: str, raw: Any, options: Any) -> None:
    raw.database.create_collection("mongoq", **options)
    with pytest.raises(mongoq.CollectionUnsuitable, match="name a plain collection") as caught:
        mongoq.connect(uri, database=database)
    assert caught.value.__cause__ is None


KEYS = [("q", 1), ("priority", 1), ("when", 1), ("_id", 1)]
SPOILT: dict[str, tuple[Callable[[Any], object], str]] = {
    "name": (lambda raw: raw.create_index("other", name="mongoq1_claim"), "mongoq1_claim.*drop the index of that name"),
    "keys": (
        lambda raw: raw.create_index(KEYS, name="mine", partialFilterExpression={"when": {"$exists": True}}),
        "mine.*drop the other index",
    ),
    "many": (
        lambda raw: raw.create_indexes([IndexModel(f"f{n}") for n in range(62)]),
        "too many indexes.*mongoq needs five",
    ),
}
"""Indexes of another program that leave no room for those of mongoq, and what the error says."""


@pytest.mark.parametrize("fault", SPOILT)
def test_indexes_of_others_that_are_in_the_way_are_named(broker: mongoq.Broker, raw: Any, fault: str) -> None:
    spoil, message = SPOILT[fault]
    spoil(raw)
    with pytest.raises(mongoq.CollectionUnsuitable, match=f"cannot have mongoq's indexes: .*{message}"):
        broker.queue("orders").push(1)
    assert raw.find_one({}) is None


def test_a_hidden_index_is_named_with_the_command_that_shows_it(broker: mongoq.Broker, raw: Any) -> None:
    broker.ensure_indexes()
    raw.database.command("collMod", raw.name, index={"name": "mongoq1_claim", "hidden": True})
    refused = pytest.raises(mongoq.CollectionUnsuitable, match="hidden mongoq1_claim from .*hidden: false")
    with mongoq.Broker(raw) as other, refused:
        other.queue("orders").push(1)
    assert raw.count_documents({"q": "orders"}) == 0


def test_a_validator_that_comes_later_is_named(broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders")
    orders.push(1)
    raw.database.command("collMod", raw.name, validator={"name": {"$exists": True}})
    for write in (lambda: orders.push(2), lambda: orders.push_many([2, 3]), orders.reserve):
        with pytest.raises(Exception, match="a validator of the collection refuses what mongoq writes"):
            write()


@pytest.mark.parametrize("retried", [True, False], ids=["retried", "not-retried"])
def test_the_callers_collection_is_rebound_and_left_alone(uri: str, database: str, retried: bool) -> None:
    """Writes of every kind: by commands of ours, and those that the driver sends where its retries are off."""
    commands = Commands()
    with MongoClient[Any](uri, retryWrites=retried, event_listeners=[commands]) as client:
        careless = client[database].get_collection(
            "mongoq", read_preference=ReadPreference.SECONDARY, write_concern=WriteConcern(w=0)
        )
        queue = mongoq.Broker(careless).queue("a", history=60)
        queue.push({"at": datetime(2024, 1, 1, tzinfo=UTC)})
        item = queue.pop()
        assert item is not None
        assert item.payload == {"at": datetime(2024, 1, 1, tzinfo=UTC)}
        assert len(list(queue.history())) == 1
        queue.push_many([1, 2])
        queue.push_many([3], ids=[ObjectId()])
        (item,) = queue.reserve_many(1)
        queue.commit(item)
        assert queue.purge() == 2
        assert careless.write_concern == WriteConcern(w=0)
    writes = [each for each in commands.sent if {"insert", "update", "delete", "findAndModify"} & each.keys()]
    assert len(writes) >= 6
    assert all(command.get("writeConcern") == {"w": "majority"} for command in writes)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["connect_async", "own client"])
async def test_a_block_that_ends_after_its_broker_raises_broker_closed(
    uri: str, database: str, own: bool, fails: bool
) -> None:
    client: AsyncMongoClient[object] = AsyncMongoClient(uri)
    broker = (
        mongoq.AsyncBroker(client[database]["mongoq"]) if own else await mongoq.connect_async(uri, database=database)
    )
    queue = broker.queue("orders")
    id = await queue.push(1)
    with pytest.raises(mongoq.BrokerClosed):
        async with queue.reserved():
            await broker.close()
            if fails:
                raise ValueError
    async with mongoq.AsyncBroker(client[database]["mongoq"]) as other:
        item = await other.queue("orders").get(id)
        assert item is not None
        assert item.state == "reserved"
    await client.close()
