from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
from pymongo import MongoClient

from mongoq.errors import ArgumentInvalid, AuthenticationFailed, QueueNameInvalid, ServerUnavailable
from mongoq.spark.raw_options import VARIABLES, Location
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.views import QueueSelection
from mongoq.spark.stream.stream_options import HistoryStreamOptions, QueueStreamOptions
from mongoq.spark.write.write_options import WriteOptions

GOOD = {"uri": "mongodb://localhost", "database": "app", "queue": "orders"}
NOBODY = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"


def test_defaults() -> None:
    options = ReadOptions.parse({"uri": "mongodb://localhost", "queue": "orders"})
    assert (options.place.database, options.place.collection) == (None, "mongoq")
    assert (options.view, options.partitions) == ("live", None)


def test_names_of_options_come_in_any_case() -> None:
    options = ReadOptions.parse({"URI": "mongodb://localhost", "Queue": "q", "PARTITIONS": "3", "vieW": "ALL"})
    assert (options.queues, options.partitions, options.view) == (QueueSelection(("q",)), 3, "all")


@pytest.mark.parametrize("options", [{}, {"queue": "refunds"}, {"QUEUE": "refunds"}])
def test_what_is_loaded_saved_or_started_is_the_queue(options: dict[str, str]) -> None:
    place = {"uri": "mongodb://localhost", "path": "refunds"}
    assert ReadOptions.parse({**place, **options}).queues == QueueSelection(("refunds",))
    assert QueueStreamOptions.parse({**place, **options, "consumer": "etl"}).queue == "refunds"
    history = HistoryStreamOptions.parse({**place, **options, "view": "history"})
    assert history.read.queues == QueueSelection(("refunds",))
    write_options = {("to" if name.lower() == "queue" else name): value for name, value in options.items()}
    for stream in (True, False):
        assert WriteOptions.parse({**place, **write_options}, stream=stream).to == "refunds"


def test_a_path_that_names_another_queue_than_its_option_is_refused() -> None:
    place = {"uri": "mongodb://localhost", "path": "refunds"}
    with pytest.raises(ArgumentInvalid, match="path: 'refunds' and the option to 'orders' name both the queue"):
        WriteOptions.parse({**place, "to": "orders"})
    with pytest.raises(ArgumentInvalid, match="path: 'refunds' and the option queue 'orders' name both the queue"):
        QueueStreamOptions.parse({**place, "queue": "orders", "consumer": "etl"})


def test_the_environment_says_where_the_queues_are_if_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = ReadOptions.parse
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ArgumentInvalid, match="uri: this option is missing: .* or set the variable MONGOQ_URI"):
        parse({"queue": "q"})
    monkeypatch.setenv("MONGOQ_URI", "mongodb://analyst:s3cret@db")
    assert parse({"queue": "q"}).place == Location("mongodb://analyst:s3cret@db", None, "mongoq")
    monkeypatch.setenv("MONGOQ_DATABASE", "app")
    monkeypatch.setenv("MONGOQ_COLLECTION", "work")
    assert parse({"queue": "q"}).place == Location("mongodb://analyst:s3cret@db", "app", "work")
    assert WriteOptions.parse({"to": "q"}).place == Location("mongodb://analyst:s3cret@db", "app", "work")
    own = {"queue": "q", "database": "other", "collection": "another"}
    assert parse(own).place == Location("mongodb://analyst:s3cret@db", "other", "another")
    assert parse({"queue": "q", "uri": "mongodb://localhost/mine"}).place == Location(
        "mongodb://localhost/mine", None, "mongoq"
    )


