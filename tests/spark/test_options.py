"""Options of tables: what they mean, and the sentence that says what cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient

from mongoq.embedded import EmbeddedServer
from mongoq.errors import ArgumentInvalid, AuthenticationFailed, QueueNameInvalid, ServerUnavailable
from mongoq.spark import ColumnMismatch
from tests.spark.ddl import schema_of

NOBODY = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"
KINDS = {"reader": {}, "streamReader": {"consumer": "etl"}, "writer": {}}


@pytest.fixture
def make(store: Any) -> Callable[..., Any]:
    """Make what reads or writes, of options alone: ``make("reader", uri=...)``."""

    def make(kind: str = "reader", schema: str = "n int", **options: Any) -> Any:
        from pyspark_mongoq import DefaultSource

        source = DefaultSource({name: str(value) for name, value in options.items() if value is not None})
        arguments = (False,) if kind == "writer" else ()
        return getattr(source, kind)(schema_of(schema), *arguments)

    return make


def test_what_is_loaded_saved_or_started_is_the_queue(store: Any, make: Any, rows: Any, target: Any) -> None:
    store.add({"n": 1}, queue="refunds")
    assert rows("n int", queue=None, path="refunds") == rows("n int", QUEUE="refunds", queue=None) == [(1,)]
    make("streamReader", path="refunds", uri=store.uri, consumer="etl")
    target.write("n int", [(2,)], to=None, path="saved")
    assert [each["payload"] for each in target.documents if each["q"] == "saved"] == [{"n": 2}]


def test_a_path_that_names_another_queue_than_its_option_is_refused(store: Any, make: Any) -> None:
    place = {"uri": "mongodb://localhost", "path": "refunds"}
    with pytest.raises(ArgumentInvalid, match="path: 'refunds' and the option to 'orders' name both the queue"):
        make("writer", **place, to="orders")
    for kind in ("reader", "streamReader"):
        with pytest.raises(ArgumentInvalid, match="path: 'refunds' and the option queue 'orders' name both the queue"):
            make(kind, **place, queue="orders", **KINDS[kind])


def test_the_environment_says_where_the_queues_are_if_no_option_does(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(**options: Any) -> int:
        reader = make(queue="by-environment", missing="empty", **options)
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

    store.add({"n": 1}, queue="by-environment")
    database, collection = store.collection.database.name, store.collection.name
    for variable in ("MONGOQ_URI", "MONGOQ_DATABASE", "MONGOQ_COLLECTION"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ArgumentInvalid, match="uri: this option is missing: .* or set the variable MONGOQ_URI"):
        make(queue="q")
    monkeypatch.setenv("MONGOQ_URI", store.uri)
    assert count() == 0
    assert count(database=database, collection=collection) == 1
    monkeypatch.setenv("MONGOQ_DATABASE", database)
    monkeypatch.setenv("MONGOQ_COLLECTION", collection)
    assert count() == 1
    assert count(database="other") == 0
    assert count(uri=store.uri) == 0, "the variables go with that of the URI"


BAD: list[tuple[dict[str, str | None], str]] = [
    ({"uri": None}, "uri: this option is missing"),
    ({"uri": ""}, "uri: this option is empty"),
    ({"queue": None}, "queue: this option is missing"),
    ({"queue": ""}, "queue: a queue name cannot be empty"),
    ({"queue": "$x"}, r"queue: a queue name cannot begin with '\$'"),
    ({"queue": "x" * 121}, "queue: 121 bytes"),
    ({"database": ""}, "database: this option is empty"),
    ({"collection": " "}, "collection: this option is empty"),
    ({"queues": '["a"]'}, "queues: queue and queues say both what to read; give one of them"),
    ({"prefix": "a"}, "prefix: queue and prefix say both what to read"),
    ({"queue": None, "queues": "a, b"}, "queues: a list of names as JSON"),
    ({"queue": None, "queues": "[]"}, "queues: a list of names as JSON"),
    ({"queue": None, "queues": '{"a": 1}'}, "queues: a list of names as JSON"),
    ({"queue": None, "queues": "[1]"}, "queues: a list of names as JSON"),
    ({"queue": None, "prefix": ""}, "prefix: this option is empty"),
    ({"queue": None, "prefix": "$a"}, "prefix: a queue name cannot begin with"),
    ({"since": "yesterday"}, "since: a time in ISO 8601 with an offset"),
    ({"until": "2026-11-20T08:30:00"}, "until: a time in ISO 8601 with an offset"),
    ({"since": "2026-11-20T08:30:00Z", "until": "2026-11-20T08:29:00Z"}, "until: it is before since"),
    ({"view": "past"}, "view: one of live, ready, scheduled, reserved, .*, not 'past'"),
    ({"quue": "x"}, "quue: not an option of format mongoq, which has uri, database, collection"),
    ({"path": "refunds"}, "path: 'refunds' and the option queue 'orders' name both the queue"),
    ({"queue": None, "path": "$x"}, r"queue: a queue name cannot begin with '\$'"),
    ({"queue": None, "path": "a", "prefix": "b"}, "queue and prefix say both what to read"),
    ({"paths": '["a", "b"]'}, "paths: not an option"),
    ({"partitions": "0"}, "partitions: a whole number from 1 to 100,000, not '0'"),
    ({"partitions": "-1"}, "partitions: a whole number"),
    ({"partitions": "two"}, "partitions: a whole number"),
    ({"partitions": "1.5"}, "partitions: a whole number"),
    ({"partitions": ""}, "partitions: a whole number"),
    ({"partitions": "100001"}, "partitions: a whole number from 1 to 100,000"),
    ({"partitions": "9" * 5_000}, "partitions: a whole number"),
    ({"fields": "[" * 100_000}, "fields: a list of names as JSON"),
    ({"since": "0001-01-01T00:00:00+14:00"}, "since: a time in ISO 8601"),
    ({"until": "9999-12-31T23:59:59-10:00"}, "until: a time in ISO 8601"),
    ({"until": "9999-12-31T23:59:59.9999Z"}, "until: a time in ISO 8601"),
    ({"inferSchema": "yes"}, "inferSchema: one of true, false, not 'yes'"),
    ({"inferSchema": "true", "sampleSize": "100001"}, "sampleSize: a whole number from 1 to 100,000"),
    ({"sampleSize": "10"}, "sampleSize: it says how many items .* say inferSchema=true"),
    ({"readPreference": "second"}, "readPreference: one of primary, primaryPreferred, secondary, .*nearest, not"),
    ({"missing": "ignore"}, "missing: one of fail, empty, not 'ignore'"),
    ({"mode": "strict"}, "mode: "),
    ({"fields": '["a", 1]'}, r'fields: a list of names as JSON, such as \["customer", "total"\], not'),
]


def test_a_bad_option_is_named(make: Any) -> None:
    good = {"uri": "mongodb://localhost", "database": "app", "queue": "orders"}
    for change, sentence in BAD:
        with pytest.raises((ArgumentInvalid, QueueNameInvalid), match=sentence):
            make(**{**good, **change})


def test_a_column_that_cannot_be_read_is_named_before_anything_is_sent(make: Any) -> None:
    for schema, sentence in [
        ("_id int", "column '_id' of the envelope is string, not int"),
        ("_origin string", "column '_origin' of the envelope is struct<queue:string"),
        ("_trail string", "column '_trail' of the envelope is array<struct<queue:string"),
        ("_corrupt int", "column '_corrupt' holds payloads as JSON: string, not int"),
        ("a interval day to second", "column 'a': type interval day to second cannot be read"),
        ("a array<variant>", "column 'a': type variant cannot be read"),
        ("a map<int,string>", "column 'a': type map<int,string> cannot be read: the keys"),
    ]:
        with pytest.raises(ArgumentInvalid, match=f"schema: {sentence}"):
            make(schema=schema, uri=NOBODY, queue="orders")
    with pytest.raises(ArgumentInvalid, match="fields: it leaves out 'b', a column of the schema; leave out this opt"):
        make(schema="a int, b int, _id string", uri=NOBODY, queue="orders", fields='["a"]')


def test_no_server_and_what_the_driver_refuses_are_sentences(reader: Any) -> None:
    with pytest.raises(ServerUnavailable, match=r"no usable MongoDB server answered at 127\.0\.0\.1:1: .* option uri"):
        reader("n int", uri=NOBODY).partitions()
    for change, sentence in [
        ({"uri": "http://localhost"}, "uri: a connection string begins with mongodb://"),
        ({"uri": "mongodb://host:port"}, "uri: the driver cannot use this connection string: Port contains non-digit"),
        ({"database": "a b"}, "database: .*'a b'"),
        ({"collection": "a..b"}, "collection: .*'a..b'"),
    ]:
        with pytest.raises(ArgumentInvalid, match=sentence):
            reader("n int", **change).partitions()


def test_the_database_is_the_one_of_the_uri(store: Any, rows: Any) -> None:
    store.add({"n": 1})
    uri = store.uri.replace("/?", f"/{store.collection.database.name}?")
    assert rows("n int", uri=uri, database=None) == [(1,)]


@pytest.fixture
def reads(server: EmbeddedServer, client: MongoClient[Any], store: Any) -> Any:
    """Commands that read the store, as the profiler saw them."""
    database = store.collection.database
    database.command("profile", 2, filter={"ns": store.collection.full_name})

    def reads() -> list[dict[str, Any]]:
        entries = database["system.profile"].find({"ns": store.collection.full_name})
        return [each["command"] for each in entries if {"find", "count", "aggregate"} & each["command"].keys()]

    yield reads
    database.command("profile", 0)
    database.drop_collection("system.profile")


def test_reads_ask_for_majority_where_the_option_says_and_for_the_fields_that_the_schema_needs(
    store: Any, rows: Any, reads: Any
) -> None:
    store.add_many(20)
    uri = f"{store.uri}&readPreference=secondary"
    assert len(rows("n int, _when timestamp", uri=uri, READPREFERENCE="NEAREST")) == 20
    commands = reads()
    [find] = [command for command in commands if command.get("projection", {"_id": 1}) != {"_id": 1}]
    assert find["$readPreference"]["mode"] == "nearest"
    assert find["readConcern"]["level"] == "majority"
    assert find["projection"] == {"_id": 1, "payload.n": 1, "when": 1}
    assert {command.get("readConcern", {}).get("level") for command in commands} == {"majority"}


def test_the_payload_holds_the_fields_that_are_named(store: Any, rows: Any) -> None:
    store.add({"a": 1, "b": {"c": 2, "d": 3}, "a.b": 4, "$set": 5, "big": "x" * 1000})
    assert rows("payload string", fields='["a", "b"]') == [('{"a":1,"b":{"c":2,"d":3}}',)]
    assert rows("payload string", fields='["a.b", "$set"]') == [('{"a.b":4,"$set":5}',)]
    store.collection.delete_many({"q": "orders"})
    store.add("no document")
    with pytest.raises(ColumnMismatch, match="column 'payload' of type string cannot hold a payload that is"):
        rows("payload string", fields='["a"]')
    assert rows("payload string", fields='["a"]', mode="permissive") == [(None,)]


def test_register_tells_the_session() -> None:
    import mongoq.spark
    from pyspark_mongoq import DefaultSource

    settings: dict[str, str] = {}

    class Session:
        registered: list[Any] = []  # noqa: RUF012

        class conf:  # noqa: N801  # Spark's name
            get = staticmethod({"spark.sql.redaction.options.regex": "(?i)url"}.get)
            set = staticmethod(settings.__setitem__)

        @property
        def dataSource(self) -> Any:
            return self

        def register(self, source: Any) -> None:
            self.registered.append(source)

    mongoq.spark.register(Session())  # type: ignore[arg-type]
    assert Session.registered == [DefaultSource]
    assert DefaultSource.name() == "mongoq"
    assert settings == {"spark.sql.redaction.options.regex": "(?i)url|(?i:^uri$)"}


def test_mongoq_spark_is_imported_without_pyspark_and_says_what_to_install(spark_environment: dict[str, str]) -> None:
    script = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "import mongoq.spark\n"
        "try: mongoq.spark.register(None)\n"
        "except mongoq.spark.SparkUnavailable as error: print(isinstance(error, ImportError), error)\n"
    )
    command = [sys.executable, "-c", script]
    completed = subprocess.run(command, env=spark_environment, capture_output=True, text=True, check=True)
    assert completed.stdout.startswith("True pyspark is not installed: install the extra mongoq-driver[spark] (pip")


def test_wrong_credentials_and_missing_rights_are_sentences_without_a_password(auth_server: Any, reader: Any) -> None:
    with pytest.raises(AuthenticationFailed, match="refused the credentials of the option uri") as caught:
        reader("n int", uri=auth_server.uri.replace("s3cret-p4ss", "wr0ng-p4ss")).partitions()
    assert "wr0ng-p4ss" not in str(caught.value)
    with MongoClient[Any](auth_server.uri) as client:
        client.admin.command("createUser", "nobody", pwd="x-y-z", roles=[])
    uri = auth_server.uri.replace("analyst:s3cret-p4ss", "nobody:x-y-z")
    with pytest.raises(AuthenticationFailed, match=r"may not read spark_tests.*grant it the role 'read'"):
        reader("n int", uri=uri).partitions()
