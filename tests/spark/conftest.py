"""One Spark session and one server for the folder, and items written with the bare driver."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection

from mongoq.embedded import EmbeddedServer
from tests.proxy import Proxy
from tests.servers import make_indexes
from tests.spark.ddl import schema_of
from tests.spark.tables import Target, target_in

ROOT = Path(__file__).parents[2]
QUEUE = "orders"
USER, PASSWORD = "analyst", "s3cret-p4ss"

PANDAS = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            if find_spec("pyspark") is None:
                item.add_marker(pytest.mark.skip(reason="mongoq-driver[spark] is not installed"))
            item.add_marker(pytest.mark.spark)
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("spark"))  # one session, of one process
            item.add_marker(pytest.mark.filterwarnings(PANDAS))


@pytest.fixture(scope="session")
def auth_server() -> Iterator[EmbeddedServer]:
    """A server that wants the credentials of ``USER`` and ``PASSWORD``; its URI holds them."""
    with EmbeddedServer(auth=(USER, PASSWORD)) as server:
        yield server


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """What the JVM and its Python workers start with: this interpreter, this tree, loopback only."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import mongoq.spark

    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    mongoq.spark.register(session)
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=60)
    SparkContext._gateway = SparkContext._jvm = None


@dataclass(frozen=True)
class Store:
    """A collection of its own, with the indexes that mongoq makes."""

    uri: str
    collection: Collection[dict[str, Any]]
    now: datetime
    """About now, in whole seconds."""

    def add(self, payload: Any, *, queue: str = QUEUE, **fields: Any) -> Any:
        """Store a ready item, or what the fields say; ``None`` takes a field away."""
        item = {
            "_id": ObjectId(),
            "q": queue,
            "payload": payload,
            "when": self.now - timedelta(hours=1),
            "priority": 0,
            "attempts": 0,
            "reserved": False,
            **fields,
        }
        item = {name: value for name, value in item.items() if value is not None or name == "payload"}
        self.collection.insert_one(item)
        return item["_id"]

    def add_many(self, number: int, *, queue: str = QUEUE, **fields: Any) -> list[ObjectId]:
        items = [
            {"_id": ObjectId(), "q": queue, "payload": {"n": n}, "when": self.now, **fields} for n in range(number)
        ]
        self.collection.insert_many(items)
        return [item["_id"] for item in items]

    def options(self, **options: Any) -> dict[str, str]:
        given = {
            "uri": self.uri,
            "database": self.collection.database.name,
            "collection": self.collection.name,
            "queue": QUEUE,
            **options,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@pytest.fixture
def store(server: EmbeddedServer, client: MongoClient[dict[str, Any]]) -> Iterator[Store]:
    database = client.get_database("spark_tests")
    collection = database.get_collection(f"c{uuid.uuid4().hex[:12]}")
    make_indexes(client, database.name, collection.name)
    yield Store(server.uri, collection, datetime.now(UTC).replace(microsecond=0))
    collection.drop()


@pytest.fixture
def load(spark: Any, store: Store) -> Callable[..., Any]:
    """Read the store as a DataFrame: ``load("a int", view="history")``."""

    def load(schema: Any = None, **options: Any) -> Any:
        reader = spark.read.format("mongoq").options(**store.options(**options))
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def reader(store: Store) -> Callable[..., Any]:
    """Make the reader itself, for what needs no Spark session: ``reader("n int", view="history")``."""

    def reader(schema: Any = None, **options: Any) -> Any:
        from pyspark_mongoq import DefaultSource

        source = DefaultSource(store.options(**options))
        return source.reader(schema_of(schema) if isinstance(schema, str) else schema or source.schema())

    return reader


@pytest.fixture
def rows(reader: Callable[..., Any]) -> Callable[..., list[tuple[Any, ...]]]:
    """Read rows as tuples, without a session."""

    def rows(schema: Any = None, **options: Any) -> list[tuple[Any, ...]]:
        source = reader(schema, **options)
        batches = [batch for partition in source.partitions() for batch in source.read(partition)]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    return rows


@pytest.fixture
def target(store: Store) -> Iterator[Target]:
    """Write to the store, without a session."""
    with target_in(store) as target:
        yield target


@pytest.fixture
def lossy_target(target: Target) -> Iterator[tuple[Proxy, Target]]:
    """Write to the store by a proxy that loses what it is told to; the driver sends nothing a second time."""
    with Proxy(target.store.uri) as proxy:
        yield proxy, replace(target, store=replace(target.store, uri=proxy.uri_with(retryWrites="false")))
        close_brokers()


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    """Close the brokers of a module's writers, before a server of the session stops."""
    yield
    close_brokers()


def close_brokers() -> None:
    """Close the brokers that writers keep for the life of their process; a program has no way to ask for that.

    To close one after its server has stopped takes seconds.
    """
    if "mongoq.spark.clients" in sys.modules:
        brokers = sys.modules["mongoq.spark.clients"]._brokers
        while brokers:
            brokers.popitem()[1].close()
