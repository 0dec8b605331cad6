"""Fixtures of all tests: one private mongod for the session, one database for each test."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psutil
import pymongo.common
import pytest
from pymongo import MongoClient

import mongoq
from mongoq.core.base import queue_settings
from mongoq.core.state import claim_hints
from mongoq.embedded import EmbeddedServer
from tests.proxy import Proxy
from tests.servers import drop, empty, make_indexes, spare_the_journal

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark starts its workers with the first python3 on PATH
# What a JVM of a test compiles hardly ever runs often enough to be worth a second compilation.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin while they wait for work that never comes

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background of a shell; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--role``, by which the conformance suite runs on a server with authentication."""
    roles = ("producer", "worker", "viewer")
    parser.addoption("--role", choices=roles, help="Run the operations of this role as a user with no more rights.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hand out small tests by the file: pytest-xdist looks through all that it has handed out for each test."""
    small = {Path(__file__).parent / folder for folder in ("conformance", "unit")}
    for item in items:
        if small.intersection(item.path.parents):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass by what stays to the end: it would look through 8,000 tests again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """mongoq's asyncio side runs on asyncio alone, as PyMongo's does."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _claims_begin_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no claim go by hints because the machine is busy just now: that adds documents such as ``end:0:orders``.

    Tests that count documents would meet them. Tests of hints see to it themselves that claims go by them.
    """
    monkeypatch.setattr(claim_hints, "CLAIM_SECONDS_BEFORE_MEASURING", math.inf)


@pytest.fixture
def claims_go_by_bounds(_claims_begin_at_the_beginning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claims go by bounds from the first refresh on; else a measurement decides, and load distorts it."""
    monkeypatch.setattr(claim_hints, "CLAIM_SECONDS_BEFORE_MEASURING", 0.0)
    monkeypatch.setattr(claim_hints.ClaimHints, "is_slow", lambda *_: True)


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """A directory for servers, in memory where there is room for it: every majority write waits for the journal.

    What killed runs have left there is removed: a gigabyte each, which stays in memory until the machine has none.
    """
    shared = Path("/dev/shm")
    for left in shared.glob("mongoq-tests-*-*"):
        process = left.name.split("-")[2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            rmtree(left, ignore_errors=True)
    roomy = shared.is_dir() and min(disk_usage(shared).free, psutil.virtual_memory().available) > 4 * 1024**3
    with TemporaryDirectory(prefix=f"mongoq-tests-{os.getpid()}-", dir=shared if roomy else None) as path:
        yield Path(path)


@pytest.fixture(scope="session")
def server(memory: Path, pytestconfig: pytest.Config) -> Iterator[EmbeddedServer]:
    """A replica set of one node, with fail points, and a cache that has room for transactions of tens of megabytes."""
    auth = ("keeper", "keeper") if pytestconfig.getoption("role") else None
    with EmbeddedServer(memory / "server", cache_mb=1024, parameters={"enableTestCommands": 1}, auth=auth) as running:
        spare_the_journal(running)
        yield running


@pytest.fixture(scope="session")
def uri(server: EmbeddedServer) -> str:
    return server.uri


@pytest.fixture(scope="session")
def client(uri: str) -> Iterator[MongoClient[Any]]:
    """A client of the tests' own, to look behind the broker."""
    with MongoClient(uri, tz_aware=True, uuidRepresentation="standard") as opened:
        yield opened


@pytest.fixture
def database(client: MongoClient[Any]) -> Iterator[str]:
    """The name of a database of this test's own."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    drop(client, name)


@pytest.fixture(scope="module")
def module_database(client: MongoClient[Any]) -> Iterator[str]:
    """The name of a database of this module's own."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    drop(client, name)


@pytest.fixture(scope="module")
def indexes(client: MongoClient[Any], module_database: str) -> set[str]:
    """The names of the indexes in the module's database, which are there from the beginning, whatever test is first."""
    return make_indexes(client, module_database)


@pytest.fixture
def emptied_database(
    client: MongoClient[Any], module_database: str, indexes: set[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The name of a database without documents; to make indexes for each test takes a third of the server's time."""
    monkeypatch.setattr(queue_settings, "_warned", set())  # else the process has warned of its queues already
    yield module_database
    empty(client, module_database, indexes)


@pytest.fixture
def raw(client: MongoClient[Any], database: str) -> Any:
    """The collection behind ``broker``."""
    return client[database]["mongoq"]


@pytest.fixture
def broker(client: MongoClient[Any], raw: Any) -> Iterator[mongoq.Broker]:
    """A synchronous broker on the server's clock; to connect takes longer than most tests, so it shares the client."""
    with mongoq.Broker(raw) as opened:
        yield opened


@pytest.fixture
def lossy(uri: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Any]]:
    """A proxy that loses what it is told to, and the collection behind it; the driver sends nothing a second time."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)
    options = {"serverMonitoringMode": "poll", "retryWrites": "false"}
    with Proxy(uri) as proxy, MongoClient[Any](proxy.uri_with(**options)) as own:
        yield proxy, own[database]["mongoq"]


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """The signals that the test's own handlers received; without them a late one would end the process of the tests."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, _: received.append(number))
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)