BAD: list[tuple[dict[str, str | None], str, type[Exception]]] = [
    ({"uri": None}, "uri: this option is missing", ArgumentInvalid),
    ({"uri": ""}, "uri: this option is empty", ArgumentInvalid),
    ({"queue": None}, "queue: this option is missing", ArgumentInvalid),
    ({"queue": ""}, "queue: a queue name cannot be empty", QueueNameInvalid),
    ({"queue": "$x"}, r"queue: a queue name cannot begin with '\$'", QueueNameInvalid),
    ({"queue": "x" * 121}, "queue: 121 bytes", QueueNameInvalid),
    ({"database": ""}, "database: this option is empty", ArgumentInvalid),
    ({"collection": " "}, "collection: this option is empty", ArgumentInvalid),
    ({"queues": '["a"]'}, "queues: queue and queues say both what to read; give one of them", ArgumentInvalid),
    ({"prefix": "a"}, "prefix: queue and prefix say both what to read", ArgumentInvalid),
    ({"queue": None, "queues": "a, b"}, "queues: a list of names as JSON", ArgumentInvalid),
    ({"queue": None, "queues": "[]"}, "queues: a list of names as JSON", ArgumentInvalid),
    ({"queue": None, "queues": '{"a": 1}'}, "queues: a list of names as JSON", ArgumentInvalid),
    ({"queue": None, "queues": "[1]"}, "queues: a list of names as JSON", ArgumentInvalid),
    ({"queue": None, "prefix": ""}, "prefix: this option is empty", ArgumentInvalid),
    ({"queue": None, "prefix": "$a"}, "prefix: a queue name cannot begin with", QueueNameInvalid),
    ({"since": "yesterday"}, "since: a time in ISO 8601 with an offset", ArgumentInvalid),
    ({"until": "2026-11-20T08:30:00"}, "until: a time in ISO 8601 with an offset", ArgumentInvalid),
    ({"since": "2026-11-20T08:30:00Z", "until": "2026-11-20T08:29:00Z"}, "until: it is before since", ArgumentInvalid),
    ({"view": "past"}, "view: one of live, ready, scheduled, reserved, .*, not 'past'", ArgumentInvalid),
    ({"quue": "x"}, "quue: not an option of format mongoq, which has uri, database, collection", ArgumentInvalid),
    ({"path": "refunds"}, "path: 'refunds' and the option queue 'orders' name both the queue", ArgumentInvalid),
    ({"queue": None, "path": "$x"}, r"queue: a queue name cannot begin with '\$'", QueueNameInvalid),
    ({"queue": None, "path": "a", "prefix": "b"}, "queue and prefix say both what to read", ArgumentInvalid),
    ({"paths": '["a", "b"]'}, "paths: not an option", ArgumentInvalid),
    ({"partitions": "0"}, "partitions: a whole number from 1 to 100,000, not '0'", ArgumentInvalid),
    ({"partitions": "-1"}, "partitions: a whole number", ArgumentInvalid),
    ({"partitions": "two"}, "partitions: a whole number", ArgumentInvalid),
    ({"partitions": "1.5"}, "partitions: a whole number", ArgumentInvalid),
    ({"partitions": ""}, "partitions: a whole number", ArgumentInvalid),
    ({"partitions": "100001"}, "partitions: a whole number from 1 to 100,000", ArgumentInvalid),
    ({"partitions": "9" * 5_000}, "partitions: a whole number", ArgumentInvalid),
    ({"fields": "[" * 100_000}, "fields: a list of names as JSON", ArgumentInvalid),
    ({"since": "0001-01-01T00:00:00+14:00"}, "since: a time in ISO 8601", ArgumentInvalid),
    ({"until": "9999-12-31T23:59:59-10:00"}, "until: a time in ISO 8601", ArgumentInvalid),
    ({"until": "9999-12-31T23:59:59.9999Z"}, "until: a time in ISO 8601", ArgumentInvalid),
]


@pytest.mark.parametrize(("change", "sentence", "kind"), BAD)
def test_a_bad_option_is_named(change: dict[str, str | None], sentence: str, kind: type[Exception]) -> None:
    arguments = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(kind, match=sentence):
        ReadOptions.parse(arguments)


@pytest.mark.prove
@pytest.mark.parametrize("change", [{"quue": "x"}, {"queue": ""}])
def test_spark_says_so_when_the_table_is_loaded(load: Any, change: dict[str, str]) -> None:
    with pytest.raises(Exception, match=f"{next(iter(change))}: "):
        load(**change)


def test_spark_says_so_with_a_schema_before_a_task_starts(load: Any) -> None:
    with pytest.raises(Exception, match="view: one of live, ready, scheduled, reserved") as caught:
        load("a int", view="past").collect()
    assert "Job aborted" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("_id int", "column '_id' of the envelope is string, not int"),
        ("_origin string", "column '_origin' of the envelope is struct<queue:string"),
        ("a interval day to second", "column 'a': type interval day to second cannot be read"),
        ("a array<variant>", "column 'a': type variant cannot be read"),
        ("a map<int,string>", "column 'a': type map<int,string> cannot be read: the keys"),
    ],
)
def test_a_column_that_cannot_be_read_is_named_before_anything_is_sent(
    spark: Any, reader: Any, schema: str, sentence: str
) -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(ArgumentInvalid, match=f"schema: {sentence}"):
        reader(StructType.fromDDL(schema), uri=NOBODY)


