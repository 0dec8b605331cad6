"""The plans of what a batch really sends, beside a lot of items that should cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

import mongoq
from tests.integration.commands import Commands, explain, listened_to

DEPTH = 2_000
READY = 50


@pytest.fixture
def deep(uri: str, database: str) -> Iterator[tuple[mongoq.Queue[Any], Commands]]:
    """A queue with thousands of scheduled items of ten priorities, and some that can be claimed."""
    with listened_to(uri, database) as (broker, commands):
        queue, tomorrow = broker.queue("orders"), datetime.now(UTC) + timedelta(days=1)
        for priority in range(-5, 5):
            queue.push_many(range(DEPTH // 10), priority=priority, when=tomorrow)
        queue.push_many(range(READY), priority=-5)
        yield queue, commands


def test_a_batch_of_fresh_items_costs_one_find_and_one_update_by_index(
    deep: tuple[mongoq.Queue[Any], Commands], raw: Any
) -> None:
    queue, commands = deep
    commands.sent.clear()
    items = queue.reserve_many(20)
    assert len(items) == 20
    (find,) = [command for command in commands.sent if "find" in command and "sort" in command]
    plan = explain(raw, find)
    assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert (plan.keys, plan.documents) == (20, 20)
    plan = explain(raw, commands.last("update"))
    assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert plan.keys <= 41
    queue.commit_many(items)
    plan = explain(raw, commands.last("delete"))
    assert "COLLSCAN" not in plan.stages
    assert plan.keys <= 41


def test_the_ids_of_items_that_were_claimed_before_come_from_the_index_alone(
    deep: tuple[mongoq.Queue[Any], Commands], raw: Any
) -> None:
    queue, commands = deep
    ids: dict[str, Any] = {}
    while not ids:  # for a second after a batch of them
        commands.sent.clear()
        queue.release_many(queue.reserve_many(20))
        finds = [command for command in commands.sent if "find" in command and "sort" in command]
        ids = next((find for find in finds if "projection" in find), {})
    plan = explain(raw, ids)
    assert not {"FETCH", "SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert "IXSCAN" in plan.stages
    assert (plan.keys, plan.documents) == (20, 0)


def test_an_item_that_cannot_be_decoded_costs_no_command_for_each_of_the_others(
    uri: str, database: str, raw: Any
) -> None:
    """The others are suspects without runs left: a neighbour may have killed their holder, so they stay."""
    with listened_to(uri, database) as (broker, commands):
        queue = broker.queue("orders", max_retries=1)
        ids = queue.push_many(["x"] * READY + ["ABC"])
        spent = {"attempts": 5, "batch": ids[0], "token": ids[0], "by": "x"}
        raw.update_many({"_id": {"$in": ids[:READY]}}, {"$set": spent})
        unreadable = bson.encode(raw.find_one({"_id": ids[READY]}) | {"by": "x"}).replace(b"ABC", b"\xff\xfe\xfd")
        raw.delete_one({"_id": ids[READY]})
        raw.insert_one(RawBSONDocument(unreadable))
        commands.sent.clear()
        queue.reserve_many(READY + 1)
        assert commands.names().count("findAndModify") < 5
    assert raw.find_one({"q": "orders.dead"}, {"_id": 1}) == {"_id": ids[READY]}
