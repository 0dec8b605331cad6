"""Connecting: a broker, or a sentence that says what to do and holds no credentials."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.monitoring import CommandStartedEvent

import mongoq
from mongoq import connection
from mongoq.drivers.connection_string import has_option, redact_error
from mongoq.embedded import EmbeddedServer
from mongoq.protocol.base import bootstrap
from mongoq.protocol.state.context import BrokerContext
from tests.integration.concurrent_callers import Listener
from tests.unit.scripted import context, found, play

PASSWORD = "hunter2:secret"


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedServer]:
    """A standalone server with a user."""
    with EmbeddedServer(replica_set=None, auth=("keeper", PASSWORD)) as running:
        yield running


def test_a_broker_from_a_uri_works_and_closes(uri: str, database: str) -> None:
    with mongoq.connect(uri, database=database, collection="jobs") as broker:
        assert broker.namespace == f"{database}.jobs"
        assert broker.ping() > timedelta(0)
        broker.queue("a").push(1)
        assert repr(broker) == f"<Broker {database}.jobs>"
        assert repr(broker.queue("a")) == f"<Queue 'a' in {database}.jobs>"
    with pytest.raises(mongoq.BrokerClosed):
        broker.queue("a").push(1)


@pytest.mark.parametrize(("options", "name"), [("", "mongoq"), ("&appName=shop", "shop")])
def test_the_server_knows_the_client_by_the_name_in_the_uri(uri: str, database: str, options: str, name: str) -> None:
    with mongoq.connect(uri + options, database=database) as broker:
        assert broker._driver._backend.client.options.pool_options.appname == name


def test_a_name_that_is_too_long_for_the_driver_is_left_out(uri: str, database: str) -> None:
    with (
        pytest.warns(UserWarning, match="appname must be"),
        mongoq.connect(f"{uri}&appName={'x' * 200}", database=database) as broker,
    ):
        assert broker._driver._backend.client.options.pool_options.appname == "mongoq"


async def test_connect_async_awaits_or_opens_a_block(uri: str, database: str) -> None:
    broker = await mongoq.connect_async(uri, database=database)
    await broker.queue("a").push(1)
    await broker.close()
    async with mongoq.connect_async(uri, database=database) as broker:
        assert await broker.queue("a").size() == 1


def test_the_database_comes_from_the_uri_unless_it_is_named(server: EmbeddedServer, database: str) -> None:
    base, _, options = server.uri.partition("?")
    with mongoq.connect(f"{base.rstrip('/')}/{database}?{options}") as broker:
        assert broker.namespace == f"{database}.mongoq"
    with mongoq.connect(server.uri) as broker:
        assert broker.namespace == "mongoq.mongoq"


def test_no_server_is_a_sentence(unused_port: int) -> None:
    started = time.monotonic()
    words = rf"answered at 127\.0\.0\.1:{unused_port} in time \(timeout=0\.3 s\): start one"
    with pytest.raises(mongoq.ServerUnavailable, match=words) as caught:
        mongoq.connect(f"mongodb://me:{PASSWORD.replace(':', '%3A')}@127.0.0.1:{unused_port}", timeout=0.3)
    assert time.monotonic() - started < 25, "the driver itself would wait for 30 seconds"
    assert_no_secrets(caught.value)


def test_a_server_that_hangs_up_is_not_said_to_be_late(uri: str, client: MongoClient[Any], database: str) -> None:
    fault = {"failCommands": ["ping", "listCollections", "find"], "closeConnection": True, "appName": database}
    client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=fault)
    try:
        with pytest.raises(mongoq.ServerUnavailable, match=r"answered at [\d.:]+: start one") as caught:
            mongoq.connect(f"{uri}&appName={database}", timeout=20)
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert "timeout" not in str(caught.value)


# PyMongo's monitors, cancelled by close() in the middle of a refused connection, leave its socket to the collector
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_no_server_is_a_sentence_in_asyncio_too(unused_port: int) -> None:
    with pytest.raises(mongoq.ServerUnavailable, match="start one") as caught:
        await mongoq.connect_async(f"mongodb://127.0.0.1:{unused_port}", timeout=0.3)
    assert_no_secrets(caught.value)
    del caught
    gc.collect()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def assert_no_secrets(error: BaseException | None, *secrets: str) -> None:
    while error is not None:
        for secret in secrets or ("hunter2",):
            assert secret not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__


async def fail_to_connect(kind: str, uri: Any, **options: Any) -> mongoq.MongoqError:
    """Connect with the call of this kind, and return the error that it raises."""
    with pytest.raises(mongoq.MongoqError) as caught:
        await mongoq.connect_async(uri, **options) if kind == "connect_async" else mongoq.connect(uri, **options)
    return caught.value


KINDS = pytest.mark.parametrize("kind", ["connect", "connect_async"])


@KINDS
@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("mongodb+srv://me:hunter2@a.b.c:27017/", "must not include a port number"),
        ("mongodb+srv://me:hunter2@127.0.0.1/", "an IP address is not a valid hostname"),
        ("mongodb://me:hunter2@h/?tlsCertificateKeyFile=/nowhere/key.pem", "not readable|key.pem"),
        (f"mongodb://h/?tls=true&tlsCertificateKeyFile={__file__}&tlsCertificateKeyFilePassword=hunter2", "PEM"),
        (f"mongodb://h/?tls=false&tlsCAFile={__file__}", "TLS has not been enabled"),
        ("mongodb://h/?tlsInsecure=true&tlsAllowInvalidCertificates=true", "cannot be specified simultaneously"),
        ("mongodb://me:hunter2@h/?datetime_conversion=hunter2", "datetime_conversion|KeyError|…"),
        ("mongodb://me:hunter2@h,g/?directConnection=true", "multiple hosts with directConnection"),
        ("mongodb://me:hunter2@h/?minPoolSize=9&maxPoolSize=5", "minPoolSize must be smaller"),
        ("mongodb://me:hunter2@h/?srvMaxHosts=1", "srvMaxHosts option is only allowed"),
        ("mongodb://me:hunter2@h/?authMechanism=MONGODB-X509", "not supported by MONGODB-X509|X509"),
        ("mongodb://me:hun@ter2@h/", "must be escaped according to RFC 3986"),
        ("mongodb://me@h/?authMechanism=MONGODB-AWS", "username without a password is not supported"),
    ],
)
async def test_a_uri_that_the_driver_refuses_has_the_drivers_sentence(kind: str, uri: str, sentence: str) -> None:
    error = await fail_to_connect(kind, uri)
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert re.search(f"^uri: the driver cannot use this connection string: .*({sentence})", str(error))
    assert "percent-encoded" not in str(error)
    assert_no_secrets(error, "hunter2", "ter2")


@KINDS
@pytest.mark.parametrize(
    ("userinfo", "scheme"),
    [
        ("me:hun@ter2/w", "mongodb"),
        ("me:hunter2/w", "mongodb"),
        ("me:hunter2?w", "mongodb"),
        ("me/x:hunter2", "mongodb+srv"),
        ("me@shop:hunter2/w", "mongodb"),
    ],
)
async def test_a_user_or_password_that_is_not_escaped_is_reported(kind: str, userinfo: str, scheme: str) -> None:
    error = await fail_to_connect(kind, f"{scheme}://{userinfo}@nowhere/app")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert "; user and password must be percent-encoded where they hold '@'" in str(error)
    assert_no_secrets(error, "hunter2", "ter2")


@KINDS
@pytest.mark.parametrize("userinfo", ["me:hun@ter2/w", "hunter2:12/w"])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_part_of_a_password_that_the_driver_takes_for_a_host_is_hidden(kind: str, userinfo: str) -> None:
    """The dots let the driver take the rest of the string for a database and a collection."""
    error = await fail_to_connect(kind, f"mongodb://{userinfo}@db.nowhere.invalid/app", timeout=0.5)
    assert isinstance(error, mongoq.ServerUnavailable)
    assert "; user and password must be percent-encoded where they hold '@'" in str(error)
    assert_no_secrets(mongoq.ServerUnavailable(str(error)), "hunter2", "ter2")
    gc.collect()


@KINDS
async def test_a_host_without_srv_records_has_the_drivers_sentence(kind: str) -> None:
    error = await fail_to_connect(kind, "mongodb+srv://me:hunter2@nowhere.invalid/?connectTimeoutMS=500")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert "DNS" in str(error)
    assert "nowhere.invalid" in str(error)
    assert_no_secrets(error)


@pytest.mark.parametrize(
    ("uri", "sentence", "redacted"),
    [
        ("mongodb://me:p%40ss@h", "bad p@ss, p%40ss of me; some name", "bad …, … of …; some name"),
        ("mongodb://me:12/34 x@h", "Bad database name '34 x@h'", "Bad database name '…@h'"),
        ("mongodb://h/?tlsCertificateKeyFilePassword=a%2Fbcd", "a/bcd in h", "… in h"),
        (
            "mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:to:ken1,SERVICE_NAME:x1y2",
            "AWS_SESSION_TOKEN to:ken1 x1y2",
            "AWS_SESSION_TOKEN … …",
        ),
        ("mongodb://h:port", "Port port of h", "Port … of h"),
        ("mongodb://h/?Secret&w=1", "option secret; w=1", "option …; w=1"),
        ("mongodb://h/?w=1", "w must be more.", "w must be more"),
        ("mongodb://h/?w=1", "", "Exception"),
    ],
)
def test_a_sentence_of_the_driver_loses_what_may_be_a_credential(uri: str, sentence: str, redacted: str) -> None:
    assert redact_error(Exception(sentence), uri) == redacted


def test_an_error_of_a_key_is_shown_as_its_sentence() -> None:
    assert redact_error(KeyError("Invalid value"), "mongodb://h") == "Invalid value"


@KINDS
@pytest.mark.parametrize(
    "options",
    ["nonsense=hunter2", "maxPoolSize=5&maxPoolSize=6", "authMechanism=hunter2", "uuidRepresentation=hunter2"],
)
async def test_what_the_driver_only_warns_of_is_a_warning(kind: str, server: EmbeddedServer, options: str) -> None:
    uri = f"{server.uri}&{options}"
    with pytest.warns(UserWarning, match=r"option|[Mm]ust be") as caught:
        broker: Any = await mongoq.connect_async(uri) if kind == "connect_async" else mongoq.connect(uri)
    closing = broker.close()
    if kind == "connect_async":
        await closing
    assert all("hunter2" not in str(each.message) for each in caught)


def test_a_warning_that_the_caller_made_an_error_stays_what_it_is(server: EmbeddedServer) -> None:
    with pytest.raises(UserWarning, match="Unknown option"):
        mongoq.connect(f"{server.uri}&nonsense=1")


# PyMongo's monitors, cancelled by close() in the middle of a refused connection, leave its socket to the collector
@KINDS
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_search_for_a_server_ends_when_the_uri_says(kind: str, unused_port: int) -> None:
    uri = f"mongodb://me:hunter2@127.0.0.1:{unused_port}/?serverSelectionTimeoutMS=200"
    for options in ({}, {"timeout": 3_600}):
        error = await fail_to_connect(kind, uri, **options)
        assert isinstance(error, mongoq.ServerUnavailable)
        assert f"answered at 127.0.0.1:{unused_port} in time (serverSelectionTimeoutMS=200): start one" in str(error)
        assert "Errno" in str(error)
        assert_no_secrets(error)
    error = await fail_to_connect(kind, uri.replace("=200", "=3600000"), timeout=0.2)
    assert "in time (timeout=0.2 s)" in str(error)
    error = await fail_to_connect(kind, uri.replace("=200", "=3600000&timeoutMS=200"))
    assert "in time (timeout=0.2 s)" in str(error)
    gc.collect()


@KINDS
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_uri_may_ask_for_a_longer_search(kind: str, unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_SECONDS", 0.05)
    error = await fail_to_connect(kind, f"mongodb://127.0.0.1:{unused_port}/?serverSelectionTimeoutMS=300")
    assert "in time (timeout=0.3 s)" in str(error)
    error = await fail_to_connect(kind, f"mongodb://127.0.0.1:{unused_port}/")
    assert "in time (timeout=0.05 s)" in str(error)
    gc.collect()


@KINDS
@pytest.mark.parametrize(
    "option", ["serverSelectionTimeoutMS=abc", "ServerSelectionTimeoutMS=-5", "timeoutMS=abc", "timeoutMS=-1"]
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_limit_that_the_driver_leaves_out_is_as_good_as_absent(
    kind: str, option: str, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_SECONDS", 0.05)
    with pytest.warns(UserWarning, match=r"(?i)timeoutms must be"):
        error = await fail_to_connect(kind, f"mongodb://127.0.0.1:{unused_port}/app?{option}")
    assert "in time (timeout=0.05 s)" in str(error)
    gc.collect()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("serverSelectionTimeoutMS=300", True),
        ("serverselectiontimeoutms=%33", True),
        ("serverSelectionTimeoutMS=0", True),
        ("serverSelectionTimeoutMS=abc&serverSelectionTimeoutMS=5", True),
        ("serverSelectionTimeoutMS=5&serverSelectionTimeoutMS=abc", False),
        ("serverSelectionTimeoutMS=", False),
        ("serverSelectionTimeoutMS", False),
        ("timeoutMS=5", False),
        ("", False),
    ],
)
def test_an_option_is_given_where_the_driver_takes_its_last_value(options: str, expected: bool) -> None:
    assert has_option(f"mongodb://h/?{options}", "serverSelectionTimeoutMS") is expected


@KINDS
async def test_a_short_search_does_not_shorten_the_commands_behind_it(
    kind: str, uri: str, client: MongoClient[Any], database: str
) -> None:
    slow = {"failCommands": ["listCollections"], "blockConnection": True, "blockTimeMS": 600, "appName": database}
    client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)
    asked = f"{uri}&appName={database}&serverSelectionTimeoutMS=500"
    try:
        broker: Any = await mongoq.connect_async(asked) if kind == "connect_async" else mongoq.connect(asked)
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")
    closing = broker.close()
    if kind == "connect_async":
        await closing


@KINDS
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_host_that_is_not_there_and_tls_that_is_not_spoken_are_reported(
    kind: str, server: EmbeddedServer
) -> None:
    error = await fail_to_connect(kind, "mongodb://me:hunter2@db.nowhere.invalid/?serverSelectionTimeoutMS=1000")
    assert isinstance(error, mongoq.ServerUnavailable)
    assert "db.nowhere.invalid:27017: [Errno" in str(error)
    error = await fail_to_connect(kind, f"mongodb://127.0.0.1:{server.port}/?tls=true&serverSelectionTimeoutMS=1000")
    assert isinstance(error, mongoq.ServerUnavailable)
    assert re.search("SSL|connection closed|reset", str(error))
    gc.collect()


@KINDS
async def test_a_server_that_is_no_load_balancer_is_the_drivers_sentence(kind: str, server: EmbeddedServer) -> None:
    error = await fail_to_connect(kind, f"mongodb://127.0.0.1:{server.port}/?loadBalanced=true")
    assert isinstance(error, mongoq.ArgumentInvalid)
    assert "load balancing mode" in str(error)


@KINDS
async def test_a_mechanism_that_the_server_does_not_have_is_reported(kind: str, guarded: EmbeddedServer) -> None:
    uri = f"mongodb://me:hunter2@127.0.0.1:{guarded.port}/?authMechanism=PLAIN"
    error = await fail_to_connect(kind, uri)
    assert isinstance(error, mongoq.AuthenticationFailed)
    assert "PLAIN" in str(error)
    assert_no_secrets(error)


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
        "mongodb://host:99999",
        None,
        5,
    ],
)
def test_a_uri_that_cannot_be_used_is_not_quoted(uri: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="^uri: ") as caught:
        mongoq.connect(uri)
    assert_no_secrets(caught.value)


def test_a_wrong_password_is_a_sentence(guarded: EmbeddedServer) -> None:
    address = f"127.0.0.1:{guarded.port}"
    with pytest.raises(mongoq.AuthenticationFailed, match=f"{address} refused the user: check user") as caught:
        mongoq.connect(f"mongodb://keeper:hunter2@{address}/")
    assert_no_secrets(caught.value)
    with pytest.raises(mongoq.AuthenticationFailed):
        mongoq.connect(f"mongodb://{address}/")


def test_what_is_no_broker_yet_says_how_to_make_one(uri: str) -> None:
    pending: Any = mongoq.connect_async(uri)
    with pytest.raises(AttributeError, match=r"no 'queue': await connect_async"):
        pending.queue("orders")
    with pytest.raises(TypeError, match=r"mongoq.connect\(uri\) makes a broker"):
        mongoq.Broker(uri)
    with pytest.raises(TypeError, match=r"await mongoq.connect_async\(uri\) makes a broker"):
        mongoq.AsyncBroker(uri)


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


@pytest.mark.parametrize("name", ["a b", "a.b", "", "a/b", "a$b", 5])
def test_a_database_name_that_cannot_be_used_is_named(uri: str, name: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="database"):
        mongoq.connect(uri, database=name)


@pytest.mark.parametrize("name", ["", "a..b", ".a", "$a", 5])
def test_a_collection_name_that_cannot_be_used_is_named(uri: str, name: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="collection"):
        mongoq.connect(uri, collection=name)


def test_a_timeout_is_checked(uri: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="^timeout: "):
        mongoq.connect(uri, timeout=-1)


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


SHARDED = [{"msg": "isdbgrid", "ok": 1}, {"sharded": True}]


@pytest.mark.parametrize("flow", [bootstrap.check_collection, bootstrap.ensure_indexes])
def test_a_sharded_collection_is_refused(flow: Any) -> None:
    """What mongos answers, from a script: there is no mongos among the tests' servers."""
    broker: BrokerContext = context().broker
    commands, outcome = play(flow(broker), SHARDED)
    assert isinstance(outcome, mongoq.CollectionSharded)
    assert [next(iter(command.arguments["command"])) for command in commands] == ["hello", "collStats"]
    assert "app.mongoq is sharded" in str(outcome)


