"""Fixtures for pytest, which finds them by itself: brokers on a private MongoDB, and virtual ones without any.

Outside of the package, so that pytest starts without importing mongoq and its driver where no test asks for them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient

    from mongoq import AsyncBroker, Broker
    from mongoq.testing import AsyncVirtualBroker, VirtualBroker

__all__: list[str] = []

VARIABLE = "MONGOQ_TEST_URI"
DATABASE = "mongoq"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let another MongoDB be given."""
    parser.getgroup("mongoq").addoption(
        "--mongoq-uri",
        metavar="URI",
        help=f"the MongoDB of the mongoq fixtures; default the environment's {VARIABLE}, else a private one is started",
    )


@pytest.fixture(scope="session")
def mongoq_uri(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URI of a MongoDB for tests: that of ``--mongoq-uri`` or ``MONGOQ_TEST_URI``, else of a private server.

    The server is started once for the session, by the first test that needs it.
    """
    given = pytestconfig.getoption("--mongoq-uri") or os.environ.get(VARIABLE)
    if given:
        yield given
        return
    from mongoq import EmbeddedServerUnavailable
    from mongoq.embedded import EmbeddedServer

    server = EmbeddedServer()
    try:
        server.start()
    except EmbeddedServerUnavailable as error:
        raise EmbeddedServerUnavailable(f"{error}; or give a MongoDB by --mongoq-uri or {VARIABLE}") from None
    with server:
        yield server.uri


@pytest.fixture(scope="session")
def mongoq_client(mongoq_uri: str) -> Iterator[MongoClient[Any]]:
    """The ``MongoClient`` of ``mongoq_broker``: a test's own collections come from it, to be in one transaction.

    A ``conftest.py`` may put a client of its own in its place.
    """
    from pymongo import MongoClient

    import mongoq

    mongoq.connect(mongoq_uri).close()  # says in plain words what is wrong with it
    client: MongoClient[Any] = MongoClient(mongoq_uri, tz_aware=True)
    yield client
    client.close()


@pytest.fixture
async def mongoq_async_client(mongoq_uri: str) -> AsyncIterator[AsyncMongoClient[Any]]:
    """The ``AsyncMongoClient`` of ``mongoq_async_broker``, in the event loop of the test."""
    from pymongo import AsyncMongoClient

    async with AsyncMongoClient[Any](mongoq_uri, tz_aware=True) as client:
        yield client


@pytest.fixture
def mongoq_collection(mongoq_client: MongoClient[Any]) -> Iterator[str]:
    """The name of a collection of this test's own, dropped after it; in the database that the URI names."""
    name = f"test_{uuid4().hex}"
    yield name
    mongoq_client.get_default_database(DATABASE).drop_collection(name)


@pytest.fixture
def mongoq_broker(mongoq_client: MongoClient[Any], mongoq_collection: str) -> Iterator[Broker]:
    """A ``mongoq.Broker`` on a collection of this test's own, of the client ``mongoq_client``."""
    import mongoq

    with mongoq.Broker(mongoq_client.get_default_database(DATABASE)[mongoq_collection]) as broker:
        yield broker


@pytest.fixture
async def mongoq_async_broker(
    mongoq_async_client: AsyncMongoClient[Any], mongoq_collection: str
) -> AsyncIterator[AsyncBroker]:
    """A ``mongoq.AsyncBroker`` on the same collection, for tests that anyio's plugin runs, or one in a mode like it.

    It is of the client ``mongoq_async_client``.
    """
    import mongoq

    async with mongoq.AsyncBroker(mongoq_async_client.get_default_database(DATABASE)[mongoq_collection]) as broker:
        yield broker


@pytest.fixture
def virtual_broker() -> Iterator[VirtualBroker]:
    """A ``mongoq.testing.VirtualBroker``: no server, no threads, and a clock that the test moves."""
    from mongoq.testing import VirtualBroker

    with VirtualBroker() as broker:
        yield broker


@pytest.fixture
def virtual_async_broker(virtual_broker: VirtualBroker) -> AsyncVirtualBroker:
    """The same broker as ``virtual_broker``, for code that awaits its queues; a plain test may take it as well."""
    from mongoq.testing import AsyncVirtualBroker

    return AsyncVirtualBroker(virtual_broker)
