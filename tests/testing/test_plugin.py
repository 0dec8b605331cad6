"""The fixtures for pytest, in runs of pytest of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.docs import blocks

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest over some tests, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MONGOQ_TEST_URI", raising=False)

    def run(tests: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(tests)
        return pytester.runpytest_subprocess("-p", "pytest_mongoq", "-p", "no:cacheprovider", *arguments)

    return run


EACH_ITS_OWN = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_the_queue_is_empty(mongoq_broker, n):
    orders = mongoq_broker.queue("orders")
    assert orders.size() == 0
    orders.push(n)
    assert orders.pop().payload == n
"""


def test_each_test_has_a_collection_of_its_own_that_is_dropped(
    run: Run, uri: str, database: str, client: MongoClient[Any]
) -> None:
    own = uri.replace("/?", f"/{database}?")
    run(EACH_ITS_OWN, "--mongoq-uri", own, "-W", "error").assert_outcomes(passed=2)
    assert client[database].list_collection_names() == []


def test_the_environment_names_a_server(
    run: Run, uri: str, database: str, client: MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGOQ_TEST_URI", uri.replace("/?", f"/{database}?"))
    tests = f"""
    def test_it_is_there(mongoq_broker):
        assert mongoq_broker.namespace.startswith("{database}.test_")
    """
    run(tests).assert_outcomes(passed=1)


ASYNCHRONOUS = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_an_asynchronous_broker(mongoq_async_broker, mongoq_broker):
    await mongoq_async_broker.queue("orders").push(1)
    assert mongoq_broker.queue("orders").pop().payload == 1

@pytest.mark.anyio
async def test_a_virtual_one(virtual_async_broker, virtual_broker):
    await virtual_async_broker.queue("orders").push(1)
    assert virtual_broker.queue("orders").pop().payload == 1
"""


def test_asynchronous_fixtures_work_with_anyio(run: Run, uri: str) -> None:
    run(ASYNCHRONOUS, "--mongoq-uri", uri, "-W", "error").assert_outcomes(passed=2)


PRIVATE = """
import os

def test_one(mongoq_broker, mongoq_uri):
    os.environ["SEEN"] = mongoq_uri
    mongoq_broker.ping()

def test_the_other(mongoq_broker, mongoq_uri):
    assert os.environ["SEEN"] == mongoq_uri
    with mongoq_broker.transaction() as tx:
        mongoq_broker.queue("orders").push(1, session=tx.session)
"""


def test_one_private_server_is_started_when_it_is_needed(run: Run) -> None:
    run(PRIVATE, "-W", "error").assert_outcomes(passed=2)


def test_no_server_to_start_is_an_error_that_says_what_to_install(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest("import mongoq.embedded.binary as binary\nbinary._in_wheel = lambda: None")
    monkeypatch.setenv("PATH", "")
    result = run("def test(mongoq_broker): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*mongoq-driver?embedded?*or give a MongoDB by --mongoq-uri or MONGOQ_TEST_URI*"])


SHARED = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

class Refused(Exception):
    pass

def test_a_collection_of_the_test_is_in_the_same_transaction(mongoq_broker, mongoq_client):
    bills, orders = mongoq_client["shop"]["bills"], mongoq_broker.queue("orders")
    bills.drop()
    mongoq_client["shop"].create_collection("bills")
    with pytest.raises(Refused), mongoq_broker.transaction() as tx:
        bills.insert_one({"_id": 1}, session=tx.session)
        orders.push(1, session=tx.session)
        raise Refused
    assert (bills.count_documents({}), orders.size()) == (0, 0)
    with mongoq_client.start_session() as session, session.start_transaction():
        bills.insert_one({"_id": 1}, session=session)
        orders.push(1, session=session)
    assert (bills.count_documents({}), orders.size()) == (1, 1)
    bills.drop()

@pytest.mark.anyio
async def test_of_asyncio_as_well(mongoq_async_broker, mongoq_async_client):
    bills, orders = mongoq_async_client["shop"]["notes"], mongoq_async_broker.queue("orders")
    await mongoq_async_client["shop"].create_collection("notes")
    async with mongoq_async_broker.transaction() as tx:
        await bills.insert_one({"_id": 1}, session=tx.session)
        await orders.push(1, session=tx.session)
    assert (await bills.count_documents({}), await orders.size()) == (1, 1)
    await bills.drop()
"""


def test_a_broker_shares_its_client_with_the_collections_of_the_test(run: Run, uri: str) -> None:
    run(SHARED, "--mongoq-uri", uri, "-W", "error").assert_outcomes(passed=2)


OWN_CLIENT = """
import pytest
from pymongo import MongoClient

@pytest.fixture(scope="session")
def mongoq_client(mongoq_uri):
    with MongoClient(mongoq_uri, appname="own") as client:
        yield client

def test_a_client_of_the_project(mongoq_broker, mongoq_client):
    assert mongoq_client.options.pool_options.appname == "own"
    with mongoq_client.start_session() as session, session.start_transaction():
        mongoq_broker.queue("orders").push(1, session=session)
    assert mongoq_broker.queue("orders").pop().payload == 1
"""


def test_a_project_may_give_its_own_client(run: Run, uri: str) -> None:
    run(OWN_CLIENT, "--mongoq-uri", uri, "-W", "error").assert_outcomes(passed=1)


def test_a_uri_without_a_server_is_a_sentence(run: Run) -> None:
    result = run("def test(mongoq_broker): pass", "--mongoq-uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ServerUnavailable: no usable MongoDB answered at 127.0.0.1:1*"])


LIGHT = """
import sys

def test_nothing_is_imported_that_nobody_asked_for():
    assert "pytest_mongoq" in sys.modules
    assert not sys.modules.keys() & {"mongoq", "pymongo", "bson", "pydantic", "mongomock"}
"""


def test_pytest_starts_without_mongoq_and_its_driver(run: Run) -> None:
    run(LIGHT).assert_outcomes(passed=1)


def test_the_tests_of_the_page_pass(run: Run, uri: str) -> None:
    page = "\n".join(block.code for block in blocks.blocks("docs/testing.md"))
    run(page, "--mongoq-uri", uri).assert_outcomes(passed=4)


def test_the_options_are_in_the_help(run: Run) -> None:
    run("", "--help").stdout.fnmatch_lines(["*--mongoq-uri=URI*"])
