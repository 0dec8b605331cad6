"""Purges that choose: what the server refuses, what changes while they run, and which plans they have."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq
from mongoq.protocol import admin
from tests.integration.test_plans import Watched


@pytest.mark.parametrize("limit", [None, 3])
def test_a_pattern_that_the_server_refuses_is_reported_as_one(broker: mongoq.Broker, limit: int | None) -> None:
    queue = broker.queue("orders")
    queue.push({"name": "x"})
    with pytest.raises(mongoq.FilterInvalid, match="the server refuses"):
        queue.purge(where={"name": {"$regex": "a**"}}, limit=limit)
    assert queue.size() == 1


@pytest.mark.parametrize("state", [None, "blocked"])
def test_so_is_one_that_blocked_items_meet(broker: mongoq.Broker, state: Any) -> None:
    queue = broker.queue("orders")
    queue.push_many([{"a": "x"}, {"a": "y"}], sequence="s")
    with pytest.raises(mongoq.FilterInvalid, match="where: the server refuses it"):
        queue.purge(state=state, where={"a": {"$regex": "("}})
    assert queue.counts().total == 2


def test_what_is_claimed_or_changed_after_it_was_read_stays(
    broker: mongoq.Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.queue("orders")
    for n in range(4):
        queue.push({"n": n})
    updates: list[Any] = []
    delete = admin.delete_many

    def deleted(filter: Any) -> Any:
        if not updates:  # between the find and the first delete
            updates.append(raw.update_one({"payload.n": 0}, {"$set": {"payload.n": 9}}))
            raw.update_one({"payload.n": 1}, {"$set": {"q": "next"}})
        return delete(filter)

    monkeypatch.setattr(admin, "delete_many", deleted)
    assert queue.purge(where={"n": {"$lt": 9}}, limit=3) == 2
    assert [item.payload["n"] for item in queue.peek(9)] == [9]
    assert [item.payload["n"] for item in broker.queue("next").peek(9)] == [1]


@pytest.mark.parametrize("pages", [1, 8])
def test_a_page_begins_behind_the_one_before(
    uri: str, database: str, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr(admin, "MAX_DELETED_ITEMS", 100)
    watched = Watched(uri, database)
    with watched.client, watched.broker:
        watched.queue.push_many(range(pages * 100 + 50))
        assert watched.queue.purge(limit=pages * 100) == pages * 100
        plan = watched.plan("find")
        assert "SORT" not in plan.stages
        assert "COLLSCAN" not in plan.stages
        assert watched.queue.size() == 50
