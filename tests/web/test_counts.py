"""Counts before a change: a dry run says what the change will do, and reads by an index."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import until
from tests.web.conftest import Api, bury

LETTERS = 40
NOT_A_PATTERN = '{"a": {"$regex": "("}}'


@pytest.fixture
def letters(broker: mongoq.Broker, queue: mongoq.Queue[Any]) -> mongoq.DeadQueue:
    """Letters of two reasons, half each, beside another queue."""
    bury(queue, *range(0, LETTERS, 2), reason="slow", error=ValueError("x"))
    bury(queue, *range(1, LETTERS, 2), reason="lost", error=ValueError("x"))
    broker.queue("others").push_many(range(LETTERS))
    return queue.dead


def count(api: Api, **chosen: Any) -> Any:
    """Return how many letters a deletion would delete."""
    counted = api.post("/api/letters/drop", queue="orders", dry_run=True, **chosen).json()
    assert counted["exact"] is True
    return counted["number"]


def test_letters_are_counted_as_they_are_chosen(api: Api, letters: mongoq.DeadQueue) -> None:
    assert count(api) == LETTERS
    assert count(api, reason="slow") == LETTERS // 2
    assert count(api, where={"$lt": 10}, reason="lost") == 5
    assert (count(api, error="ValueError"), count(api, error="KeyError")) == (LETTERS, 0)
    held = letters.reserve()
    assert held is not None
    assert count(api) == LETTERS - 1
    ids = [held.id, ObjectId(), *(item.id for item in letters.peek(7))]
    assert count(api, ids=list(map(str, ids))) == 7


def test_letters_of_other_programs_are_a_group_of_their_own(api: Api, letters: mongoq.DeadQueue, raw: Any) -> None:
    raw.insert_one({"_id": "foreign", "q": "orders.dead", "when": raw.find_one({"q": "others"})["when"], "payload": 1})
    found = api.get("/api/letters/groups", queue="orders").json()
    groups = [(group["reason"], group["error"], group["number"]) for group in found["groups"]]
    assert groups == [("lost", "ValueError", LETTERS // 2), ("slow", "ValueError", LETTERS // 2), (None, None, 1)]
    assert (found["groups"][2]["example"], found["more"]) == ("foreign", False)


@pytest.mark.parametrize("where", [None, {"$gte": 3}], ids=["all", "some"])
@pytest.mark.parametrize("state", ["ready", "processed", "reserved", "expired", None])
def test_a_purge_deletes_as_many_as_its_dry_run_says(
    api: Api, queue: mongoq.Queue[Any], state: Any, where: Any
) -> None:
    queue.push_many([0, 5])
    queue.commit_many(queue.reserve_many(2))
    for lease in (3600, 0.001):
        queue.push_many([0, 5])
        queue.reserve_many(2, lease=lease)
    until(lambda: queue.counts().expired == 2)
    queue.push_many([0, 5])
    chosen = {"queue": "orders", "state": state, "where": where}
    counted = api.post("/api/items/purge", dry_run=True, **chosen).json()
    assert counted["number"] > 0
    assert api.post("/api/items/purge", **chosen).json()["number"] == counted["number"]
    assert api.post("/api/items/purge", dry_run=True, **chosen).json()["number"] == 0


def test_counts_are_read_by_an_index(api: Api, letters: mongoq.DeadQueue, raw: Any) -> None:
    database = raw.database
    database.command("profile", 2)
    for chosen in ({}, {"reason": "slow"}, {"where": {"$lt": 10}}):
        count(api, **chosen)
    api.get("/api/letters/groups", queue="orders")
    database.command("profile", 0)
    plans = [entry.get("planSummary", "") for entry in database["system.profile"].find({"command.aggregate": "mongoq"})]
    assert plans
    assert "COLLSCAN" not in "".join(plans)


def test_a_pattern_that_the_server_refuses_is_an_error_of_the_caller(api: Api, letters: mongoq.DeadQueue) -> None:
    groups = api.get("/api/letters/groups", queue="orders", where=NOT_A_PATTERN)
    dropped = api.post("/api/letters/drop", queue="orders", dry_run=True, where={"a": {"$regex": "("}})
    for answer in (groups, dropped):
        assert answer.status_code == 422
        assert "the server refuses it" in answer.text
    assert letters.size() == LETTERS
