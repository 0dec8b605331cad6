"""The plans of what a batch really sends, beside a lot of items that should cost nothing."""

from __future__ import annotations

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
    crowded.queue.peek(1)
    finds: list[Any] = []
    started = crowded.recorder.started
    crowded.recorder.started = lambda event: finds.append(event.command) or started(event)  # type: ignore[method-assign]
    items = crowded.queue.reserve_many(20)
    crowded.recorder.started = started  # type: ignore[method-assign]
    crowded.queue.release_many(items)
    first, claim, read = [command for command in finds if command.get("find") == "mongoq" or "update" in command][-3:]
    crowded.recorder.commands["find"] = dict(first)
    plan = crowded.plan("find")
    assert len(items) == 20
    assert not {"FETCH", "SORT", "COLLSCAN"} & set(plan.stages), plan.stages
    assert "IXSCAN" in plan.stages
    assert (plan.keys, plan.documents) == (20, 0)
    for command, kind in ((claim, "update"), (read, "find")):
        part = {"update": "mongoq", "updates": claim["updates"]} if kind == "update" else _plain(command)
        told = Plan(crowded.collection.database.command("explain", part, verbosity="executionStats"))
        assert not {"SORT", "COLLSCAN"} & set(told.stages), told.stages
        assert told.keys <= 41


def test_a_batch_is_settled_by_its_ids(crowded: Watched) -> None:
    items = crowded.queue.reserve_many(20)
    crowded.queue.commit_many(items)
    sent = crowded.recorder.commands["delete"]
    part = {"delete": "mongoq", "deletes": sent["deletes"]}
    plan = Plan(crowded.collection.database.command("explain", part, verbosity="executionStats"))
    assert plan.keys <= 41
    assert "COLLSCAN" not in plan.stages


def _plain(command: Any) -> dict[str, Any]:
    return {key: value for key, value in command.items() if key in ("find", "filter", "sort", "limit", "projection")}
