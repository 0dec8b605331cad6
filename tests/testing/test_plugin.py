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
    run(page, "--mongoq-uri", uri).assert_outcomes(passed=3)


def test_the_options_are_in_the_help(run: Run) -> None:
    run("", "--help").stdout.fnmatch_lines(["*--mongoq-uri=URI*"])
