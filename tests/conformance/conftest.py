"""The shells that the conformance suite runs over, and what each of them cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import mongomock
import pytest
from pymongo import MongoClient

import mongoq
from tests.clients import opened
from tests.restricted import OPERATIONS, create_user, drop_users, mark_operations, restrict, uri_of
from tests.shells import Awaited, Shell

NO_MISFIT = "mongomock applies updates that do not fit, or fails with errors of its own"
NO_UUID = "mongomock refuses UUIDs"
NO_ZERO = "mongomock puts its time in the place of a zero timestamp, wherever that stands"
FOREIGN = "test_a_document_of_another_program_does_not_block_the_queue[mongomock-{'attempts': "

GAPS: list[tuple[str, str, str]] = [
    ("mongomock", "test_a_patch_changes_the_payload_in_the_move[mongomock-{'$mul'", "mongomock has no $mul"),
    ("mongomock", "test_a_patch_changes_the_payload_in_the_move[mongomock-{'$rename'", "no $rename with dots"),
    ("mongomock", "test_a_patch_that_does_not_fit_leaves_the_item_reserved", NO_MISFIT),
    ("mongomock", "test_a_patch_that_cannot_be_committed_leaves_the_item_reserved", NO_MISFIT),
    ("mongomock", "test_and_for_what_is_kept_already_when_asked", "no $max over several values in a pipeline"),
    ("mongomock", "test_a_move_to_a_key_that_is_taken", "no partial indexes, so only pushes look at keys"),
    ("mongomock", "test_an_id_of_another_program_does_not_end_the_iteration", "no $type with several types"),
    ("mongomock", "test_two_operators_on_one_path_do_not_fit", NO_MISFIT),
    ("mongomock", "test_a_patch_cannot_grow_an_item_beyond_what_can_be_claimed", "no $bsonSize"),
    ("mongomock", FOREIGN + "'0'}-reserve", NO_MISFIT),
    ("mongomock", FOREIGN + "'0'}-pop with history", NO_MISFIT),
    ("mongomock", FOREIGN + "None}-reserve", NO_MISFIT),
    ("mongomock", FOREIGN + "None}-pop with history", NO_MISFIT),
    ("mongomock", "test_a_document_that_cannot_be_read_is_buried", "mongomock stores Python objects, not BSON"),
    ("mongomock", "test_unreadable_", "mongomock stores Python objects, not BSON"),
    ("mongomock", "test_pops_pass_by_however_many_unreadable", "mongomock stores Python objects, not BSON"),
    ("mongomock", "test_a_value_comes_back_unchanged_on_every_way[mongomock-a zero", NO_ZERO),
    ("mongomock", "test_a_zero_timestamp_as_the_whole_payload_is_refused_on_every_way", NO_ZERO),
    ("mongomock", "test_what_no_server_takes_is_refused", NO_UUID),
    ("mongomock", "test_a_value_comes_back_equal[mongomock-UUID", NO_UUID),
    ("mongomock", "test_a_typed_payload_is_stored_as_the_table_says_and_comes_back_equal", NO_UUID),
]
"""What a shell cannot do: the shell, how the test's name begins, and why.

Each is expected to fail, and strictly so: a gap that closes is noticed.
"""

SHELLS = ("aio", "sync", "motor", "mongomock")


@pytest.fixture(scope="module")
async def clients(anyio_backend: str, uri: str) -> AsyncIterator[dict[str, Any]]:
    """The asyncio clients of a module, by kind of shell; its tests share one event loop."""
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


@pytest.fixture(params=SHELLS)
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
    for who, test, why in GAPS:
        if kind == who and request.node.name.startswith(test):
            request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    clock = mongoq.VirtualClock(datetime.now(UTC))
    server: Any = mongomock.MongoClient(tz_aware=True) if kind == "mongomock" else client
    raw = server[database]["mongoq"]
    operations = OPERATIONS.get(role)
    if operations is not None:
        # Neither producers nor viewers make the collection.
        with mongoq.Broker(raw, clock=clock) as owner:
            owner.ensure_indexes()
        mark_operations(request.getfixturevalue("monkeypatch"), operations)
    async with AsyncExitStack() as brokers:

        def connected() -> Any:
            collection = {**clients, **(role_clients if role == "worker" else {})}.get(kind, server)[database]["mongoq"]
            broker: Any
            if kind in clients:
                broker = mongoq.AsyncBroker(collection, clock=clock)
                brokers.push_async_callback(broker.close)
            else:
                broker = brokers.enter_context(mongoq.Broker(collection, clock=clock))
            if operations is not None:
                restrict(broker, role_clients[kind][database]["mongoq"])
            return broker if kind in clients else Awaited(broker)

        yield Shell(kind, connected(), raw, clock, connected)
