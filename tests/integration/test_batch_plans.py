"""The plans of what a batch really sends, beside a lot of items that should cost nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from tests.integration.test_plans import Plan, Watched, _envelope

CROWD = 20_000
READY = 50


@pytest.fixture(scope="module")
def crowded(uri: str, client: MongoClient[Any]) -> Iterator[Watched]:
    from datetime import UTC, datetime

    watched = Watched(uri, "test_batch_plans")
    watched.broker.ensure_indexes()
    fast = watched.collection.with_options(write_concern=WriteConcern(w=1))
    now = datetime.now(UTC)
    fast.insert_many([_envelope("scheduled", n, now) for n in range(CROWD)], ordered=False)
    watched.queue.push_many(range(READY), priority=-5)
    yield watched
    watched.client.drop_database("test_batch_plans")
    watched.client.close()


def test_the_ids_of_a_batch_come_from_the_index_alone(crowded: Watched) -> None:
    crowded.queue._context.state.prefetch.closed_until = math.inf  # as after a claim of items that another had
    first, claim, read = _claim_commands(crowded, 3)
    crowded.queue._context.state.prefetch.closed_until = -math.inf
    plan = _plan(crowded, first)
    assert not {"FETCH", "SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert "IXSCAN" in plan.stages
    assert (plan.keys, plan.documents) == (20, 0)
    for command in (claim, read):
        plan = _plan(crowded, command)
        assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
        assert plan.keys <= 41


def test_a_batch_of_fresh_items_costs_one_find_and_one_update(crowded: Watched) -> None:
    first, claim = _claim_commands(crowded, 2)
    plan = _plan(crowded, first)
    assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert (plan.keys, plan.documents) == (20, 20)
    plan = _plan(crowded, claim)
    assert not {"SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert plan.keys <= 41


def test_a_batch_is_settled_by_its_ids(crowded: Watched) -> None:
    items = crowded.queue.reserve_many(20)
    crowded.queue.commit_many(items)
    sent = crowded.recorder.commands["delete"]
    part = {"delete": "mongoq", "deletes": sent["deletes"]}
    plan = Plan(crowded.collection.database.command("explain", part, verbosity="executionStats"))
    assert plan.keys <= 41
    assert "COLLSCAN" not in plan.stages


def _claim_commands(crowded: Watched, number: int) -> list[Any]:
    """Return the last commands of a claim of 20 fresh items, which must be so many."""
    crowded.collection.delete_many({"q": crowded.queue.name, "priority": -5})
    crowded.queue.push_many(range(READY), priority=-5)
    crowded.queue.peek(1)
    sent: list[Any] = []
    started = crowded.recorder.started
    crowded.recorder.started = lambda event: sent.append(event.command) or started(event)  # type: ignore[method-assign]
    items = crowded.queue.reserve_many(20)
    crowded.recorder.started = started  # type: ignore[method-assign]
    crowded.queue.release_many(items)
    assert len(items) == 20
    claims = [command for command in sent if "sort" in command or "update" in command]
    assert len(claims) == number
    return claims


def _plan(crowded: Watched, command: Any) -> Plan:
    names = ("find", "filter", "sort", "limit", "projection", "update", "updates")
    part = {name: value for name, value in command.items() if name in names}
    return Plan(crowded.collection.database.command("explain", part, verbosity="executionStats"))
