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


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


@pytest.fixture(params=SHELLS)
async def shell(
    request: pytest.FixtureRequest, clients: dict[str, Any], client: MongoClient[Any], database: str
) -> AsyncIterator[Shell]:
    """A broker of each kind on a clock that the test moves."""
    kind = request.param
    for who, test, why in GAPS:
        if kind == who and request.node.name.startswith(test):
            request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    clock = mongoq.VirtualClock(datetime.now(UTC))
    server: Any = mongomock.MongoClient(tz_aware=True) if kind == "mongomock" else client
    raw = server[database]["mongoq"]
    async with AsyncExitStack() as brokers:

        def connected() -> Any:
            if kind in clients:
                broker = mongoq.AsyncBroker(clients[kind][database]["mongoq"], clock=clock)
                brokers.push_async_callback(broker.close)
                return broker
            return Awaited(brokers.enter_context(mongoq.Broker(raw, clock=clock)))

        yield Shell(kind, connected(), raw, clock, connected)