def test_no_server_is_a_sentence_on_the_driver(load: Any) -> None:
    with pytest.raises(Exception, match=r"no usable MongoDB server answered at 127\.0\.0\.1:1: start it") as caught:
        load(uri=NOBODY).collect()
    assert "Job aborted" not in str(caught.value)


def test_no_server_is_an_error_of_mongoq(reader: Any) -> None:
    with pytest.raises(ServerUnavailable, match="or correct the option uri"):
        reader(uri=NOBODY).partitions()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"uri": "http://localhost"}, "uri: a connection string begins with mongodb://"),
        ({"uri": "mongodb://host:port"}, "uri: the driver cannot use this connection string: Port contains non-digit"),
        ({"database": "a b"}, "database: .*'a b'"),
        ({"collection": "a..b"}, "collection: .*'a..b'"),
    ],
)
def test_what_the_driver_refuses_is_named(reader: Any, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentInvalid, match=sentence):
        reader(**change).partitions()


def test_the_database_is_the_one_of_the_uri_or_mongoq(store: Any, reader: Any) -> None:
    from mongoq.spark.scan import Scan

    with Scan(store.uri, None, "c") as scan:
        assert scan._collection.full_name == "mongoq.c"
    store.add("x")
    uri = store.uri.replace("/?", f"/{store.collection.database.name}?")
    source = reader(uri=uri, database=None)
    assert sum(batch.num_rows for each in source.partitions() for batch in source.read(each)) == 1


def test_reads_ask_for_majority_from_the_preference_of_the_uri(store: Any) -> None:
    from mongoq.spark.scan import Scan

    for uri, preference in ((store.uri, "primary"), (f"{store.uri}&readPreference=nearest", "nearest")):
        with Scan(uri, "app", "mongoq") as scan:
            assert scan._collection.read_concern.level == "majority"
            assert scan._collection.read_preference.mongos_mode == preference


def test_register_tells_the_session() -> None:
    import mongoq.spark
    from mongoq.spark.source import MongoqDataSource

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
    assert Session.registered == [MongoqDataSource]
    assert MongoqDataSource.name() == "mongoq"
    assert settings == {"spark.sql.redaction.options.regex": "(?i)url|(?i:^uri$)"}


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_its_packages_register_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    import mongoq.spark

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(mongoq.spark, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(mongoq.spark.SparkUnavailable, match=f"{package} is not installed") as caught:
        mongoq.spark.register(None)  # type: ignore[arg-type]
    assert "mongoq-driver[spark]" in str(caught.value)
    assert isinstance(caught.value, ImportError)


def test_mongoq_spark_is_imported_without_pyspark(spark_environment: dict[str, str]) -> None:
    import subprocess

    script = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "import mongoq.spark\n"
        "try: mongoq.spark.register(None)\n"
        "except mongoq.spark.SparkUnavailable as error: print(error)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], env=spark_environment, capture_output=True, text=True, check=True
    )
    assert (
        completed.stdout
        == "pyspark is not installed: install the extra mongoq-driver[spark] (pip install '.[spark]' in a checkout)\n"
    )


def test_the_wrong_password_is_a_sentence(auth_server: Any, reader: Any) -> None:
    with pytest.raises(AuthenticationFailed, match="refused the credentials of the option uri"):
        reader(uri=auth_server.uri.replace("s3cret-p4ss", "wr0ng-p4ss")).partitions()


def test_missing_rights_are_a_sentence(auth_server: Any, reader: Any) -> None:
    with MongoClient(auth_server.uri) as client:
        client.admin.command("createUser", "nobody", pwd="x-y-z", roles=[])
    uri = auth_server.uri.replace("analyst:s3cret-p4ss", "nobody:x-y-z")
    with pytest.raises(AuthenticationFailed, match=r"may not read spark_tests.*grant it the role 'read'"):
        reader(uri=uri).partitions()