def test_an_unsharded_collection_behind_mongos_is_fine() -> None:
    _, outcome = play(bootstrap.check_collection(context().broker), [SHARDED[0], {"ok": 1}, found(), found()])
    assert not isinstance(outcome, Exception), outcome


@pytest.mark.parametrize(
    "options",
    [{"capped": True, "size": 10_000}, {"collation": {"locale": "en", "strength": 2}}, {"viewOn": "other"}],
    ids=lambda options: next(iter(options)),
)
def test_a_collection_that_is_not_plain_is_refused(uri: str, database: str, raw: Any, options: Any) -> None:
    raw.database.create_collection("mongoq", **options)
    with pytest.raises(mongoq.CollectionUnsuitable, match="name a plain collection") as caught:
        mongoq.connect(uri, database=database)
    assert caught.value.__cause__ is None


def test_a_file_that_the_uri_names_and_that_is_not_there_is_a_bad_uri() -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="^uri: .*(?i:The tlsCAFile file is not readable|ca.pem)"):
        mongoq.connect("mongodb://localhost/?tlsCAFile=/nowhere/ca.pem")


def test_a_uri_whose_port_is_wrong_says_so() -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="Port must be an integer between 0 and 65535"):
        mongoq.connect("mongodb://localhost:99999")


class Writes(Listener):
    """The write concerns of the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.concerns: list[Any] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in {"insert", "update", "delete", "findAndModify"}:
            self.concerns.append(event.command.get("writeConcern"))


@pytest.mark.parametrize("retried", [True, False], ids=["retried", "not-retried"])
def test_the_callers_collection_is_rebound_and_left_alone(uri: str, database: str, retried: bool) -> None:
    """Writes of every kind: by commands of ours, and those that the driver sends where its retries are off."""
    writes = Writes()
    with MongoClient[Any](uri, retryWrites=retried, event_listeners=[writes]) as client:
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
    assert len(writes.concerns) >= 6
    assert all(concern == {"w": "majority"} for concern in writes.concerns)


@pytest.mark.parametrize("wrong", [None, "mongodb://localhost", 5, {}], ids=repr)
def test_what_is_no_collection_is_refused(wrong: Any) -> None:
    for kind in (mongoq.Broker, mongoq.AsyncBroker):
        with pytest.raises(TypeError, match="collection: a PyMongo"):
            kind(wrong)


async def test_a_collection_of_the_other_kind_is_refused_with_a_hint(uri: str, raw: Any) -> None:
    with pytest.raises(TypeError, match=r"use mongoq\.Broker"):
        mongoq.AsyncBroker(raw)
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri, connect=False)
    with pytest.raises(TypeError, match=r"use mongoq\.AsyncBroker"):
        mongoq.Broker(client["a"]["b"])  # type: ignore[arg-type]
    await client.close()


@pytest.mark.timeout(25)  # PyMongo looks for a server for 30 s
def test_a_broker_closes_soon_when_its_server_has_gone() -> None:
    with EmbeddedServer() as server:
        broker = mongoq.connect(server.uri)
        broker.queue("orders").push(1)
    broker.close()


@pytest.mark.timeout(25)
async def test_an_async_broker_closes_soon_when_its_server_has_gone() -> None:
    with EmbeddedServer() as server:
        broker = await mongoq.connect_async(server.uri)
        await broker.queue("orders").push(1)
    await broker.close()


@pytest.mark.timeout(25)
async def test_an_async_broker_does_not_wait_for_calls_to_a_server_that_has_gone() -> None:
    server = EmbeddedServer().start()
    broker = await mongoq.connect_async(server.uri)
    queue = broker.queue("orders")
    await queue.push(1)
    server.stop()
    calls = [asyncio.ensure_future(queue.reserve()) for _ in range(2)]
    await asyncio.sleep(0.5)
    calls[0].cancel()
    await broker.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, mongoq.BrokerClosed]


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
