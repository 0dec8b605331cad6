"""The fixtures for pytest, in runs of pytest of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.docs import blocks

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "pytest_mongoq", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MONGOQ_TEST_URI", raising=False)


LIGHT = """
import sys

import pytest

LOADED = set(sys.modules)

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def loaded_at_the_start():
    return LOADED
"""

GIVEN_SERVER = """
import pytest

def test_nothing_is_imported_before_somebody_asks(loaded_at_the_start):
    assert "pytest_mongoq" in loaded_at_the_start
    assert not loaded_at_the_start & {"mongoq", "pymongo", "bson", "pydantic", "mongomock"}

@pytest.mark.parametrize("n", [1, 2])
def test_each_test_has_a_collection_of_its_own(mongoq_broker, n):
    orders = mongoq_broker.queue("orders")
    assert orders.size() == 0
    orders.push(n)
    assert orders.pop().payload == n

@pytest.mark.anyio
async def test_an_asynchronous_broker(mongoq_async_broker, mongoq_broker):
    await mongoq_async_broker.queue("orders").push(1)
    assert mongoq_broker.queue("orders").pop().payload == 1

@pytest.mark.anyio
async def test_a_virtual_one(virtual_async_broker, virtual_broker):
    await virtual_async_broker.queue("orders").push(1)
    assert virtual_broker.queue("orders").pop().payload == 1

class Refused(Exception):
    pass

def test_a_collection_of_the_test_is_in_the_same_transaction(mongoq_broker, mongoq_client):
    bills, orders = mongoq_client["DATABASE"]["bills"], mongoq_broker.queue("orders")
    mongoq_client["DATABASE"].create_collection("bills")
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
    notes, orders = mongoq_async_client["DATABASE"]["notes"], mongoq_async_broker.queue("orders")
    await mongoq_async_client["DATABASE"].create_collection("notes")
    async with mongoq_async_broker.transaction() as tx:
        await notes.insert_one({"_id": 1}, session=tx.session)
        await orders.push(1, session=tx.session)
    assert (await notes.count_documents({}), await orders.size()) == (1, 1)
    await notes.drop()
"""


def test_each_test_has_a_broker_and_a_client_and_leaves_nothing(
    pytester: pytest.Pytester, uri: str, database: str, client: MongoClient[Any]
) -> None:
    pytester.makeconftest(LIGHT)
    page = "\n".join(block.code for block in blocks.blocks("docs/testing.md"))
    pytester.makepyfile(test_given=GIVEN_SERVER.replace("DATABASE", database), test_page=page)
    own = uri.replace("/?", f"/{database}?")
    result = pytester.runpytest_subprocess(*PLUGIN, "--mongoq-uri", own, "-W", "error")
    result.assert_outcomes(passed=7 + 4)
    assert client[database].list_collection_names() == []


NAMED_SERVER = """
import pytest
from pymongo import MongoClient

@pytest.fixture(scope="session")
def mongoq_client(mongoq_uri):
    with MongoClient(mongoq_uri, appname="own") as client:
        yield client

def test_a_client_of_the_project(mongoq_broker, mongoq_client):
    assert mongoq_broker.namespace.startswith("DATABASE.test_")
    assert mongoq_client.options.pool_options.appname == "own"
    with mongoq_client.start_session() as session, session.start_transaction():
        mongoq_broker.queue("orders").push(1, session=session)
    assert mongoq_broker.queue("orders").pop().payload == 1
"""


def test_the_environment_names_a_server_and_a_project_may_give_its_own_client(
    pytester: pytest.Pytester, uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGOQ_TEST_URI", uri.replace("/?", f"/{database}?"))
    pytester.makepyfile(NAMED_SERVER.replace("DATABASE", database))
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


PRIVATE = """
import os

def test_one(mongoq_broker, mongoq_uri):
    assert os.environ.setdefault("SEEN", mongoq_uri) == mongoq_uri
    mongoq_broker.ping()

def test_the_other(mongoq_broker, mongoq_uri):
    assert os.environ.setdefault("SEEN", mongoq_uri) == mongoq_uri
    with mongoq_broker.transaction() as tx:
        mongoq_broker.queue("orders").push(1, session=tx.session)
"""


def test_one_private_server_is_started_when_it_is_needed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PRIVATE)
    pytester.runpytest_subprocess(*PLUGIN, "-W", "error").assert_outcomes(passed=2)


def test_no_server_is_a_sentence_that_says_what_to_do(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test(mongoq_broker): pass")
    dead = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"
    result = pytester.runpytest_inprocess(*PLUGIN, "--mongoq-uri", dead)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ServerUnavailable: no usable MongoDB answered at 127.0.0.1:1*"])
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "fiftyone", None)  # the package that brings a mongod
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*mongoq-driver?embedded?*or give a MongoDB by --mongoq-uri or MONGOQ_TEST_URI*"])
