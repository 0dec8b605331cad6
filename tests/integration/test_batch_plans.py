"""The plans of what a batch really sends, beside a lot of items that should cost nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from tests.integration.test_plans import Plan, Watched, _envelope

DEPTH = 20_000
READY = 50


@pytest.fixture(scope="module")
def deep(uri: str, client: MongoClient[Any]) -> Iterator[Watched]:
    from datetime import UTC, datetime

    watched = Watched(uri, "test_batch_plans")
    watched.broker.ensure_indexes()
    fast = watched.collection.with_options(write_concern=WriteConcern(w=1))
    now = datetime.now(UTC)
    fast.insert_many([_envelope("scheduled", n, now) for n in range(DEPTH)], ordered=False)
    watched.queue.push_many(range(READY), priority=-5)
    yield watched
    watched.client.drop_database("test_batch_plans")
    watched.client.close()


def test_the_ids_of_a_batch_come_from_the_index_alone(deep: Watched) -> None:
    deep.queue._context.state.prefetch.closed_until = math.inf  # as after a claim of items that another had
    find, claim, read = _claim_commands(deep, 3)
    deep.queue._context.state.prefetch.closed_until = -math.inf
    plan = _plan(deep, find)
    assert not {"FETCH", "SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert "IXSCAN" in plan.stages
    assert (plan.keys, plan.documents) == (20, 0)
    for command in (claim, read):
        plan = _plan(deep, command)
        assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
        assert plan.keys <= 41


def test_a_batch_of_fresh_items_costs_one_find_and_one_update(deep: Watched) -> None:
    find, claim = _claim_commands(deep, 2)
    plan = _plan(deep, find)
    assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert (plan.keys, plan.documents) == (20, 20)
    plan = _plan(deep, claim)
    assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert plan.keys <= 41


def test_a_batch_is_settled_by_its_ids(deep: Watched) -> None:
    items = deep.queue.reserve_many(20)
    deep.queue.commit_many(items)
    command = deep.recorder.commands["delete"]
    part = {"delete": "mongoq", "deletes": command["deletes"]}
    plan = Plan(deep.collection.database.command("explain", part, verbosity="executionStats"))
    assert plan.keys <= 41
    assert "COLLSCAN" not in plan.stages


def _claim_commands(deep: Watched, number: int) -> list[Any]:
    """Return the last commands of a claim of 20 fresh items, which must be so many."""
    deep.collection.delete_many({"q": deep.queue.name, "priority": -5})
    deep.queue.push_many(range(READY), priority=-5)
    deep.queue.peek(1)
    commands: list[Any] = []
    started = deep.recorder.started
    deep.recorder.started = lambda event: commands.append(event.command) or started(event)  # type: ignore[method-assign]
    items = deep.queue.reserve_many(20)
    deep.recorder.started = started  # type: ignore[method-assign]
    deep.queue.release_many(items)
    assert len(items) == 20
    claims = [command for command in commands if "sort" in command or "update" in command]
    assert len(claims) == number
    return claims


def _plan(deep: Watched, command: Any) -> Plan:
    names = ("find", "filter", "sort", "limit", "projection", "update", "updates")
    part = {name: value for name, value in command.items() if name in names}
    return Plan(deep.collection.database.command("explain", part, verbosity="executionStats"))
