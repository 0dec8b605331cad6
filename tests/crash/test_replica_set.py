"""The servers that campaigns run on: they are really killed, really away, and come back to where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern

from tests.crash import replica_set
from tests.crash.replica_set import ReplicaSet

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def three(memory: Path) -> Iterator[ReplicaSet]:
    with ReplicaSet(memory, members=3) as servers:
        yield servers


@pytest.fixture
def items(three: ReplicaSet) -> Iterator[Any]:
    three.restore()
    three.wait_until_whole()
    with MongoClient[Any](three.uri) as client:
        items = client.test.items.with_options(write_concern=WriteConcern("majority"))
        items.delete_many({})
        yield items


def test_what_a_primary_that_was_alone_has_acknowledged_for_itself_dies_with_it(three: ReplicaSet, items: Any) -> None:
    before = items.insert_one({}).inserted_id
    three.leave_primary_alone()
    alone = items.with_options(write_concern=WriteConcern(1)).insert_one({}).inserted_id
    killed = three.kill_primary()
    three.follow()
    after = items.insert_one({}).inserted_id
    assert three.primary() not in (None, killed)
    three.restore()
    three.wait_until_whole()
    ids = {item["_id"] for item in items.find()}
    assert ids == {before, after}
    assert alone not in ids


def test_a_primary_that_stands_still_is_replaced(three: ReplicaSet, items: Any) -> None:
    stalled = three.stall_primary()
    three.wait_until(lambda: three.primary() is not None)
    assert three.primary() != stalled
    three.restore()
    three.wait_until_whole()
    items.insert_one({})


def test_a_member_that_gets_nowhere_is_started_again(
    three: ReplicaSet, items: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = next(port for place, port in enumerate(three.ports) if place != three.primary())
    with MongoClient[Any]("127.0.0.1", port, directConnection=True) as member:
        member.admin.command("replSetMaintenance", True)  # neither a primary nor a secondary, until it is set back
        three.wait_until(lambda: not member.admin.command("hello")["secondary"])
    monkeypatch.setattr(replica_set, "STUCK", 0.0)
    three.wait_until_whole()
    items.insert_one({})
