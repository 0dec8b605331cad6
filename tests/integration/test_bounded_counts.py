"""Counts before a change: right up to their limit, and bounded in what they examine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

import mongoq
from mongoq.protocol import admin
from mongoq.protocol.history.dead_letters import count_letters, group_letters, selection
from mongoq.protocol.history.pages import BoundedCount, history_range
from mongoq.protocol.history.search import count_range

LETTERS = 1_000


@pytest.fixture
def letters(broker: mongoq.Broker, raw: Any) -> mongoq.DeadQueue:
    """Letters of two reasons in turn, beside another queue."""
    queue = broker.queue("orders")
    queue.push(1)
    queue.bury(queue.reserve() or pytest.fail("nothing"), reason="slow", error=ValueError("x"))
    letter = raw.find_one({"q": "orders.dead"})
    copies = [{**letter, "_id": ObjectId(), "payload": n} for n in range(1, LETTERS)]
    for copy in copies[::2]:
        copy["origin"] = {**letter["origin"], "reason": "lost"}
    raw.insert_many(copies)
    broker.queue("others").push_many(range(LETTERS))
    return queue.dead


@pytest.fixture
def profile(broker: mongoq.Broker, client: MongoClient[Any]) -> Iterator[Any]:
    """Counts the documents and keys that the commands of this test examine, by the profiler of the server."""
    database = client[broker.namespace.partition(".")[0]]
    database.command("profile", 2)

    def examined() -> tuple[int, int]:
        entries = list(database["system.profile"].find({"ns": broker.namespace, "command.aggregate": "mongoq"}))
        assert entries, "nothing was profiled"
        assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
        documents, keys = (sum(entry.get(f"{what}Examined", 0) for entry in entries) for what in ("docs", "keys"))
        database.command("profile", 0)
        return documents, keys

    yield examined
    database.command("profile", 0)


def select(letters: mongoq.DeadQueue, **chosen: Any) -> Any:
    return selection(letters._context, **{**dict.fromkeys(("ids", "where", "stage", "reason", "error")), **chosen})


def test_letters_are_counted_up_to_the_limit(letters: mongoq.DeadQueue) -> None:
    for chosen, number in (
        ({}, LETTERS),
        ({"reason": "slow"}, LETTERS // 2),
        ({"where": {"$lt": 10}, "reason": "lost"}, 5),
        ({"error": "ValueError"}, LETTERS),
        ({"error": "KeyError"}, 0),
    ):
        counted = letters._run(count_letters, select(letters, **chosen), limit=LETTERS)
        assert counted == BoundedCount(number)
    held = letters.reserve()
    assert held is not None
    assert letters._run(count_letters, select(letters), limit=LETTERS) == BoundedCount(LETTERS - 1)
    ids = [held.id, ObjectId(), *(item.id for item in letters.peek(700))]
    assert letters._run(count_letters, select(letters, ids=ids), limit=1) == BoundedCount(700)


def test_a_filter_of_letters_is_counted_within_the_limit(letters: mongoq.DeadQueue, profile: Any) -> None:
    counted = letters._run(count_letters, select(letters, reason="slow"), limit=100)
    assert (counted.exact, 0 < counted.number <= 100) == (False, True)
    documents, keys = profile()
    assert documents <= 101
    # The first command counts keys to the limit, and the second one reads them again.
    assert keys <= 2 * 101 + 10


def test_items_without_a_filter_are_counted_by_keys_alone(letters: mongoq.DeadQueue, profile: Any) -> None:
    whole = history_range(letters._context, since=None, until=None, where=None, state=None, page=1)
    assert letters._run(count_range, whole, limit=100) == BoundedCount(101, exact=False)
    documents, keys = profile()
    assert (documents, keys <= 110) == (0, True)


def test_groups_are_bounded_too(letters: mongoq.DeadQueue, profile: Any) -> None:
    groups, is_more = letters._run(group_letters, select(letters), limit=100, groups=1)
    assert (len(groups), groups[0].number, is_more) == (1, 50, True)
    documents, keys = profile()
    assert documents <= 101
    assert keys <= 2 * 101 + 10


def test_groups_are_whole_within_the_limit(letters: mongoq.DeadQueue, raw: Any) -> None:
    raw.insert_one({"_id": "foreign", "q": "orders.dead", "when": raw.find_one({"q": "others"})["when"], "payload": 1})
    groups, is_more = letters._run(group_letters, select(letters), limit=LETTERS + 1, groups=10)
    found = [(group.reason, group.error, group.number) for group in groups]
    assert (found, is_more) == (
        [("lost", "ValueError", 500), ("slow", "ValueError", 500), (None, None, 1)],
        False,
    )
    assert groups[2].example == "foreign"


def test_a_purge_is_counted_as_it_deletes(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=3600)
    queue.push_many(range(6))
    queue.reserve()
    queue.pop()
    for state in ("ready", "processed", "reserved", "expired", None):
        for where in ({"$gte": 3}, None):
            counted = queue._run(admin.count_purge, state, where=where, limit=100)
            assert counted.exact
            assert queue.purge(state=state, where=where) == counted.number
            assert queue._run(admin.count_purge, state, where=where, limit=100) == BoundedCount(0)


def test_a_filter_that_the_server_refuses_is_an_error(letters: mongoq.DeadQueue) -> None:
    chosen = select(letters, where={"a": {"$regex": "("}})
    with pytest.raises(mongoq.FilterInvalid, match="the server refuses it"):
        letters._run(count_letters, chosen, limit=10)
    with pytest.raises(mongoq.FilterInvalid, match="the server refuses it"):
        letters._run(group_letters, chosen, limit=10, groups=10)
