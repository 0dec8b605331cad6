"""The shells that the conformance suite runs over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from tests.shells import Awaited, Shell

SHELLS = ("aio", "sync")
"""The shells over which every test runs."""
OTHER_SHELLS = ("motor", "mongomock")
"""The shells over which a test with the marker ``every_shell`` runs too: both, or those of its arguments."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test over the shells that could differ in it."""
    if "shell" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("every_shell")
        others = () if marker is None else marker.args or OTHER_SHELLS
        metafunc.parametrize("shell", [*SHELLS, *others], indirect=True)


@pytest.fixture(scope="module")
async def clients(anyio_backend: str, uri: str) -> AsyncIterator[dict[str, Any]]:
    """The asyncio clients of a module, by kind of shell; its tests share one event loop."""
    from tests.clients import opened

    async with opened("aio", uri) as aio, opened("motor", uri) as motor:
        yield {"aio": aio, "motor": motor}


@pytest.fixture(scope="module")
async def role_clients(
    anyio_backend: str,
    request: pytest.FixtureRequest,
    client: MongoClient[Any],
    module_database: str,
) -> AsyncIterator[dict[str, Any]]:
    """The clients of the user with the role of ``--role``, by kind of shell; empty without a role."""
    role = request.config.getoption("role")
    if role is None:
        yield {}
        return
    from tests.clients import opened
    from tests.restricted import create_user, drop_users, uri_of

    user = create_user(client, module_database, role)
    # The collection that transactions of the tests write beside the queues; its rights are the application's affair.
    own = {"resource": {"db": module_database, "collection": "own"}, "actions": ["find", "insert"]}
    client[module_database].command("createRole", "own", privileges=[own], roles=[])
    client[module_database].command("grantRolesToUser", user, roles=["own"])
    uri = uri_of(request.getfixturevalue("server"), module_database, user)
    async with opened("aio", uri) as aio, opened("motor", uri) as motor:
        with MongoClient[Any](uri, tz_aware=True, uuidRepresentation="standard") as sync:
            yield {"aio": aio, "motor": motor, "sync": sync}
    drop_users(client, module_database)


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


@pytest.fixture
async def shell(
    request: pytest.FixtureRequest,
    clients: dict[str, Any],
    role_clients: dict[str, Any],
    client: MongoClient[Any],
    database: str,
) -> AsyncIterator[Shell]:
    """A broker of each kind on a clock that the test moves; with a role, its operations are sent as the role's user."""
    kind, role = request.param, request.config.getoption("role")
    if role is not None and kind == "mongomock":
        pytest.skip("mongomock has no users")
    clock = mongoq.VirtualClock(datetime.now(UTC))
    server: Any = client
    if kind == "mongomock":
        import mongomock

        server = mongomock.MongoClient(tz_aware=True)
    raw = server[database]["mongoq"]
    operations = None
    if role is not None:
        from tests.restricted import OPERATIONS, mark_operations, restrict

        operations = OPERATIONS.get(role)
    if operations is not None:
        # Neither producers nor viewers make the collection.
        with mongoq.Broker(raw, clock=clock) as owner:
            owner.ensure_indexes()
        mark_operations(request.getfixturevalue("monkeypatch"), operations)
    async with AsyncExitStack() as brokers:

        def connected(**options: Any) -> Any:
            collection = {**clients, **(role_clients if role == "worker" else {})}.get(kind, server)[database]["mongoq"]
            broker: Any
            if kind in clients:
                broker = mongoq.AsyncBroker(collection, clock=clock, **options)
                brokers.push_async_callback(broker.close)
            else:
                broker = brokers.enter_context(mongoq.Broker(collection, clock=clock, **options))
            if operations is not None:
                restrict(broker, role_clients[kind][database]["mongoq"])
            return broker if kind in clients else Awaited(broker)

        yield Shell(kind, connected(), raw, clock, connected)
